"""The new best hypothesis, and the scales that find it, against brute force."""

import gzip

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from espnet_bayeslm.nbest.types import Hypothesis, NBest
from espnet_bayeslm.rescoring.decision import ScoredList
from espnet_bayeslm.rescoring.features import FIRST_PASS
from espnet_bayeslm.rescoring.scales import Scales, read_scales
from espnet_bayeslm.utils.errors import InputError

# quarters make ties, and add without rounding
SCORE = st.integers(-40, 0).map(lambda n: n / 4)
WORDS = st.lists(st.sampled_from("abc"), max_size=4).map(tuple)
# of a list all hypotheses have a graph score, or none has
HYPOTHESES = [st.builds(Hypothesis, WORDS, SCORE, st.none(), graph) for graph in (st.none(), SCORE)]
LIST = st.one_of([st.lists(hyp, min_size=1, max_size=4) for hyp in HYPOTHESES])
LISTS = st.lists(LIST, min_size=1, max_size=4)
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


def make(rows, lm):
    """Return N-best lists, and LM scores for all of their hypotheses."""
    nbests = [NBest(f"u{n}", tuple(hyps)) for n, hyps in enumerate(rows)]
    every = {hyp.words for nbest in nbests for hyp in nbest.hypotheses}
    return nbests, {words: lm.get(words, -3.25) for words in every}


def scored(nbest, lm):
    """Return a list with the LM's scores of its hypotheses, by their words."""
    return ScoredList(nbest, {"log_prob": np.array([lm[hyp.words] for hyp in nbest.hypotheses])})


def best_hypotheses(lists, scales):
    return {item.nbest.utt: item.nbest.hypotheses[item.choice(scales)].words for item in lists}


@given(rows=LISTS, lm=LM, lmwt=st.sampled_from([0.5, 1, 2, 8]), penalty=st.sampled_from([-1, 0, 1]))
def test_best_hypotheses_are_those_of_the_formula(rows, lm, lmwt, penalty):
    nbests, lm = make(rows, lm)
    lists = [scored(nbest, lm) for nbest in nbests]
    assert best_hypotheses(lists, Scales(lmwt, penalty)) == brute_force(nbests, lm, lmwt, penalty)


def test_scores_of_zero_and_none_count_nothing():
    for am, graph, total in ((0.0, None, 0.0), (None, 0.0, 0.0), (-5.0, -1.0, -1.5)):
        item = NBest("u", (Hypothesis((), am, None, graph),))
        assert ScoredList(item, {"log_prob": np.zeros(1)}).totals(Scales(10)).tolist() == [total]


@pytest.mark.parametrize("name", ["am_score", "graph_score"])
def test_a_score_that_some_hypotheses_lack_is_not_taken_for_the_best(name):
    item = NBest("u", (Hypothesis(("a",), **{name: -5.0}), Hypothesis(("b",))))
    with pytest.raises(InputError, match=f"1 of 2 hypotheses of 'u' have a {name}"):
        ScoredList(item, {"log_prob": np.zeros(2)}).totals(Scales())


def test_an_infinite_score_has_no_posterior():
    hyps = (Hypothesis(("a",), -1.0), Hypothesis(("b",), float("inf")))
    with pytest.raises(InputError, match="am_score of hypothesis 2 of 'u' is inf"):
        ScoredList(NBest("u", hyps), {"log_prob": np.zeros(2)}).posterior(Scales())


def test_weights_of_features_stand_in_place_of_lmwt_and_penalty():
    """The first pass' LM score and the rank may have a weight; each LM too."""
    hyps = tuple(Hypothesis(("a",) * n, -10.0 * n, -float(n), -0.5) for n in (3, 1, 2))
    log_probs = np.array([-4.0, -6.0, -5.0])
    item = ScoredList(NBest("u", hyps), {"log_prob": log_probs, "log_prob.lstm": 2 * log_probs})
    same = Scales(features=(("am_score", 0.1), ("graph_score", 1), ("log_prob", 1), ("words", -2)))
    np.testing.assert_allclose(item.totals(same), item.totals(Scales(10.0, 2.0)))
    assert item.choice(same) == item.choice(Scales(10.0, 2.0)) == 1
    assert item.choice(Scales(features=(("log_prob.lstm", 1.0),))) == 0
    assert item.choice(Scales(features=(("lm_score", 1.0), ("rank", 0.1)))) == 1
    assert item.choice(Scales(features=FIRST_PASS)) == 0
    with pytest.raises(InputError, match=r"utterance 'u': no log_prob\.gru in the list"):
        item.choice(Scales(features=(("log_prob.gru", 1.0),)))


@pytest.mark.parametrize("lmwt, penalty", [(0, 0), (-1, 0), (float("inf"), 0), (1, float("nan"))])
def test_scales_that_cannot_be(lmwt, penalty):
    with pytest.raises(ValueError, match="lmwt must be positive, and both finite"):
        Scales(lmwt, penalty)


def test_scales_of_a_file(tmp_path):
    path = tmp_path / "scales.yaml"
    path.write_text("lmwt: 7\nword_penalty: -0.5\nwer: {rescored: 3.0}\n")
    assert read_scales(path) == Scales(7.0, -0.5)
    path.write_text("features: {am_score: 0.5, rank: 1}\n")
    expected = Scales(features=(("am_score", 0.5), ("rank", 1.0)))
    assert read_scales(path) == expected
    (tmp_path / "scales.yaml.gz").write_bytes(gzip.compress(path.read_bytes()))
    assert read_scales(tmp_path / "scales.yaml.gz") == expected


def test_scales_of_a_loglinear_combination_are_refused(tmp_path):
    path = tmp_path / "scales.yaml"
    path.write_text("lmwt: 7\nword_penalty: 0\ncombine: loglinear\ncomponents: {a: 1, b: 1}\n")
    with pytest.raises(InputError, match=r"which is gone\. Tune again"):
        read_scales(path)


BAD_SCALES = ["", "lmwt: 7\n", "- 7\n", "lmwt: a\nword_penalty: 0\n", "a: b: c\n", "features: 3\n"]
BAD_SCALES += ["lmwt: 0\nword_penalty: 0\n", "features: {}\n", "features: {rank: .nan}\n"]
BAD_POSTERIORS = ["{sharpness: 0}", "{sharpness: x}", "[1]", "{blunt: 1}", "{slope: -1}"]
BAD_SCALES += [f"lmwt: 10\nword_penalty: 0\nposterior: {text}\n" for text in BAD_POSTERIORS]


@pytest.mark.parametrize("content", BAD_SCALES)
def test_scales_files_that_cannot_be_used(tmp_path, content):
    path = tmp_path / "scales.yaml"
    path.write_text(content)
    with pytest.raises(InputError, match=r"scales\.yaml: no usable `lmwt` and `word_penalty`, or"):
        read_scales(path)
