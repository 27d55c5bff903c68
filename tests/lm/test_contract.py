"""The contract of every LM, at every location."""

import copy

import pytest
import torch
from lm_cases import (
    BATCH,
    CASES,
    LSTM,
    SOME,
    TRANSFORMER,
    VOCAB,
    build,
    is_latent,
    is_random,
    make_certain,
    make_generic,
    name,
    tokens,
)
from torch.distributions import Normal, kl_divergence

from espnet_bayeslm.lm import BayesLSTMLM, BayesTransformerLM
from espnet_bayeslm.training.model import BayesLanguageModel

BAYES_GATE = {"cell_input@1": "bayes"}


@pytest.fixture
def lm(case):
    return build(case)


def training_model(lm):
    """Make the model of training, with every gradient there is."""
    return BayesLanguageModel(make_generic(lm), VOCAB, num_train_tokens=50).train()


def taken(model):
    found = {key: parameter.grad for key, parameter in model.named_parameters()}
    model.zero_grad()
    return found


class LocationContract:
    """Tests that may fail at one location only."""

    def test_two_training_passes_differ_only_where_something_is_random(self, lm, case):
        x = tokens()
        lm.train()
        assert torch.equal(lm(x)[0], lm(x)[0]) != is_random(case)

    def test_score_equals_batch_score_equals_teacher_forcing(self, lm):
        x = tokens(length=8)
        lm.eval()
        expected = lm(x)[0].log_softmax(-1)
        states, single = [None] * 3, None
        for t in range(1, 9):
            log_probs, states = lm.batch_score(x[:, :t], states, None)
            one, single = lm.score(x[0, :t], single, None)
            assert torch.allclose(log_probs, expected[:, t - 1], atol=1e-10)
            assert torch.allclose(one, expected[0, t - 1], atol=1e-10)

    def test_every_parameter_gets_a_gradient(self, lm):
        model = BayesLanguageModel(lm, VOCAB, num_train_tokens=50).train()
        batch = (tokens()[:, 1:], torch.tensor([6, 3, 4]))
        model(*batch)[0].backward()
        # none unused, as DDP wants it, from the first step on
        assert all(parameter.grad is not None for parameter in model.parameters())
        model.zero_grad()
        make_generic(lm)
        model(*batch)[0].backward()
        for key, parameter in model.named_parameters():
            assert parameter.grad is not None and parameter.grad.abs().sum() > 0, key

    def test_sigma_zero_is_the_point_estimate(self, lm, case):
        point = build((case[0], case[1], {}))
        point.load_state_dict(lm.state_dict())
        make_certain(lm)
        x = tokens()
        assert torch.allclose(lm.train()(x)[0], point.train()(x)[0], atol=1e-6)
        assert torch.allclose(lm.eval()(x)[0], point.eval()(x)[0], rtol=0, atol=1e-12)

    def test_point_weights_load_and_leave_the_posterior(self, lm, case):
        point = build((case[0], case[1], {}))
        for parameter in point.parameters():
            torch.nn.init.normal_(parameter)
        before = {k: v.clone() for k, v in lm.state_dict().items()}
        lm.load_state_dict(point.state_dict())
        copies = {
            f"{name}.{path}.{parameter}": getattr(layer, own)[slice(*rows)]
            for name, layer in lm.named_modules()
            for path, source in getattr(layer, "sources", {}).items()
            for parameter, (own, rows) in source.items()
        }
        for key, value in lm.state_dict().items():
            expected = point.state_dict().get(key, before[key])
            if key in copies:  # of a search's paths
                expected = copies[key]
            assert torch.equal(value, expected), key


