"""What every LM must do, at every location: one test class over all of them."""

import copy

import pytest
import torch
from torch.distributions import Normal, kl_divergence

from espnet_bayeslm.bayes.kinds import select_rows
from espnet_bayeslm.lm import BayesESPnetLM, BayesLSTMLM, BayesTransformerLM
from espnet_bayeslm.training.model import BayesLanguageModel

VOCAB = 17
LSTM = dict(unit=8, nlayers=2, dropout_rate=0.0)
TRANSFORMER = dict(att_unit=8, head=2, unit=12, layer=3, dropout_rate=0.0)
SEQ_RNN = dict(backbone="seq_rnn", backbone_conf=dict(unit=8, nlayers=2, tie_weights=True))
NO_DROPOUT = dict(dropout_rate=0.0, positional_dropout_rate=0.0, attention_dropout_rate=0.0)
SIZES = dict(att_unit=8, embed_unit=6, head=2, unit=12, layer=3, pos_enc="sinusoidal")
ESPNET_TRANSFORMER = dict(backbone="transformer", backbone_conf={**SIZES, **NO_DROPOUT})

GP_COEFFICIENTS = {"kind": "gp", "random": ["coefficients"]}
GP_WEIGHTS = {"kind": "gp", "random": ["weights"], "basis": ["gelu", "tanh", "sigmoid"]}
GATES = ["input_gate", "forget_gate", "cell_input", "output_gate"]


def search(*candidates):
    return {"kind": "search", "candidates": list(candidates)}


