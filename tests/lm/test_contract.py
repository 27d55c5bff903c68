"""What every LM must do, at every location: one test class over all of them."""

import copy

import pytest
import torch
from torch.distributions import Normal, kl_divergence

from espnet_bayeslm.lm import BayesLSTMLM, BayesTransformerLM
from espnet_bayeslm.training.model import BayesLanguageModel

VOCAB = 17
LSTM = dict(unit=8, nlayers=2, dropout_rate=0.0)
TRANSFORMER = dict(att_unit=8, head=2, unit=12, layer=3, dropout_rate=0.0)

CASES = [
    (BayesLSTMLM, LSTM, {}),
    (BayesLSTMLM, {**LSTM, "tie_weights": False}, {}),
    (BayesLSTMLM, LSTM, {"input_gate@1": "bayes"}),
    (BayesLSTMLM, LSTM, {"forget_gate@2": "bayes"}),
    (BayesLSTMLM, LSTM, {"cell_input@1-2": "bayes"}),
    (BayesLSTMLM, LSTM, {"output_gate@*": "bayes"}),
    (BayesLSTMLM, LSTM, {"all_gates@2": "bayes"}),
    (BayesLSTMLM, {**LSTM, "nlayers": 1}, {"cell_input@1": "bayes", "input_gate@1": "bayes"}),
    (BayesTransformerLM, TRANSFORMER, {}),
    (BayesTransformerLM, TRANSFORMER, {"embedding": "bayes"}),
    (BayesTransformerLM, TRANSFORMER, {"attention@1": "bayes"}),
    (BayesTransformerLM, TRANSFORMER, {"ffn@1-2": "bayes"}),
    (BayesTransformerLM, TRANSFORMER, {"ffn_out@3": "bayes"}),
    (BayesTransformerLM, {**TRANSFORMER, "norm_first": True}, {"ffn@*": "bayes"}),
    (
        BayesTransformerLM,
        {**TRANSFORMER, "tie_weights": False, "embed_unit": 6, "pos_enc": None},
        {"embedding": "bayes", "attention@*": "bayes", "ffn@*": "bayes", "ffn_out@*": "bayes"},
    ),
]


def name(case):
    cls, conf, uncertainty = case
    return f"{cls.__name__}-{','.join(uncertainty) or 'point'}-{len(conf)}"


@pytest.fixture(params=CASES, ids=map(name, CASES))
def case(request):
    return request.param


def build(case, **kwargs):
    cls, conf, uncertainty = case
    torch.manual_seed(0)
    return cls(VOCAB, uncertainty=uncertainty, **{**conf, **kwargs}).double()


@pytest.fixture
def lm(case):
    return build(case)


def tokens(batch=3, length=7):
    ids = torch.randint(1, VOCAB - 1, (batch, length))
    ids[:, 0] = VOCAB - 1
    return ids


def is_random(case):
    return bool(case[2])