class Contract:
    """Tests that depend on the kind and on the way of running, not on the location."""

    def test_a_draw_is_shared_by_the_batch_but_for_latents(self, lm, case):
        x = tokens(batch=1).expand(4, -1)
        logits = lm.train()(x)[0]
        shared = torch.allclose(logits, logits[:1].expand_as(logits), atol=1e-12)
        assert shared != is_latent(case)

    def test_a_held_draw_is_shared_by_the_batch_and_the_search(self, lm):
        x = tokens(batch=1).expand(4, -1)
        with lm.sampled(3):
            logits = lm.eval()(x)[0]
        assert torch.allclose(logits, logits[:1].expand_as(logits), atol=1e-12)
        x = tokens()
        with lm.sampled(1):
            expected = lm.eval()(x)[0].log_softmax(-1)
            states = [None] * 3
            for t in range(1, 8):
                log_probs, states = lm.batch_score(x[:, :t], states, None)
                assert torch.allclose(log_probs, expected[:, t - 1], atol=1e-10)

    def test_a_later_token_changes_no_earlier_logit(self, lm):
        x = tokens()
        changed = x.clone()
        changed[:, 4] = x[:, 4] % (VOCAB - 2) + 1
        lm.eval()
        a, b = lm(x)[0], lm(changed)[0]
        assert torch.equal(a[:, :4], b[:, :4])
        assert not torch.allclose(a[:, 4:], b[:, 4:])

    def test_gradients_of_parts_of_a_batch_add_up(self, lm):
        model = training_model(lm)
        text, lengths = tokens(batch=4)[:, 1:], torch.tensor([6, 3, 4, 5])
        num_tokens = lengths + 1
        with lm.sampled(0):  # one draw for all tokens
            model(text, lengths)[0].backward()
        whole = taken(model)
        for rows in (slice(0, 2), slice(2, 4)):
            share = num_tokens[rows].sum().double() / num_tokens.sum()
            with lm.sampled(0):
                (share * model(text[rows], lengths[rows])[0]).backward()
        # what is zero but for rounding (attention's key biases) is compared with the greatest
        scale = max(float(gradient.abs().max()) for gradient in whole.values())
        for key, gradient in taken(model).items():
            assert torch.allclose(gradient, whole[key], rtol=1e-9, atol=1e-13 * scale), key

    def test_state_dict_round_trip(self, lm, case):
        x = tokens()
        lm.train()(x)
        other = build(case)
        for parameter in other.parameters():
            torch.nn.init.normal_(parameter)
        other.load_state_dict(lm.state_dict())
        assert torch.equal(other.train()(x)[0], lm.train()(x)[0])

    def test_a_copy_after_a_training_step_is_independent(self, lm):
        model, x = training_model(lm), tokens()
        model(*BATCH)[0].backward()
        other = copy.deepcopy(model)
        assert torch.equal(model(*BATCH)[0], other(*BATCH)[0])
        expected = lm.eval()(x)[0]
        for parameter in other.parameters():
            parameter.data.zero_()
        assert torch.equal(lm(x)[0], expected)

    def test_a_batch_without_a_sentence_has_gradients_of_zero(self, lm):
        logits = lm.train()(torch.zeros(0, 5, dtype=torch.long))[0]
        assert logits.shape == (0, 5, VOCAB)
        logits.sum().backward()
        for key, parameter in lm.named_parameters():
            assert parameter.grad is None or not parameter.grad.any(), key

    def test_batch_and_padding_change_nothing(self, lm, case):
        model = BayesLanguageModel(lm, VOCAB).eval()
        text, lengths = tokens()[:, 1:], torch.tensor([6, 3, 4])
        batch, _ = model.nll(text, lengths)
        for i, length in enumerate(lengths):
            alone, _ = model.nll(text[i : i + 1, :length], lengths[i : i + 1])
            assert torch.allclose(batch[i, : length + 1], alone[0], atol=1e-12)
            assert not batch[i, length + 1 :].any()

    def test_locations_and_sizes(self, lm, case):
        added = sum(v.numel() for k, v in lm.named_parameters() if k.endswith("_log_std"))
        latent = sum(layer.dim for _, layer in lm.latents())
        assert sum(lm.location_sizes().values()) == added + latent
        assert bool(lm.locations()) == is_random(case)

    def test_kl_equals_torch_distributions(self, lm, case):
        for block in lm.posterior.blocks():
            torch.nn.init.normal_(block.tensor("_log_std"))
            torch.nn.init.normal_(block.tensor("_prior_mean"))
        expected = torch.zeros((), dtype=torch.float64)
        for block in lm.posterior.blocks():
            prior_std = lm.prior_variance**0.5
            posterior = Normal(block.mean, block.tensor("_log_std").exp())
            prior = Normal(block.tensor("_prior_mean"), prior_std)
            expected = expected + kl_divergence(posterior, prior).sum()
        assert torch.allclose(lm.kl(), expected, rtol=1e-10, atol=0)
        assert (lm.kl() > 0) == bool(lm.posterior.blocks())


