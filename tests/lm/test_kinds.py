"""Kinds of uncertainty: parameter counts, starts, units of sigma, and what does not fit."""

import contextlib

import pytest
import torch

from espnet_bayeslm.kernels import product
from espnet_bayeslm.lm import BayesLSTMLM, BayesTransformerLM
from espnet_bayeslm.training.model import BayesLanguageModel

VOCAB = 11


def added(cls, kind, location, **sizes):
    """Return the sizes of what an LM has beyond the point-estimate one, by name."""
    names = {name for name, _ in cls(VOCAB, **sizes).named_parameters()}
    lm = cls(VOCAB, **sizes, uncertainty={location: kind})
    return {name: p.shape for name, p in lm.named_parameters() if name not in names}


def total(shapes, *, dim=None):
    return sum(shape.numel() for shape in shapes.values() if dim in (None, len(shape)))


LATENT, COEFFICIENTS = "variational", {"kind": "gp", "random": ["coefficients"]}


@pytest.mark.parametrize(("a", "b"), [(4, 4), (8, 12), (6, 24)])
class TestTableII:
    """Table II, Xue et al. 2022, less the a b weights of Theta: a inputs, b hidden nodes.

    The table leaves biases out; here they belong to Theta (Eq. 15), so a stands for a + 1.
    """

    def test_feed_forward_net(self, a, b):
        net = dict(location="ffn@1", att_unit=a, head=2, unit=b, layer=1)
        assert total(added(BayesTransformerLM, "bayes", **net)) == (a + 1) * b
        assert total(added(BayesTransformerLM, "gp", **net)) == (a + 1) * b + 8 * b
        assert total(added(BayesTransformerLM, COEFFICIENTS, **net)) == 8 * b

    def test_lstm_gate(self, a, b):
        """The inputs are x and h, with torch's two biases: 2 b + 2."""
        gate = dict(location="cell_input@1", unit=b)
        assert total(added(BayesLSTMLM, "bayes", **gate)) == (2 * b + 2) * b
        assert total(added(BayesLSTMLM, "gp", **gate)) == (2 * b + 2) * b + 8 * b
        assert total(added(BayesLSTMLM, COEFFICIENTS, **gate)) == 8 * b

    @pytest.mark.parametrize("c", [None, 3, 30])
    def test_variational_has_4ac_and_a_map_back_of_cb(self, a, b, c):
        """From the hidden vector (a units here) to z (c units), and where c differs back."""
        kind, sizes = {"kind": LATENT, "latent_dim": c}, dict(att_unit=a, head=2, unit=b, layer=1)
        shapes, dim = added(BayesTransformerLM, kind, "hidden_output@1", **sizes), c or a
        back = 0 if dim == a else dim
        assert total(shapes, dim=2) == 4 * a * dim + back * a
        assert total(shapes, dim=1) == 4 * dim + (a if back else 0)


POINT_STARTS = [
    *[(BayesLSTMLM, {f"{gate}@*": "gp"}) for gate in ("all_gates", "cell_state")],
    *[(BayesLSTMLM, {f"{gate}@*": "gp"}) for gate in ("hidden_input", "layer_input")],
    (BayesLSTMLM, {"hidden_output@*": "variational"}),
    (BayesLSTMLM, {"hidden_output@*": {"kind": "variational", "latent_dim": 5}}),
    (BayesTransformerLM, {"ffn@*": "gp"}),
    (BayesTransformerLM, {"hidden_output@*": "variational"}),
]


every_start = pytest.mark.parametrize(
    ("cls", "uncertainty"), POINT_STARTS, ids=[str(u) for _, u in POINT_STARTS]
)
SIZES = {
    BayesLSTMLM: dict(unit=16, dropout_rate=0.0),
    BayesTransformerLM: dict(unit=16, att_unit=16, head=2, layer=2, dropout_rate=0.0),
}


@every_start
def test_a_pretrained_lm_keeps_its_logits_at_the_start(cls, uncertainty):
    """In float32, whatever the weights."""
    torch.manual_seed(0)
    point = cls(VOCAB, **SIZES[cls]).eval()
    for parameter in point.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    lm = cls(VOCAB, uncertainty=uncertainty, **SIZES[cls]).eval()
    lm.load_state_dict(point.state_dict())
    x = torch.randint(1, VOCAB, (4, 20))
    assert torch.allclose(lm(x)[0], point(x)[0], atol=1e-4)


@pytest.mark.skipif(
    not product.has_onednn(torch.bfloat16), reason="torch has no LSTM in bfloat16 on this CPU"
)
@every_start
def test_mixed_precision_is_near_full_precision(cls, uncertainty):
    lm = cls(VOCAB, uncertainty=uncertainty, **SIZES[cls]).train()
    for parameter in lm.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    model = BayesLanguageModel(lm, VOCAB, num_train_tokens=1000)
    text = (torch.randint(1, VOCAB - 1, (4, 9)), torch.tensor([9, 5, 2, 7]))
    losses = {}
    for enabled in (False, True):
        lm.noise_step = 0
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            losses[enabled], _, _ = model(*text)
    assert losses[True].item() == pytest.approx(losses[False].item(), rel=0.02)
    losses[True].backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())