class TestContract:
    def test_shapes(self, lm):
        logits, _ = lm(tokens(), None)
        assert logits.shape == (3, 7, VOCAB)

    def test_two_training_passes_differ_only_where_something_is_random(self, lm, case):
        x = tokens()
        lm.train()
        assert torch.equal(lm(x)[0], lm(x)[0]) != is_random(case)

    def test_two_evaluation_passes_agree(self, lm):
        x = tokens()
        lm.train()
        lm(x)
        lm.eval()
        assert torch.equal(lm(x)[0], lm(x)[0])

    def test_a_draw_is_shared_by_the_batch(self, lm):
        x = tokens(batch=1).expand(4, -1)
        logits = lm.train()(x)[0]
        assert torch.allclose(logits, logits[:1].expand_as(logits), atol=1e-12)

    def test_held_draws_are_repeatable_and_end(self, lm, case):
        x = tokens()
        lm.eval()
        mean = lm(x)[0]
        with lm.sampled(0):
            first = lm(x)[0]
        with lm.sampled(1):
            second = lm(x)[0]
        with lm.sampled(0):
            again = lm(x)[0]
        assert torch.equal(first, again)
        assert torch.equal(first, second) != is_random(case)
        assert torch.equal(lm(x)[0], mean)

    def test_a_later_token_changes_no_earlier_logit(self, lm):
        x = tokens()
        changed = x.clone()
        changed[:, 4] = x[:, 4] % (VOCAB - 2) + 1
        lm.eval()
        a, b = lm(x)[0], lm(changed)[0]
        assert torch.equal(a[:, :4], b[:, :4])
        assert not torch.allclose(a[:, 4:], b[:, 4:])

    def test_batch_and_padding_change_nothing(self, lm, case):
        model = BayesLanguageModel(lm, VOCAB).eval()
        text, lengths = tokens()[:, 1:], torch.tensor([6, 3, 4])
        batch, _ = model.nll(text, lengths)
        for i, length in enumerate(lengths):
            alone, _ = model.nll(text[i : i + 1, :length], lengths[i : i + 1])
            assert torch.allclose(batch[i, : length + 1], alone[0], atol=1e-12)
            assert not batch[i, length + 1 :].any()

    def test_score_equals_batch_score_equals_teacher_forcing(self, lm):
        x = tokens(length=12)
        lm.eval()
        expected = lm(x)[0].log_softmax(-1)
        states, single = [None] * 3, None
        for t in range(1, 13):
            log_probs, states = lm.batch_score(x[:, :t], states, None)
            one, single = lm.score(x[0, :t], single, None)
            assert torch.allclose(log_probs, expected[:, t - 1], atol=1e-10)
            assert torch.allclose(one, expected[0, t - 1], atol=1e-10)

    def test_scoring_survives_reordered_hypotheses(self, lm):
        x = tokens(batch=4, length=6)
        lm.eval()
        _, states = lm.batch_score(x[:, :1], [None] * 4, None)
        order = torch.tensor([2, 0, 2])
        x = torch.cat([x[order][:, :1], x[:3, 1:]], dim=1)
        states = [lm.select_state(states, int(i)) for i in order]
        log_probs, _ = lm.batch_score(x[:, :2], states, None)
        assert torch.allclose(log_probs, lm(x[:, :2])[0].log_softmax(-1)[:, 1], atol=1e-10)

    def test_scoring_never_draws(self, lm):
        lm.train()
        x = tokens()
        lm(x)
        a, _ = lm.batch_score(x, [None] * 3, None)
        b, _ = lm.batch_score(x, [None] * 3, None)
        assert torch.equal(a, b)

    def test_every_parameter_gets_a_gradient(self, lm):
        model = BayesLanguageModel(lm, VOCAB, num_train_tokens=50).train()
        loss, _, _ = model(tokens()[:, 1:], torch.tensor([6, 3, 4]))
        loss.backward()
        for key, parameter in model.named_parameters():
            assert parameter.grad is not None and parameter.grad.abs().sum() > 0, key

    def test_kl_equals_torch_distributions(self, lm, case):
        for _, module, block in lm.random_blocks():
            torch.nn.init.normal_(getattr(module, f"{block.key}_log_std"))
            torch.nn.init.normal_(getattr(module, f"{block.key}_prior_mean"))
        expected = torch.zeros((), dtype=torch.float64)
        for _, module, block in lm.random_blocks():
            mean = block.select(getattr(module, block.parameter))
            prior_std = {"BayesLSTMLM": 1.0, "BayesTransformerLM": 1e-3**0.5}[case[0].__name__]
            posterior = Normal(mean, getattr(module, f"{block.key}_log_std").exp())
            prior = Normal(getattr(module, f"{block.key}_prior_mean"), prior_std)
            expected = expected + kl_divergence(posterior, prior).sum()
        assert torch.allclose(lm.kl(), expected, rtol=1e-10, atol=0)
        assert (lm.kl() > 0) == is_random(case)

    def test_sigma_zero_is_the_point_estimate(self, lm, case):
        point = build((case[0], case[1], {}))
        point.load_state_dict(lm.state_dict())
        for _, module, block in lm.random_blocks():
            torch.nn.init.constant_(getattr(module, f"{block.key}_log_std"), -40.0)
        x = tokens()
        assert torch.allclose(lm.train()(x)[0], point.train()(x)[0], atol=1e-6)
        assert torch.equal(lm.eval()(x)[0], point.eval()(x)[0])

    def test_point_weights_load_and_leave_the_posterior(self, lm, case):
        point = build((case[0], case[1], {}))
        for parameter in point.parameters():
            torch.nn.init.normal_(parameter)
        before = {k: v.clone() for k, v in lm.state_dict().items()}
        lm.load_state_dict(point.state_dict())
        for key, value in lm.state_dict().items():
            expected = point.state_dict().get(key, before[key])
            assert torch.equal(value, expected), key

    def test_state_dict_round_trip(self, lm, case):
        x = tokens()
        lm.train()(x)
        other = build(case)
        for parameter in other.parameters():
            torch.nn.init.normal_(parameter)
        other.load_state_dict(lm.state_dict())
        assert torch.equal(other.train()(x)[0], lm.train()(x)[0])

    def test_locations_and_sizes(self, lm, case):
        added = sum(v.numel() for k, v in lm.named_parameters() if k.endswith("_log_std"))
        assert sum(lm.location_sizes().values()) == added
        assert bool(lm.locations()) == is_random(case)

    def test_copies_are_independent(self, lm):
        other = copy.deepcopy(lm)
        x = tokens()
        assert torch.equal(lm.train()(x)[0], other.train()(x)[0])


@pytest.mark.parametrize("cls", [BayesLSTMLM, BayesTransformerLM])
def test_unknown_position_names_the_valid_ones(cls):
    with pytest.raises(ValueError, match="valid positions are"):
        cls(VOCAB, uncertainty={"cel_input@1": "bayes"})


def test_location_counts_of_the_paper():
    """One LSTM gate has D x (M + D + 2) weights: torch keeps two biases. Theta_1: D x (M + 1)."""
    lstm = BayesLSTMLM(VOCAB, unit=8, uncertainty={"cell_input@1": "bayes"})
    assert lstm.location_sizes() == {"cell_input@1": 8 * (8 + 8 + 2)}
    transformer = BayesTransformerLM(VOCAB, **TRANSFORMER, uncertainty={"ffn@1": "bayes"})
    assert transformer.location_sizes() == {"ffn@1": 12 * (8 + 1)}


@pytest.mark.parametrize("option", ["init_std", "prior_variance"])
@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf"), True])
def test_variances_must_be_positive_numbers(option, value):
    with pytest.raises(ValueError, match=f"{option} of cell_input@1"):
        BayesLSTMLM(VOCAB, unit=4, uncertainty={"cell_input@1": {"kind": "bayes", option: value}})
    with pytest.raises(ValueError, match=f"{option} of cell_input@1"):
        BayesLSTMLM(VOCAB, unit=4, uncertainty={"cell_input@1": "bayes"}, **{option: value})


@pytest.mark.parametrize(
    "options", [{"att_unit": 10, "head": 3}, {"pos_enc": "learned"}, {"embed_unit": 4}]
)
def test_sizes_that_do_not_fit(options):
    with pytest.raises(ValueError):
        BayesTransformerLM(VOCAB, **{**TRANSFORMER, **options})