@pytest.mark.parametrize("case", CASES, ids=map(name, CASES))
class TestEveryLocation(LocationContract):
    pass


@pytest.mark.parametrize("case", SOME, ids=map(name, SOME))
class TestContract(Contract):
    pass


@pytest.mark.parametrize("option", ["init_std", "prior_variance"])
@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf"), True])
def test_variances_must_be_positive_numbers(option, value):
    kind = {"kind": "bayes", option: value}
    for uncertainty, options in (({"cell_input@1": kind}, {}), (BAYES_GATE, {option: value})):
        with pytest.raises(ValueError, match=f"{option}: expected a number above 0"):
            BayesLSTMLM(VOCAB, unit=4, uncertainty=uncertainty, **options)


@pytest.mark.parametrize("value", [1e-10, 100.0])
@pytest.mark.parametrize(
    "cls, conf, place, kind",
    [
        (BayesLSTMLM, LSTM, "cell_input@1", "bayes"),
        (BayesLSTMLM, LSTM, "cell_input@1", "gp"),
        (BayesLSTMLM, LSTM, "hidden_output@1", "variational"),
        (BayesTransformerLM, TRANSFORMER, "ffn@2", "bayes"),
        (BayesTransformerLM, TRANSFORMER, "ffn@2", "gp"),
        (BayesTransformerLM, TRANSFORMER, "hidden_output@1", "variational"),
    ],
)
def test_a_start_that_would_have_no_gradient_is_an_error(cls, conf, place, kind, value):
    with pytest.raises(ValueError, match=f"init_std of {place}: expected a start between"):
        cls(VOCAB, **conf, uncertainty={place: {"kind": kind, "init_std": value}})


def test_a_start_relative_to_the_weights_is_checked_as_it_is():
    options = dict(init_std=1e-8, init_std_unit="weights")  # of weights that spread by 0.2
    with pytest.raises(ValueError, match="init_std of cell_input@1: expected a start between"):
        BayesLSTMLM(VOCAB, **LSTM, uncertainty=BAYES_GATE, **options)


@pytest.mark.parametrize("value", [3e-9, 50.0])
def test_a_start_within_the_range_has_a_gradient(value):
    lm = BayesLSTMLM(VOCAB, **LSTM, uncertainty=BAYES_GATE, init_std=value)
    model = BayesLanguageModel(lm.double(), VOCAB, num_train_tokens=50).train()
    model(*BATCH)[0].backward()
    for key, parameter in model.named_parameters():
        assert parameter.grad.any() or not key.endswith("_log_std"), key


@pytest.mark.parametrize(
    "cls, options, message",
    [
        (BayesTransformerLM, {"att_unit": 10, "head": 3}, "not a multiple"),
        (BayesTransformerLM, {"pos_enc": "learned"}, "valid are 'sinusoidal'"),
        (BayesTransformerLM, {"embed_unit": 4}, "tie_weights needs"),
        (BayesTransformerLM, {"head": 0}, "head 0: expected 1 or more"),
        (BayesTransformerLM, {"dropout_rate": 1.5}, "dropout_rate 1.5: .* from 0 to below 1"),
        (BayesLSTMLM, {"unit": 0}, "unit 0: expected"),
        (BayesLSTMLM, {"nlayers": 0}, "nlayers 0: expected"),
        (BayesLSTMLM, {"dropout_rate": -0.1}, "dropout_rate -0.1: expected"),
        (BayesLSTMLM, {"num_samples": -1}, "num_samples -1: expected 0 or more"),
    ],
)
def test_sizes_that_do_not_fit(cls, options, message):
    with pytest.raises(ValueError, match=message):
        cls(VOCAB, **options)