POINT_BAYES, POINT_GP = search("point", "bayes"), search("point", "gp")
WHOLE_LSTM = ["cell_state", "hidden_input", "layer_input"]
# Super-networks: what is mixed, alone and together.
SEARCHES = [
    *[(BayesLSTMLM, LSTM, {f"{gate}@1": "search"}) for gate in GATES],
    (BayesLSTMLM, LSTM, {"all_gates@*": POINT_BAYES}),
    (BayesLSTMLM, LSTM, {f"{gate}@*": POINT_GP for gate in [*GATES[2:], "hidden_input"]}),
    *[(BayesLSTMLM, LSTM, {f"{position}@2": POINT_GP}) for position in WHOLE_LSTM],
    (BayesLSTMLM, LSTM, {"cell_input@1": search("gp", "bayes"), "hidden_input@1": "gp"}),
    (BayesLSTMLM, LSTM, {"output_gate@1": POINT_GP, "layer_input@1": "gp", "cell_state@1": "gp"}),
    (BayesLSTMLM, LSTM, {"hidden_output@*": "search"}),
    (BayesLSTMLM, LSTM, {"embedding": "search"}),
    (BayesLSTMLM, {**LSTM, "tie_weights": False}, {"embedding": "search"}),
    (BayesLSTMLM, LSTM, {f"{p}@1": "search" for p in [*GATES, *WHOLE_LSTM, "hidden_output"]}),
    *[
        (BayesTransformerLM, TRANSFORMER, {place: "search"})
        for place in ["embedding", "attention@2", "ffn@1", "ffn_out@*", "hidden_output@3"]
    ],
    (BayesTransformerLM, TRANSFORMER, {"ffn@*": POINT_BAYES}),
    (BayesTransformerLM, TRANSFORMER, {"ffn@1-2": POINT_GP, "ffn@3": search("bayes", "gp")}),
    (
        BayesTransformerLM,
        {**TRANSFORMER, "norm_first": True, "tie_weights": False},
        {
            place: "search"
            for place in ["embedding", "attention@*", "ffn@*", "ffn_out@1-2", "hidden_output@*"]
        },
    ),
]
# Every location of every kind, and kinds together.
CASES = [
    (BayesLSTMLM, LSTM, {}),
    (BayesLSTMLM, {**LSTM, "tie_weights": False}, {}),
    (BayesLSTMLM, LSTM, {"embedding": "bayes"}),
    (BayesLSTMLM, {**LSTM, "tie_weights": False}, {"embedding": "bayes", "cell_input@2": "bayes"}),
    *[(BayesLSTMLM, LSTM, {f"{gate}@1": "bayes"}) for gate in GATES],
    (BayesLSTMLM, LSTM, {"cell_input@1-2": "bayes"}),
    (BayesLSTMLM, LSTM, {"all_gates@2": "bayes"}),
    (BayesLSTMLM, {**LSTM, "nlayers": 1}, {"cell_input@1": "bayes", "input_gate@1": "bayes"}),
    *[
        (BayesLSTMLM, LSTM, {f"{position}@{layer}": "gp"})
        for position in [*GATES, "all_gates", "cell_state", "hidden_input", "layer_input"]
        for layer in ("1", "*")
    ],
    (BayesLSTMLM, LSTM, {"cell_input@2": GP_COEFFICIENTS}),
    (BayesLSTMLM, LSTM, {"cell_input@2": GP_WEIGHTS, "cell_state@2": GP_WEIGHTS}),
    (BayesLSTMLM, LSTM, {"hidden_output@1": "variational"}),
    (BayesLSTMLM, LSTM, {"hidden_output@*": "variational"}),
    (BayesLSTMLM, LSTM, {"hidden_output@2": {"kind": "variational", "latent_dim": 5}}),
    (BayesLSTMLM, LSTM, {"hidden_output@1": {"kind": "variational", "latent_dim": 11}}),
    (BayesLSTMLM, LSTM, {"hidden_output@*": {"kind": "variational", "feedback": True}}),
    (
        BayesLSTMLM,
        LSTM,
        {
            "all_gates@1": "bayes",
            "cell_state@1": "gp",
            "hidden_input@1": GP_COEFFICIENTS,
            "layer_input@2": "gp",
            "hidden_output@1": "variational",
            "hidden_output@2": {"kind": "variational", "feedback": True},
        },
    ),
    (BayesTransformerLM, TRANSFORMER, {}),
    (BayesTransformerLM, TRANSFORMER, {"embedding": "bayes"}),
    (BayesTransformerLM, TRANSFORMER, {"attention@1": "bayes"}),
    (BayesTransformerLM, TRANSFORMER, {"ffn@1-2": "bayes"}),
    (BayesTransformerLM, TRANSFORMER, {"ffn_out@3": "bayes"}),
    (BayesTransformerLM, {**TRANSFORMER, "norm_first": True}, {"ffn@*": "bayes"}),
    (BayesTransformerLM, TRANSFORMER, {"ffn@1": "gp"}),
    (BayesTransformerLM, TRANSFORMER, {"ffn@1,3": GP_COEFFICIENTS}),
    (BayesTransformerLM, {**TRANSFORMER, "norm_first": True}, {"ffn@2": GP_WEIGHTS}),
    (BayesTransformerLM, TRANSFORMER, {"hidden_output@1": "variational"}),
    (
        BayesTransformerLM,
        {**TRANSFORMER, "norm_first": True},
        {"hidden_output@*": {"kind": "variational", "latent_dim": 3}},
    ),
    (
        BayesTransformerLM,
        {**TRANSFORMER, "tie_weights": False, "embed_unit": 6, "pos_enc": None},
        {
            "embedding": "bayes",
            "attention@*": "bayes",
            "ffn@1-2": "gp",
            "ffn@3": "bayes",
            "ffn_out@*": "bayes",
            "hidden_output@2": "variational",
        },
    ),
    (BayesESPnetLM, SEQ_RNN, {}),
    (BayesESPnetLM, SEQ_RNN, {"cell_input@1": "bayes", "embedding": "bayes"}),
    (BayesESPnetLM, ESPNET_TRANSFORMER, {"ffn@*": "bayes"}),
    (
        BayesESPnetLM,
        ESPNET_TRANSFORMER,
        {"embedding": "bayes", "attention@*": "bayes", "ffn@1-2": "bayes", "ffn_out@3": "bayes"},
    ),
    *SEARCHES,
]


