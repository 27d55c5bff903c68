"""The new best hypothesis, and the scales that find it, against brute force."""

import itertools

import numpy as np
import pytest
from alignment_naive import edit_distance
from hypothesis import given, settings
from hypothesis import strategies as st

from espnet_bayeslm.nbest.types import Hypothesis, NBest
from espnet_bayeslm.rescoring.decision import (
    Scales,
    distinct_hypotheses,
    read_scales,
    scored_list,
)
from espnet_bayeslm.rescoring.sweep import LMWTS, WORD_PENALTIES, tune
from espnet_bayeslm.utils.errors import InputError

# quarters make ties, and add without rounding
SCORE = st.integers(-40, 0).map(lambda n: n / 4)
WORDS = st.lists(st.sampled_from("abc"), max_size=4).map(tuple)
HYPOTHESIS = st.builds(Hypothesis, WORDS, SCORE, st.none(), st.one_of(st.none(), SCORE))
LISTS = st.lists(st.lists(HYPOTHESIS, min_size=1, max_size=4), min_size=1, max_size=4)
LM = st.dictionaries(WORDS, SCORE)


def total(hyp, lm_log_prob, lmwt, word_penalty):
    """Return what is maximised, as the documentation says it."""
    graph = hyp.graph_score or 0.0
    return hyp.am_score / lmwt + graph + lm_log_prob - word_penalty * len(hyp.words)


def brute_force(nbests, lm, lmwt, word_penalty):
    """Return {utterance: words of the first best}."""
    best = {}
    for nbest in nbests:
        totals = [total(h, lm[h.words], lmwt, word_penalty) for h in nbest.hypotheses]
        best[nbest.utt] = nbest.hypotheses[totals.index(max(totals))].words
    return best


def errors_of(best, refs):
    return sum(edit_distance(refs[utt], words) for utt, words in best.items())


def make(rows, lm):
    """Return N-best lists, and LM scores for all of their hypotheses."""
    nbests = [NBest(f"u{n}", tuple(hyps)) for n, hyps in enumerate(rows)]
    return nbests, {words: lm.get(words, -3.25) for words in distinct_hypotheses(nbests)}


def scored(nbest, lm):
    """Return a list with the LM's scores of its hypotheses, by their words."""
    return scored_list(nbest, [lm[hyp.words] for hyp in nbest.hypotheses])


def best_hypotheses(lists, scales):
    return {item.utt: item.hypotheses[item.choice(scales)] for item in lists}


@settings(deadline=None)
@given(rows=LISTS, lm=LM, lmwt=st.sampled_from([0.5, 1, 2, 8]), penalty=st.sampled_from([-1, 0, 1]))
def test_best_hypotheses_are_those_of_the_formula(rows, lm, lmwt, penalty):
    nbests, lm = make(rows, lm)
    lists = [scored(nbest, lm) for nbest in nbests]
    assert best_hypotheses(lists, Scales(lmwt, penalty)) == brute_force(nbests, lm, lmwt, penalty)


def test_the_old_lm_score_is_not_counted():
    hyps = [Hypothesis(("a",), -10.0, lm, -1.0) for lm in (-1.0, -99.0, None)]
    lists = [scored(NBest("u", (hyp,)), {("a",): -2.0}) for hyp in hyps]
    assert [item.lm.tolist() for item in lists] == [[-3.0]] * 3


