"""Kinds of uncertainty and super-networks: sizes, starts, units of sigma, and what does not fit."""

import contextlib
import copy
import itertools

import pytest
import torch
from lm_cases import LSTM, SEARCHES, TRANSFORMER, VOCAB, build, latent, make_generic, search, tokens
from lm_cases import name as case_name

from espnet_bayeslm.kernels import product
from espnet_bayeslm.kinds.gp import GPActivation
from espnet_bayeslm.kinds.search import choices as choices_of
from espnet_bayeslm.layers.transformer import TransformerBlock
from espnet_bayeslm.lm import BayesLSTMLM, BayesTransformerLM
from espnet_bayeslm.training.model import BayesLanguageModel


def added(cls, kind, location, **sizes):
    """Return the sizes of what an LM has beyond the point-estimate one, by name."""
    names = {name for name, _ in cls(VOCAB, **sizes).named_parameters()}
    lm = cls(VOCAB, **sizes, uncertainty={location: kind})
    return {name: p.shape for name, p in lm.named_parameters() if name not in names}


def total(shapes, *, dim=None):
    return sum(shape.numel() for shape in shapes.values() if dim in (None, len(shape)))


COEFFICIENTS = {"kind": "gp", "random": ["coefficients"]}


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
        kind, sizes = latent(c), dict(att_unit=a, head=2, unit=b, layer=1)
        shapes, dim = added(BayesTransformerLM, kind, "hidden_output@1", **sizes), c or a
        back = 0 if dim == a else dim
        assert total(shapes, dim=2) == 4 * a * dim + back * a
        assert total(shapes, dim=1) == 4 * dim + (a if back else 0)