def name(case):
    cls, conf, uncertainty = case
    kinds = [
        k if isinstance(k, str) else "_".join(map(str, k.values())) for k in uncertainty.values()
    ]
    kinds = ["".join(c for c in kind if c.isalnum() or c in "_ ") for kind in kinds]
    places = [f"{place}:{kind}" for place, kind in zip(uncertainty, kinds, strict=True)]
    return f"{cls.__name__}-{','.join(places) or 'point'}-{len(conf)}"


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


def is_latent(case):
    return any(place.startswith("hidden_output") for place in case[2])


def has_noise_of_sequences(case):
    """Whether equal sequences of a batch may have other noise."""
    return is_latent(case) or any("noise" in kind for kind in case[2].values())


def make_generic(lm, std=0.1):
    """Move every parameter away from where it starts (latent outputs start with q = p)."""
    for parameter in lm.parameters():
        parameter.data += std * torch.randn_like(parameter)
    return lm


def make_certain(lm):
    """Set every standard deviation to almost nothing."""
    for block in lm.posterior.blocks():
        torch.nn.init.constant_(block.tensor("_log_std"), -40.0)
    for _, latent in lm.latents():
        torch.nn.init.zeros_(latent.infer_log_std.weight)
        torch.nn.init.constant_(latent.infer_log_std.bias, -40.0)


BATCH = (
    torch.randint(1, VOCAB - 1, (3, 6), generator=torch.Generator().manual_seed(0)),
    torch.tensor([6, 3, 4]),
)


def training_model(lm):
    """Make the model of training, with every gradient there is."""
    return BayesLanguageModel(make_generic(lm), VOCAB, num_train_tokens=50).train()


def repeat_noise(lm):
    """Make the next training step draw what the first one did."""
    lm.noise.step = 0


def taken(model):
    """Take the gradients away from the parameters, by name."""
    found = {key: parameter.grad for key, parameter in model.named_parameters()}
    model.zero_grad()
    return found


def gradients(model, batch=BATCH):
    """Compute the gradients of the first training step of a batch, by parameter."""
    repeat_noise(model.lm)
    model(*batch)[0].backward()
    return taken(model)


def total_norm(grads):
    return torch.cat([gradient.flatten() for gradient in grads.values()]).norm()


class TestContract:
    def test_two_training_passes_differ_only_where_something_is_random(self, lm, case):
        x = tokens()
        lm.train()
        assert torch.equal(lm(x)[0], lm(x)[0]) != is_random(case)

    def test_a_draw_is_shared_by_the_batch_but_for_latents_and_where_noise_says_so(self, lm, case):
        x = tokens(batch=1).expand(4, -1)
        logits = lm.train()(x)[0]
        shared = torch.allclose(logits, logits[:1].expand_as(logits), atol=1e-12)
        assert shared != has_noise_of_sequences(case)

    def test_a_held_draw_is_shared_by_the_batch(self, lm):
        x = tokens(batch=1).expand(4, -1)
        with lm.sampled(3):
            logits = lm.eval()(x)[0]
        assert torch.allclose(logits, logits[:1].expand_as(logits), atol=1e-12)

    def test_scoring_with_a_held_draw_equals_teacher_forcing(self, lm):
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

    def test_scoring_never_draws(self, lm):
        lm.train()
        x = tokens()
        lm(x)
        a, _ = lm.batch_score(x, [None] * 3, None)
        b, _ = lm.batch_score(x, [None] * 3, None)
        assert torch.equal(a, b)

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

    def test_each_gradient_has_memory_of_its_own(self, lm):
        owners = {}
        for key, gradient in gradients(training_model(lm)).items():
            owners.setdefault(gradient.untyped_storage().data_ptr(), []).append(key)
        assert [keys for keys in owners.values() if len(keys) > 1] == []

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

    def test_a_batch_accumulated_twice_has_twice_its_gradients(self, lm):
        model = training_model(lm)
        once = gradients(model)
        for _ in range(2):
            repeat_noise(lm)
            model(*BATCH)[0].backward()
        for key, gradient in taken(model).items():
            assert torch.equal(gradient, 2 * once[key]), key

    def test_clipping_scales_all_gradients_by_one_factor(self, lm):
        model = training_model(lm)
        before = gradients(model)
        repeat_noise(lm)
        model(*BATCH)[0].backward()
        norm = total_norm(before)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1 * norm)
        after = taken(model)
        factor = total_norm(after) / norm
        assert torch.isclose(factor, torch.tensor(0.1).double(), rtol=1e-3)
        for key, gradient in after.items():
            assert torch.allclose(gradient, factor * before[key], rtol=1e-12, atol=0), key

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
            f"{name}.{path}.{parameter}": select_rows(getattr(layer, own), rows)
            for name, layer in lm.named_modules()
            for path, source in getattr(layer, "sources", {}).items()
            for parameter, (own, rows) in source.items()
        }
        for key, value in lm.state_dict().items():
            expected = point.state_dict().get(key, before[key])
            if key in copies:  # of a search's paths
                expected = copies[key]
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
        latent = sum(layer.dim for _, layer in lm.latents())
        assert sum(lm.location_sizes().values()) == added + latent
        assert bool(lm.locations()) == is_random(case)

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


