"""Super-networks: what they mix, where they start, and the LMs that they hold."""

import itertools

import pytest
import torch
from lm_cases import LSTM, SEARCHES, TRANSFORMER, VOCAB, build, make_generic, search, tokens
from lm_cases import name as case_name

from espnet_bayeslm.kinds.search import choices as choices_of
from espnet_bayeslm.layers.gp import GPActivation
from espnet_bayeslm.layers.transformer import TransformerBlock
from espnet_bayeslm.lm import BayesLSTMLM, BayesTransformerLM


def is_tied(case):
    return "embedding" in case[2] and case[1].get("tie_weights", True)


def architectures(lm, most=3):
    """Return some of the combinations of kinds, among them the first and the last."""
    places = [place for place, _ in choices_of(lm)]
    every = list(itertools.islice(itertools.product(*(c.kinds for _, c in choices_of(lm))), 5000))
    step = max(1, len(every) // most)
    return [dict(zip(places, kinds, strict=True)) for kinds in [*every[::step], every[-1]]]


def derived(case, choices):
    """Return the LM of one architecture."""
    fixed = {place: kind for place, kind in case[2].items() if not is_search(kind)}
    return build((case[0], case[1], {**fixed, **choices}))


def is_search(kind):
    return (kind if isinstance(kind, str) else kind["kind"]) == "search"


def give_all(choice, kind):
    """Give all of a mixture to one path; its gradient is zero from then on."""
    chosen = torch.tensor([name == kind for name in choice.kinds])
    choice.weights.data.copy_(torch.where(chosen, 0.0, -torch.inf))


@pytest.mark.parametrize("case", SEARCHES, ids=map(case_name, SEARCHES))
class TestEveryPath:
    def test_forced_to_a_kind_it_is_the_lm_of_that_kind(self, case):
        """That LM loads its weights and its posterior from the super-network's checkpoint."""
        lm = make_generic(build(case)).eval()
        x, every = tokens(), architectures(lm)
        # the paths' tables differ, and a tied output projection is the table of the first path
        for choices in every[:1] if is_tied(case) else every:
            one = make_generic(derived(case, choices))
            one.load_state_dict(lm.state_dict())
            for place, choice in choices_of(lm):
                give_all(choice, choices[place])
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


def test_candidates_are_what_the_position_offers_point_first():
    lm = build(
        (BayesLSTMLM, LSTM, {"cell_input@1": "search", "all_gates@2": search("gp", "bayes")})
    )
    kinds = {place: choice.kinds for place, choice in choices_of(lm)}
    assert kinds["cell_input@1"] == ("point", "bayes", "gp")
    assert kinds["forget_gate@2"] == ("bayes", "gp") and len(kinds) == 5


def test_a_candidate_has_options():
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


def test_reset_makes_all_paths_equal():
    lm = build((BayesLSTMLM, LSTM, {"cell_input@1": search("point", "bayes")}))
    lm = make_generic(lm)
    lm.reset_posterior()
    path = lm.rnn.search_bayes_cell_input_l0
    assert torch.equal(path.weight_hh, lm.rnn.weight_hh_l0[16:24])
