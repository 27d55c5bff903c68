"""The posterior: samples, KL and prior variances, over some weights and over all of them."""

import contextlib
import copy
import math

import pytest
import torch
from torch import nn
from torch.distributions import Normal, kl_divergence
from torch.utils.checkpoint import checkpoint

from espnet_bayeslm.bayes import Bayes, Posterior, Sample, Weights, noise_generator
from espnet_bayeslm.bayes.objective import (
    LOG_STD_MAX,
    check_spread,
    kl_learned_prior,
    kl_weights,
    prior_variances,
)
from espnet_bayeslm.kinds.bayes import LOG_STD, PRIOR_MEAN
from espnet_bayeslm.kinds.bayes import draw_weights as draw
from espnet_bayeslm.kinds.whole_posterior import add_whole_posterior, whole_blocks
from espnet_bayeslm.lm import BayesLSTMLM
from espnet_bayeslm.utils.errors import InputError


def test_a_draw_and_its_kl_are_those_of_the_formulas():
    mean, log_std, noise, prior = torch.randn(4, 7, 3, dtype=torch.float64)
    log_std[0, 1] = -25.0  # clamped
    leaves = [mean.requires_grad_(), log_std.requires_grad_()]
    std = log_std.clamp(-20, 4).exp()
    kl = kl_divergence(Normal(mean, std), Normal(prior, 0.7)).sum()
    found, expected = draw(mean, log_std, noise, prior, 0.7), (mean + std * noise, kl)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)
    grads = [
        torch.autograd.grad(value.sin().sum() + 2 * k, leaves) for value, k in (found, expected)
    ]
    torch.testing.assert_close(*grads, rtol=1e-12, atol=1e-12)
    half = torch.full((1000, 1000), 0.1, dtype=torch.float16)
    kl = kl_weights(half, half - 5, torch.zeros_like(half), 0.01)
    assert kl.dtype == torch.float32 and torch.isfinite(kl)


@pytest.mark.parametrize("spans", [[(0, 7)], [(2, 5)], [(0, 2), (3, 4), (6, 7)]])
def test_a_parameter_has_its_mean_outside_of_its_blocks(spans):
    module = nn.Linear(3, 7, bias=False, dtype=torch.float64)
    posterior = Posterior(module)
    for n, (first, last) in enumerate(spans):
        for row in range(first, last):
            posterior.add(
                [Weights("weight", (row, 7), f"r{row}")],
                Bayes(init_std=0.1, prior_variance=1.0 + n),
                "w",
            )
    mean = module.weight
    with posterior.sampled(noise_generator(0, 0, 0), with_kl=True) as sample:
        value = module.weight
    generator, random = noise_generator(0, 0, 0), {n for span in spans for n in range(*span)}
    noise = torch.zeros(7, 3, dtype=torch.float64)
    for row in sorted(random):
        noise[row].normal_(generator=generator)
    torch.testing.assert_close(value, mean + 0.1 * noise, rtol=1e-12, atol=0)
    torch.testing.assert_close(sample.kl(), posterior.kl(), rtol=1e-12, atol=0)
    (grad,) = torch.autograd.grad(value.sin().sum(), mean)
    torch.testing.assert_close(grad, value.cos())


def test_the_gradient_that_autograd_gave_is_not_changed():
    """The KL's gradient is added to it, and others may have it too."""
    mean, log_std, noise, prior = torch.randn(4, 6, 4, dtype=torch.float64)
    leaves = (mean.requires_grad_(), log_std.requires_grad_())
    given = torch.randn(6, 4, dtype=torch.float64)
    kept, one = given.clone(), torch.ones((), dtype=torch.float64)
    value, kl = draw(mean, log_std, noise, prior, 0.7)
    alone = torch.autograd.grad(kl, leaves, one, retain_graph=True)
    found = torch.autograd.grad((value, kl), leaves, (given, one))
    assert torch.equal(given, kept)
    torch.testing.assert_close(found[0], alone[0] + kept)