@pytest.mark.parametrize("option", ["init_std", "prior_variance"])
@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf"), True])
def test_variances_must_be_positive_numbers(option, value):
    with pytest.raises(ValueError, match=f"{option} of cell_input@1"):
        BayesLSTMLM(VOCAB, unit=4, uncertainty={"cell_input@1": {"kind": "bayes", option: value}})
    with pytest.raises(ValueError, match=f"{option} of cell_input@1"):
        BayesLSTMLM(VOCAB, unit=4, uncertainty={"cell_input@1": "bayes"}, **{option: value})


@pytest.mark.parametrize("kind", ["bayes", "gp"])
@pytest.mark.parametrize("value", [1e-10, 100.0])
def test_a_start_that_would_have_no_gradient_is_an_error(kind, value):
    for cls, conf, place in (
        (BayesLSTMLM, LSTM, "cell_input@1"),
        (BayesTransformerLM, TRANSFORMER, "ffn@2"),
    ):
        with pytest.raises(ValueError, match=f"init_std of {place}: expected a start between"):
            cls(VOCAB, **conf, uncertainty={place: {"kind": kind, "init_std": value}})
        latent = {"hidden_output@1": {"kind": "variational", "init_std": value}}
        with pytest.raises(ValueError, match="init_std of hidden_output@1: expected a start"):
            cls(VOCAB, **conf, uncertainty=latent)


def test_a_start_relative_to_the_weights_is_checked_as_it_is():
    options = dict(init_std=1e-8, init_std_unit="weights")  # of weights that spread by 0.2
    with pytest.raises(ValueError, match="init_std of cell_input@1: expected a start between"):
        BayesLSTMLM(VOCAB, **LSTM, uncertainty={"cell_input@1": "bayes"}, **options)


@pytest.mark.parametrize("value", [3e-9, 50.0])
def test_a_start_within_the_range_has_a_gradient(value):
    lm = BayesLSTMLM(VOCAB, **LSTM, uncertainty={"cell_input@1": "bayes"}, init_std=value)
    model = BayesLanguageModel(lm.double(), VOCAB, num_train_tokens=50).train()
    for key, gradient in gradients(model).items():
        assert gradient.any() or not key.endswith("_log_std"), key


@pytest.mark.parametrize(
    "options", [{"att_unit": 10, "head": 3}, {"pos_enc": "learned"}, {"embed_unit": 4}]
)
def test_sizes_that_do_not_fit(options):
    with pytest.raises(ValueError):
        BayesTransformerLM(VOCAB, **{**TRANSFORMER, **options})