POINT_STARTS = [
    *[(BayesLSTMLM, {f"{place}@*": "gp"}) for place in ("all_gates", "cell_state")],
    *[(BayesLSTMLM, {f"{place}@*": "gp"}) for place in ("hidden_input", "layer_input")],
    (BayesLSTMLM, {"hidden_output@*": "variational"}),
    (BayesLSTMLM, {"hidden_output@*": latent(5)}),
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
    lm = make_generic(cls(VOCAB, uncertainty=uncertainty, **SIZES[cls])).train()
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


def test_sigma_relative_to_weights_follows_an_untrained_checkpoint():
    point = BayesLSTMLM(VOCAB, unit=8)
    torch.nn.init.normal_(point.rnn.weight_hh_l0, std=3.0)
    torch.nn.init.zeros_(point.rnn.bias_hh_l0)
    spread = point.rnn.weight_hh_l0[16:24].std(correction=0).item()
    expected = {"absolute": (0.1, 0.1), "prior": (0.05, 0.05), "weights": (0.1 * spread, 0.001)}
    for unit, (weight, bias) in expected.items():
        options = dict(init_std=0.1, init_std_unit=unit, prior_variance=0.25)
        lm = BayesLSTMLM(VOCAB, unit=8, uncertainty={"cell_input@1": "bayes"}, **options)
        lm.load_state_dict(point.state_dict())
        lm.posterior.start_untrained()
        stds = {piece.name: piece for piece in lm.posterior.blocks()}
        for name, value in (("weight_hh_l0", weight), ("bias_hh_l0", bias)):
            piece = stds[f"rnn.{name}"]
            assert piece.start_std == pytest.approx(value, rel=1e-5), (unit, name)
            assert torch.allclose(piece.std, torch.tensor(value), rtol=1e-5), (unit, name)
    make_generic(lm)
    trained = copy.deepcopy(lm.state_dict())
    lm.posterior.start_untrained()
    torch.testing.assert_close(lm.state_dict(), trained, rtol=0, atol=0)


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


@pytest.mark.parametrize("case", SEARCHES, ids=map(case_name, SEARCHES))
class TestEveryPath:
    def test_forced_to_a_kind_it_is_the_lm_of_that_kind(self, case):
        """That LM loads its weights and its posterior from the super-network's checkpoint."""
        cls, conf, uncertainty = case
        lm, x = make_generic(build(case)).eval(), tokens()
        places, found = zip(*choices_of(lm), strict=True)
        every = list(itertools.islice(itertools.product(*(c.kinds for c in found)), 5000))
        some = [*every[:: max(1, len(every) // 3)], every[-1]]
        kind_of = {p: k if isinstance(k, str) else k["kind"] for p, k in uncertainty.items()}
        fixed = {p: k for p, k in uncertainty.items() if kind_of[p] != "search"}
        # the paths' tables differ, and a tied output projection is the table of the first path
        if "embedding" in uncertainty and conf.get("tie_weights", True):
            some = some[:1]
        for kinds in some:
            choices = dict(zip(places, kinds, strict=True))
            one = make_generic(build((cls, conf, {**fixed, **choices})))
            one.load_state_dict(lm.state_dict())
            for choice, kind in zip(found, kinds, strict=True):
                # all of the mixture to one path, whose gradient is zero from then on
                chosen = torch.tensor([name == kind for name in choice.kinds])
                choice.weights.data.copy_(torch.where(chosen, 0.0, -torch.inf))
            assert torch.allclose(lm(x)[0], one.eval()(x)[0], atol=1e-10), choices


def test_equation_35_of_one_gate():
    """Half tanh of one path's pre-activation, half of the other's: a single step by hand."""
    lm = build((BayesLSTMLM, {**LSTM, "nlayers": 1}, {"cell_input@1": search("point", "bayes")}))
    make_generic(lm, std=0.5)
    weights = lm.search["cell_input@1"].weights.data.copy_(torch.tensor([0.3, -0.4]))
    a_point, a_bayes = weights.softmax(0)
    rnn, rows = lm.rnn, slice(16, 24)
    x = torch.randn(1, 1, 8, dtype=torch.float64)
    lm.eval()
    pre = x[0] @ rnn.weight_ih_l0.T + rnn.bias_ih_l0 + rnn.bias_hh_l0
    path = rnn.search_bayes_cell_input_l0
    other = x[0] @ path.weight_ih.T + path.bias_ih + path.bias_hh
    cell = a_point * pre[:, rows].tanh() + a_bayes * other.tanh()
    expected = pre[:, 24:].sigmoid() * (pre[:, :8].sigmoid() * cell).tanh()
    assert torch.allclose(rnn(x)[0][0], expected, atol=1e-12)


def test_a_feed_forward_net_mixes_after_different_functions_and_before_equal_ones():
    for kinds in (("point", "bayes"), ("point", "bayes", "gp")):
        lm = build((BayesTransformerLM, TRANSFORMER, {"ffn@1": search(*kinds)}))
        make_generic(lm, std=0.5)
        block = lm.eval().blocks[0]
        assert isinstance(block, TransformerBlock)
        shares = lm.search["ffn@1"].weights.softmax(0)
        x = torch.randn(2, 3, 8, dtype=torch.float64)
        names = ["linear1", *(f"linear1.search_{kind}" for kind in kinds[1:])]
        paths = [block.get_submodule(path) for path in names]
        outputs = [x @ path.weight.T + path.bias for path in paths]
        gelu = torch.nn.functional.gelu
        if len(kinds) == 2:
            expected = gelu(sum(s * y for s, y in zip(shares, outputs, strict=True)))
        else:
            process = GPActivation.forward(block.activation, outputs[2])
            values = [gelu(outputs[0]), gelu(outputs[1]), process]
            expected = sum(s * y for s, y in zip(shares, values, strict=True))
        assert torch.allclose(block.activation(block.linear1(x)), expected, atol=1e-12)


def test_candidates_are_what_the_position_offers_with_options():
    lm = build(
        (BayesLSTMLM, LSTM, {"cell_input@1": "search", "all_gates@2": search("gp", "bayes")})
    )
    kinds = {place: choice.kinds for place, choice in choices_of(lm)}
    assert kinds["cell_input@1"] == ("point", "bayes", "gp")
    assert kinds["forget_gate@2"] == ("bayes", "gp") and len(kinds) == 5
    gp = {"kind": "gp", "random": ["coefficients"], "basis": ["tanh", "relu"]}
    lm = build((BayesLSTMLM, LSTM, {"cell_input@1": search("point", gp)}))
    assert lm.location_sizes() == {"cell_input@1": 16}
    assert lm.search["cell_input@1"].candidates[1].options["basis"] == ["tanh", "relu"]


@pytest.mark.parametrize(
    "uncertainty, said",
    [
        ({"cell_input@1": search()}, "candidates.*expected a list of two or more of point, bayes"),
        ({"cell_input@1": search("bayes")}, "expected a list of two or more"),
        ({"cell_input@1": {"kind": "search", "candidates": "bayes"}}, "expected a list"),
        ({"cell_input@1": search("point", "bayes", "point")}, "point is named twice"),
        ({"cell_input@1": search("point", "variational")}, "'variational' does not fit"),
        ({"cell_input@1": search("point", "search")}, "'search' does not fit"),
        ({"cell_state@1": search("point", "bayes")}, "'bayes' does not fit.*point, gp"),
        ({"cell_input@1": "search", "cell_input@1-2": "bayes"}, "cell_input@1 is named twice"),
        ({"cell_input@1": {"kind": "search", "kinds": ["gp"]}}, "valid options are candidates"),
    ],
)
def test_bad_search_spaces(uncertainty, said):
    with pytest.raises(ValueError, match=said):
        BayesLSTMLM(VOCAB, unit=8, uncertainty=uncertainty)


def test_reset_makes_gaussian_processes_what_they_replace():
    uncertainty = {"cell_input@1": "gp", "cell_state@1": "gp"}
    lm = build((BayesLSTMLM, LSTM, uncertainty))
    start = {name: p.clone() for name, p in lm.named_parameters() if ".gp_" in name}
    make_generic(lm)
    assert not any(torch.equal(lm.get_parameter(name), value) for name, value in start.items())
    lm.reset_posterior()
    for name, value in start.items():
        torch.testing.assert_close(lm.get_parameter(name), value)


def test_reset_makes_all_paths_equal():
    lm = build((BayesLSTMLM, LSTM, {"cell_input@1": search("point", "bayes")}))
    lm = make_generic(lm)
    lm.reset_posterior()
    path = lm.rnn.search_bayes_cell_input_l0
    assert torch.equal(path.weight_hh, lm.rnn.weight_hh_l0[16:24])