@pytest.mark.parametrize("other", [(1, 0, 0), (0, 1, 0), (0, 0, 1)])
def test_noise_depends_on_seed_rank_and_step(other):
    draw = [
        torch.randn(9, generator=noise_generator(*key)) for key in ((0, 0, 0), (0, 0, 0), other)
    ]
    assert torch.equal(draw[0], draw[1])
    assert not torch.allclose(draw[0], draw[2])


def test_gradients_equal_finite_differences():
    module = nn.Linear(2, 5, bias=False, dtype=torch.float64)
    posterior = Posterior(module)
    for n, part in enumerate(((1, 5), (4, 5))):
        kind = Bayes(init_std=0.3, prior_variance=2.0)
        posterior.add([Weights("weight", part, f"b{n}")], kind, f"w@{n}")
    inputs = [module.weight, module.weight_b0_log_std, module.weight_b1_log_std]

    def loss(*_):
        with posterior.sampled(noise_generator(0, 0, 0)) as sample:
            return module.weight.square().sum() + sample.kl()

    assert torch.autograd.gradcheck(loss, inputs)


@pytest.mark.parametrize("parts", [[(0, 2), (1, 2)], [(1, 2), (0, 2)]])
def test_parts_that_touch_may_differ(parts):
    """In any order: no row is in both."""
    module = nn.Linear(2, 6, bias=False)
    posterior = Posterior(module)
    for n, part in enumerate(parts):
        kind = Bayes(init_std=0.1 * (n + 1), prior_variance=1.0 + n)
        posterior.add([Weights("weight", part, f"b{n}")], kind, f"w@{n}")
    assert sorted(block.rows for block in posterior.blocks()) == [(0, 3), (3, 6)]


def test_the_largest_spread_is_one_of_a_trained_lm():
    check_spread(math.exp(LOG_STD_MAX), "w@1")
    for spread in (1.001 * math.exp(LOG_STD_MAX), math.nan):
        with pytest.raises(InputError, match="their training diverged"):
            check_spread(spread, "w@1")


@pytest.mark.parametrize("rnn", [nn.LSTM, nn.GRU, nn.RNN])
def test_torchs_recurrent_layers_are_sampled_as_they_are(rnn):
    torch.manual_seed(0)
    layer, x = rnn(3, 4, num_layers=2).double(), torch.randn(5, 2, 3, dtype=torch.float64)
    posterior = Posterior(layer, {"weight_*": {"kind": "bayes", "init_std": 0.3}})
    mean, other = layer(x)[0], rnn(3, 4, num_layers=2).double()
    sample = Sample(posterior, noise_generator(0, 0, 1)).values
    other.load_state_dict({**{n: p for n, p in layer.named_parameters()}, **sample}, strict=False)
    with posterior.sampled(noise_generator(0, 0, 1)):
        found = layer(x)[0]
    torch.testing.assert_close(found, other(x)[0], rtol=0, atol=1e-12)
    assert torch.equal(layer(x)[0], mean) and not torch.allclose(found, mean)


@pytest.mark.parametrize("is_random", [True, False])
def test_only_random_layers_are_not_computed_again(is_random):
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    posterior = Posterior(model, {f"{0 if is_random else 1}.weight": "bayes"})
    refused = pytest.raises(InputError, match="activation checkpointing")
    with refused if is_random else contextlib.nullcontext():
        with posterior.sampled(noise_generator(0, 0, 0)):
            y = model[1](checkpoint(model[0], torch.randn(5, 3), use_reentrant=False).tanh())
        # the means are back: another computation would differ from that of the loss
        y.sum().backward()


@pytest.mark.parametrize(
    "patterns, is_tied", [(["*"], True), (["a.weight"], False), (["a.weight", "b.weight"], True)]
)
def test_tied_weights_that_patterns_name_have_one_posterior(patterns, is_tied):
    model = nn.ModuleDict({"a": nn.Embedding(5, 4), "b": nn.Linear(4, 5, bias=False)})
    model["b"].weight = model["a"].weight
    posterior = Posterior(model, dict.fromkeys(patterns, "bayes"))
    assert len(posterior.blocks()) == 1
    assert posterior.kl() == Posterior(model, {"a.weight": "bayes"}).kl()
    with posterior.sampled(noise_generator(0, 0, 0)):
        assert (model["a"].weight is model["b"].weight) == is_tied
    assert model["a"].weight is model["b"].weight


