import copy

import pytest
import torch
from torch import nn
from torch.distributions import Normal, kl_divergence

from espnet_bayeslm.bayes import Bayes, Posterior, Weights, noise_generator
from espnet_bayeslm.bayes.objective import draw_weights as draw
from espnet_bayeslm.bayes.objective import kl_weights
from espnet_bayeslm.utils.errors import InputError


class Vector(nn.Module):
    """A module with one parameter of 5 rows."""

    def __init__(self, *shape):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(*shape, dtype=torch.float64))


def make(parts=((1, 5), (4, 5)), init_std=0.3):
    """A module with some random rows, fifths of its parameter, and its posterior."""
    module = Vector(5, 2)
    posterior = Posterior(module)
    for n, part in enumerate(parts):
        kind = Bayes(init_std=init_std, prior_variance=2.0)
        posterior.add([Weights("weight", part, f"b{n}")], kind, f"w@{n}")
    return module, posterior


def test_kl_of_half_precision_weights_is_float32():
    half = torch.full((1000, 1000), 0.1, dtype=torch.float16)
    kl = kl_weights(half, half - 5, torch.zeros_like(half), 0.01)
    assert kl.dtype == torch.float32 and torch.isfinite(kl)


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


@pytest.mark.parametrize("spans", [[(0, 7)], [(2, 5)], [(0, 2), (3, 4), (6, 7)]])
def test_a_parameter_has_its_mean_outside_of_its_blocks(spans):
    module = Vector(7, 3)
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
    module, posterior = make()
    inputs = [module.weight, module.weight_b0_log_std, module.weight_b1_log_std]

    def loss(*_):
        with posterior.sampled(noise_generator(0, 0, 0)) as sample:
            return module.weight.square().sum() + sample.kl()

    assert torch.autograd.gradcheck(loss, inputs)


@pytest.mark.parametrize("rnn", [nn.LSTM, nn.GRU, nn.RNN])
def test_torchs_recurrent_layers_are_sampled_as_they_are(rnn):
    torch.manual_seed(0)
    layer, x = rnn(3, 4, num_layers=2).double(), torch.randn(5, 2, 3, dtype=torch.float64)
    posterior = Posterior(layer, {"weight_*": {"kind": "bayes", "init_std": 0.3}})
    mean, other = layer(x)[0], rnn(3, 4, num_layers=2).double()
    sample = posterior.sample(noise_generator(0, 0, 1))
    other.load_state_dict({**{n: p for n, p in layer.named_parameters()}, **sample}, strict=False)
    with posterior.sampled(noise_generator(0, 0, 1)):
        found = layer(x)[0]
    torch.testing.assert_close(found, other(x)[0], rtol=0, atol=1e-12)
    assert torch.equal(layer(x)[0], mean) and not torch.allclose(found, mean)


def test_tied_weights_that_a_pattern_matches_have_one_sample():
    embedding, linear = nn.Embedding(5, 4), nn.Linear(4, 5, bias=False)
    linear.weight = embedding.weight
    both = nn.ModuleDict({"a": embedding, "b": linear})
    for pattern, is_tied in (("*", True), ("a.weight", False)):
        model = copy.deepcopy(both)
        posterior = Posterior(model, {pattern: "bayes"})
        assert len(posterior.blocks()) == 1
        with posterior.sampled(noise_generator(0, 0, 0)):
            assert (model["a"].weight is model["b"].weight) == is_tied
        assert model["a"].weight is model["b"].weight


def test_what_no_posterior_can_be_of():
    layer = nn.Linear(2, 2)
    with pytest.raises(InputError, match=r"'encoder\.\*' matches none of the 2 parameters"):
        Posterior(layer, {"encoder.*": "bayes"})
    with pytest.raises(InputError, match="valid kinds are"):
        Posterior(layer, {"weight": "bayesian"})
    with pytest.raises(InputError, match="prior_variance: expected a number above 0"):
        Posterior(layer, {"weight": {"kind": "bayes", "prior_variance": -1.0}})
    assert list(layer.state_dict()) == ["weight", "bias"]