@settings(deadline=None, max_examples=80)
@given(
    rows=LISTS,
    lm=LM,
    refs=st.lists(WORDS, min_size=4, max_size=4),
    lmwts=st.lists(st.sampled_from([1, 2, 4, 8, 16]), min_size=1, max_size=3, unique=True),
    penalties=st.lists(st.sampled_from([-2, -1, 0, 1, 4]), min_size=1, max_size=3, unique=True),
)
def test_tuned_scales_have_the_fewest_errors_and_are_nearest_to_the_defaults(
    rows, lm, refs, lmwts, penalties
):
    nbests, lm = make(rows, lm)
    refs = {nbest.utt: ref for nbest, ref in zip(nbests, refs, strict=False)}
    tried = {
        pair: errors_of(brute_force(nbests, lm, *pair), refs)
        for pair in itertools.product(lmwts, penalties)
    }
    fewest = [pair for pair, errors in tried.items() if errors == min(tried.values())]
    by_penalty = min(abs(penalty) for _, penalty in fewest)
    fewest = [pair for pair in fewest if abs(pair[1]) == by_penalty]
    by_lmwt = min(abs(lmwt - 10) for lmwt, _ in fewest)
    fewest = [pair for pair in fewest if abs(pair[0] - 10) == by_lmwt]
    scales = tune(
        [scored(nbest, lm) for nbest in nbests],
        refs,
        lmwts=np.array(lmwts, float),
        word_penalties=np.array(penalties, float),
    )
    assert (scales.lmwt, scales.word_penalty) == min(fewest)


def test_without_a_difference_the_defaults_stay():
    lists = [scored(NBest("u", (Hypothesis(("a",), -1.0),)), {("a",): -1.0})]
    assert tune(lists, {"u": ("b",)}) == Scales()
    assert Scales().lmwt in LMWTS and Scales().word_penalty in WORD_PENALTIES


def test_tuning_finds_the_scale_that_is_needed():
    """The acoustic score is right by 6, the LM wrong by 1: only LMWT < 6 helps."""
    hyps = (Hypothesis(("a",), -6.0), Hypothesis(("b",), 0.0))
    lists = [scored(NBest("u", hyps), {("a",): -1.0, ("b",): -2.0})]
    assert tune(lists, {"u": ("b",)}).lmwt == 5.5
    assert tune(lists, {"u": ("a",)}) == Scales()


def test_a_penalty_is_taken_only_where_it_is_needed():
    """LMWT 10 with -0.5 helps as much as LMWT < 6 with no penalty."""
    hyps = (Hypothesis(("a",), -6.0), Hypothesis(("b", "b"), 0.0))
    lists = [scored(NBest("u", hyps), {("a",): -1.0, ("b", "b"): -2.0})]
    refs = {"u": ("b", "b")}
    assert best_hypotheses(lists, Scales(10.0, -0.5)) == refs
    assert tune(lists, refs) == Scales(5.5, 0.0)


def test_tuning_needs_the_references_of_all_lists():
    lists = [scored(NBest("u", (Hypothesis(("a",), -1.0),)), {("a",): -1.0})]
    for refs in ({}, {"u": (), "v": ()}):
        with pytest.raises(InputError, match="Give files with the same utterances"):
            tune(lists, refs)


def test_distinct_hypotheses():
    nbests = [
        NBest("u", (Hypothesis(("b",), -1.0), Hypothesis((), -2.0))),
        NBest("v", (Hypothesis((), -1.0), Hypothesis(("a",), -2.0), Hypothesis(("b",), 0.0))),
    ]
    assert distinct_hypotheses(nbests) == [("b",), (), ("a",)]


@pytest.mark.parametrize("lmwt, penalty", [(0, 0), (-1, 0), (float("inf"), 0), (1, float("nan"))])
def test_scales_that_cannot_be(lmwt, penalty):
    with pytest.raises(ValueError, match="lmwt must be positive, and both finite"):
        Scales(lmwt, penalty)


def test_scales_of_a_file(tmp_path):
    path = tmp_path / "scales.yaml"
    path.write_text("lmwt: 7\nword_penalty: -0.5\nwer: {rescored: 3.0}\n")
    assert read_scales(path) == Scales(7.0, -0.5)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "lmwt: 7\n",
        "- 7\n",
        "lmwt: a\nword_penalty: 0\n",
        "lmwt: 0\nword_penalty: 0\n",
        "a: b: c\n",
    ],
)
def test_scales_files_that_cannot_be_used(tmp_path, content):
    path = tmp_path / "scales.yaml"
    path.write_text(content)
    with pytest.raises(InputError, match=r"scales\.yaml: no usable `lmwt` and `word_penalty`"):
        read_scales(path)