def test_a_single_number_may_be_random():
    module = nn.Module()
    module.scale = nn.Parameter(torch.tensor(2.0))
    kind = {"kind": "bayes", "init_std": 0.5, "prior_variance": 4.0}
    posterior = Posterior(module, {"scale": kind})
    kl = math.log(2.0 / 0.5) + (0.25 + 4.0) / 8 - 0.5
    assert posterior.kl().item() == pytest.approx(kl, rel=1e-6)
    with posterior.sampled(noise_generator(0, 0, 0)):
        assert module.scale.shape == () and module.scale != 2.0
    assert module.scale == 2.0


def test_what_no_posterior_can_be_of():
    layer = nn.Linear(2, 2)
    with pytest.raises(InputError, match=r"'encoder\.\*' matches none of the 2 parameters"):
        Posterior(layer, {"encoder.*": "bayes"})
    with pytest.raises(InputError, match="valid kinds are"):
        Posterior(layer, {"weight": "bayesian"})
    for variance in (-1.0, "learnt"):
        kind = {"kind": "bayes", "prior_variance": variance}
        with pytest.raises(InputError, match="above 0 or one of learn, learn_rows, got"):
            Posterior(layer, {"weight": kind})
    assert list(layer.state_dict()) == ["weight", "bias"]
    uncertain = Posterior(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), {"1.weight": "bayes"})
    for posterior in (uncertain, make_whole()[1]):
        keys = set(posterior.module.state_dict())
        with pytest.raises(InputError, match=r"posterior (over .* )?already"):
            add_whole_posterior(posterior)
        assert set(posterior.module.state_dict()) == keys


class TestLearnedPrior:
    @pytest.mark.parametrize("by_row", [False, True])
    def test_it_is_the_least_kl_over_variances(self, by_row):
        """And its gradients are those with the variances held."""
        mean, log_std, prior_mean = torch.randn(3, 4, 5, dtype=torch.float64)
        leaves = (mean.requires_grad_(), log_std.requires_grad_())
        least = kl_learned_prior(mean, log_std, prior_mean, by_row=by_row)
        held = prior_variances(mean, (2 * log_std).exp(), prior_mean, by_row=by_row).detach()

        def at(factor):
            rows = zip(mean, log_std, prior_mean, (factor * held).expand(4), strict=True)
            return sum(kl_weights(m, s, p, math.sqrt(v)) for m, s, p, v in rows)

        torch.testing.assert_close(least, at(1.0), rtol=0, atol=1e-10)
        assert min(at(0.97), at(1.03)) > least
        a, b = (torch.autograd.grad(x, leaves) for x in (least, at(1.0)))
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10)

    @pytest.mark.parametrize("variance", ["learn", "learn_rows"])
    def test_a_layer_with_it(self, variance):
        layer = nn.Linear(3, 4, dtype=torch.float64)
        posterior = Posterior(layer)
        kind = Bayes(init_std=0.3, init_std_unit="absolute", prior_variance=variance)
        posterior.add([Weights("*")], kind, "here")
        for block in posterior.blocks():
            nn.init.normal_(block.tensor(LOG_STD), -1.0, 0.3)
            nn.init.normal_(block.tensor(PRIOR_MEAN), std=0.1)
        with posterior.sampled(noise_generator(0, 0, 0), with_kl=True) as sample:
            layer(torch.randn(2, 3, dtype=torch.float64))
        expected = sum(
            kl_learned_prior(
                getattr(layer, name),
                getattr(layer, name + LOG_STD),
                getattr(layer, name + PRIOR_MEAN),
                by_row=variance == "learn_rows",
            )
            for name in ("weight", "bias")
        )
        torch.testing.assert_close(sample.kl(), expected, rtol=0, atol=1e-10)