def test_sigma_relative_to_weights_follows_a_loaded_checkpoint():
    def build(unit):
        options = dict(unit=8, init_std=0.1, init_std_unit=unit, prior_variance=0.25)
        return BayesLSTMLM(VOCAB, uncertainty={"cell_input@1": "bayes"}, **options)

    torch.manual_seed(0)
    point = BayesLSTMLM(VOCAB, unit=8)
    torch.nn.init.normal_(point.rnn.weight_hh_l0, std=3.0)
    torch.nn.init.zeros_(point.rnn.bias_hh_l0)
    spread = point.rnn.weight_hh_l0[16:24].std(correction=0).item()
    expected = {"absolute": (0.1, 0.1), "prior": (0.05, 0.05), "weights": (0.1 * spread, 0.001)}
    for unit, (weight, bias) in expected.items():
        lm = build(unit)
        lm.load_state_dict(point.state_dict())
        lm.posterior.start_untrained()
        stds = {piece.name: piece for piece in lm.posterior.blocks()}
        for name, value in (("weight_hh_l0", weight), ("bias_hh_l0", bias)):
            piece = stds[f"rnn.{name}"]
            assert piece.start_std == pytest.approx(value, rel=1e-5), (unit, name)
            assert torch.allclose(piece.std, torch.tensor(value), rtol=1e-5), (unit, name)


def test_a_trained_sigma_is_not_started_again():
    lm = BayesLSTMLM(VOCAB, unit=8, init_std_unit="weights", uncertainty={"cell_input@1": "bayes"})
    for piece in (lm.rnn.weight_hh_l0_cell_input_log_std, lm.rnn.weight_ih_l0_cell_input_log_std):
        torch.nn.init.normal_(piece)
    before = lm.rnn.weight_hh_l0_cell_input_log_std.detach().clone()
    lm.posterior.start_untrained()
    assert torch.equal(lm.rnn.weight_hh_l0_cell_input_log_std, before)


# place, kind, its options, the error
LSTM_REFUSALS = [
    ("cell_state@1", "bayes", {}, "kind 'bayes' does not fit.*point, gp"),
    ("hidden_output@1", "gp", {}, "kind 'gp' does not fit.*variational"),
    ("cell_input@1", "variational", {}, "does not fit.*point, bayes, gp"),
    ("cell_input@1", "bayes", {"init_std_unit": "x"}, "init_std_unit"),
    ("cell_input@1", "gp", {"bases": []}, "valid options are .*random, basis"),
    ("hidden_output@1", "variational", {"latent_dim": 0}, "latent_dim"),
]
TRANSFORMER_REFUSALS = [
    ("attention@1", "gp", {}, "kind 'gp' does not fit"),
    ("hidden_output@1", "variational", {"feedback": True}, "valid options are latent_dim"),
    ("ffn@1", "gp", {"basis": ["gelu", "x"]}, "basis of ffn@1.*sigmoid, tanh, relu, gelu.*'x'"),
    ("ffn@1", "gp", {"basis": []}, "basis of ffn@1"),
    ("ffn@1", "gp", {"basis": [["gelu"]]}, "basis of ffn@1"),
    ("ffn@1", "gp", {"basis": ["relu"]}, "must hold gelu"),
    ("ffn@1", "gp", {"random": "weights"}, "random of ffn@1"),
    ("ffn@1", "gp", {"random": ["coeficients"]}, "random of ffn@1.*coefficients, weights"),
    ("ffn@1", "gp", {"random": ["weights", "weights"]}, "each once"),
]


@pytest.mark.parametrize(
    "cls, place, kind, options, said",
    [
        *[(BayesLSTMLM, *refusal) for refusal in LSTM_REFUSALS],
        *[(BayesTransformerLM, *refusal) for refusal in TRANSFORMER_REFUSALS],
    ],
)
def test_what_does_not_fit(cls, place, kind, options, said):
    with pytest.raises(ValueError, match=said):
        cls(VOCAB, uncertainty={place: {"kind": kind, **options}}, **SIZES[cls])


@pytest.mark.parametrize(
    "uncertainty",
    [
        {"hidden_input@1": {"kind": "gp", "prior_variance": 2.0}, "all_gates@1": "bayes"},
        {"layer_input@1": "gp", "cell_input@1": {"kind": "gp", "init_std": 0.5}},
    ],
)
def test_weights_of_two_locations_have_one_kind(uncertainty):
    with pytest.raises(ValueError, match=r"the same weights.*different options"):
        BayesLSTMLM(VOCAB, uncertainty=uncertainty, **SIZES[BayesLSTMLM])


def test_the_kl_of_tokens_is_computed_where_it_is_wanted_only():
    lm = BayesLSTMLM(VOCAB, unit=4, uncertainty={"hidden_output@*": "variational"}).train()
    x = torch.ones(2, 3, dtype=torch.long)
    for wanted in (True, False):
        with contextlib.suppress(ZeroDivisionError), lm.drawn(token_kl=wanted) as draw:
            lm(x)
            assert (draw.token_kl() is not None) == wanted
            assert not wanted or draw.token_kl().shape == (2, 3)
            # p's networks are computed with it only
            assert all(len(latent.heads()) == (4 if wanted else 2) for _, latent in lm.latents())
            assert 1 / 0
    assert all(latent.sampling is None for _, latent in lm.latents())