def test_the_prior_variances_of_a_matrix_by_row():
    mean, prior_mean = torch.randn(2, 3, 4).double().unbind()
    variance = torch.rand(3, 4).double()
    squares = (mean - prior_mean) ** 2 + variance
    found = prior_variances(mean, variance, prior_mean, by_row=True)
    torch.testing.assert_close(found, squares.sum(1) / 4)
    of_all = [prior_variances(mean, variance, prior_mean, by_row=False)]
    of_all.append(prior_variances(mean[0], variance[0], prior_mean[0], by_row=True))
    torch.testing.assert_close(
        torch.stack(of_all), torch.stack([squares.mean(), squares[0].mean()])
    )


def test_neighbouring_rows_may_have_different_priors():
    gates = {"input_gate@1": 0.5, "forget_gate@1": 2.0}
    kinds = {name: {"kind": "bayes", "prior_variance": v} for name, v in gates.items()}
    blocks = BayesLSTMLM(7, unit=4, uncertainty=kinds).posterior.blocks()
    rows = {(str(block.location), block.rows) for block in blocks}
    assert rows == {("input_gate@1", (0, 4)), ("forget_gate@1", (4, 8))}
    assert {block.kind.prior_variance for block in blocks} == {0.5, 2.0}


class TiedLM(nn.Module):
    """An embedding, an LSTM, and a decoder that has the embedding's table."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Embedding(5, 4)
        self.rnn = nn.LSTM(4, 4, batch_first=True)
        self.decoder = nn.Linear(4, 5)
        self.decoder.weight = self.encoder.weight


def make_whole():
    posterior = Posterior(TiedLM().double())
    add_whole_posterior(posterior)
    return posterior.module, posterior


def test_each_parameter_has_one_buffer_that_survives_a_checkpoint():
    module, posterior = make_whole()
    state, blocks = module.state_dict(), whole_blocks(posterior)
    names = [block.name for block in blocks]
    assert sorted(names) == sorted(name for name, _ in module.named_parameters())
    assert "encoder.weight" in names and "decoder.weight" not in names
    for block in blocks:
        log_std = block.tensor("_log_std")
        assert torch.equal(state[block.name], block.mean)
        assert state[f"{block.name}_log_std"].data_ptr() == log_std.data_ptr()
        assert log_std.shape == block.mean.shape and log_std.dtype == block.mean.dtype
        assert (log_std == -20).all() and not log_std.requires_grad
    assert sum(name.endswith("_log_std") for name in state) == len(names)
    assert whole_blocks(Posterior(TiedLM())) == []
    other, _ = make_whole()
    for block in blocks:
        block.tensor("_log_std").normal_()
    other.load_state_dict(module.state_dict())
    torch.testing.assert_close(module.state_dict(), other.state_dict(), rtol=0, atol=0)


def test_samples_are_mean_plus_std_times_noise_and_means_come_back():
    module, posterior = make_whole()
    for n, block in enumerate(whole_blocks(posterior)):
        block.tensor("_log_std").fill_(-3.0 + n / 2)
    with posterior.sampled(noise_generator(0, 0, 1)):
        noise = noise_generator(0, 0, 1)
        for block in whole_blocks(posterior):
            eps = torch.empty_like(block.mean.data).normal_(generator=noise)
            expected = block.mean + block.tensor("_log_std").exp() * eps
            found = getattr(block.owner, block.parameter)
            assert torch.allclose(found, expected, rtol=0, atol=1e-15)
        assert module.encoder.weight is module.decoder.weight
    means = copy.deepcopy(module.state_dict())
    places = [p.data_ptr() for p in module.parameters()]
    with posterior.sampled(noise_generator(0, 0, 1)):
        assert not torch.equal(module.decoder.weight, means["decoder.weight"])
        with posterior.sampled(noise_generator(0, 0, 2)):
            pass
    torch.testing.assert_close(module.state_dict(), means, rtol=0, atol=0)
    with pytest.raises(KeyError), posterior.sampled(noise_generator(0, 0, 1)):
        raise KeyError
    torch.testing.assert_close(module.state_dict(), means, rtol=0, atol=0)
    assert places == [p.data_ptr() for p in module.parameters()]
