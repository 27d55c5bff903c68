"""The new best hypothesis, by total score and by minimum Bayes risk, against brute force."""

import gzip
import math
import re

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from mixtures import facts_of
from oracles.alignments import edit_distance

from espnet_bayeslm.evaluation.normalization import Normalization
from espnet_bayeslm.nbest.formats import normalized
from espnet_bayeslm.nbest.types import Hypothesis, NBest
from espnet_bayeslm.rescoring.bayes_risk import (
    SAME_RISK,
    ListPosterior,
    Platt,
    edit_distances,
    least_risk,
    list_posterior,
    log_odds,
    normalized_cross_entropy,
    spread,
    tuned_posterior,
    word_confidences,
    words_in_place,
)
from espnet_bayeslm.rescoring.decision import (
    ListTally,
    RescoredList,
    ScoredList,
    calibration_text,
    choose,
)
from espnet_bayeslm.rescoring.features import FIRST_WINS, hypothesis_features
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


@given(rows=LISTS, lm=LM, lmwt=st.sampled_from([0.5, 1, 2, 8]), penalty=st.sampled_from([-1, 0, 1]))
def test_best_hypotheses_are_those_of_the_formula(rows, lm, lmwt, penalty):
    """Of the first of equals, as the documentation says it."""
    for hyps in rows:
        log_probs = [lm.get(hyp.words, -3.25) for hyp in hyps]
        totals = [
            hyp.am_score / lmwt + (hyp.graph_score or 0.0) + p - penalty * len(hyp.words)
            for hyp, p in zip(hyps, log_probs, strict=True)
        ]
        item = NBest("u", tuple(hyps))
        features = hypothesis_features(item, {"log_prob": np.array(log_probs)})
        assert ScoredList(item, ()).choice(features, Scales(lmwt, penalty)) == totals.index(
            max(totals)
        )


def test_scores_that_are_zero_or_none():
    for am, graph, total in ((0.0, None, 0.0), (None, 0.0, 0.0), (-5.0, -1.0, -1.5)):
        item = NBest("u", (Hypothesis((), am, None, graph),))
        features = hypothesis_features(item, {"log_prob": np.zeros(1)})
        assert ScoredList(item, ()).totals(features, Scales(10)).values.tolist() == [total]


def test_weights_of_features_stand_in_place_of_lmwt_and_penalty():
    """The first pass' LM score and the rank may have a weight; each LM too."""
    hyps = tuple(Hypothesis(("a",) * n, -10.0 * n, -float(n), -0.5) for n in (3, 1, 2))
    log_probs = np.array([-4.0, -6.0, -5.0])
    nbest = NBest("u", hyps)
    own = hypothesis_features(nbest, {"log_prob": log_probs, "log_prob.lstm": 2 * log_probs})
    item = ScoredList(nbest, ())
    same = Scales(features=(("am_score", 0.1), ("graph_score", 1), ("log_prob", 1), ("words", -2)))
    same_totals, others = (item.totals(own, scales) for scales in (same, Scales(10.0, 2.0)))
    np.testing.assert_allclose(same_totals.values, others.values)
    assert item.choice(own, same) == item.choice(own, Scales(10.0, 2.0)) == 1
    assert item.choice(own, Scales(features=(("log_prob.lstm", 1.0),))) == 0
    assert item.choice(own, Scales(features=(("lm_score", 1.0), ("rank", 0.1)))) == 1
    assert item.choice(own, Scales(features=FIRST_WINS)) == 0
    with pytest.raises(InputError, match=r"utterance 'u': no log_prob\.gru in the list"):
        item.choice(own, Scales(features=(("log_prob.gru", 1.0),)))


def test_lists_stay_as_they_came_with_every_decision():
    texts = ("x y z", "a b", "a b c", "a b d", "a b e", "a b f")
    hyps = [Hypothesis(tuple(text.split()), -1.0) for text in texts]
    item = ScoredList(NBest("u", tuple(hyps)), ())
    own = hypothesis_features(item.nbest, {})
    assert item.choice(own, Scales(features=FIRST_WINS), "mbr") == 0
    assert item.choice(own, Scales(features=(("is_first", 0.1),)), "mbr") == 1


@pytest.mark.parametrize("decision", ["max", "mbr"])
@pytest.mark.parametrize("weights", [None, (("am_score", 1.0), ("rank", 2.0), ("is_first", 0.5))])
def test_several_spellings_decide_as_one_text_with_their_probability(decision, weights):
    """What is chosen is told by its place in the list as it came."""
    texts = {"X c": [0.25], "a c": [0.17, 0.16, 0.15, 0.04], "b": [0.1]}
    lm = {"X c": -3.0, "a c": -3.5, "b": -4.0}
    places = {text: [t for t in texts for _ in texts[t]].index(text) for text in texts}

    def chosen(rows):
        hyps = tuple(Hypothesis(tuple(t.split()), float(np.log(p))) for t, p in rows)
        item = next(iter(normalized([NBest("u", hyps)], Normalization("punct"))))
        ends = [np.array([[0.0] * len(h.words) + [lm[" ".join(h.words)]]]) for h in item.hypotheses]
        scales = Scales(1.0, features=weights, decision=decision)
        return choose(ScoredList(item, tuple(ends)), facts_of("x"), scales, confidence=True)

    signs = ["", ".", "!", ";"]
    apart = chosen([(t + s, p) for t in texts for s, p in zip(signs, texts[t], strict=False)])
    once = chosen([(text, sum(shares)) for text, shares in texts.items()])
    assert apart.words == once.words == (("X", "c") if weights else ("a", "c"))
    assert apart.best == places[" ".join(once.words)] and len(apart.lm_scores) == 6
    np.testing.assert_allclose(apart.masses, once.masses)
    assert apart.expected_errors == pytest.approx(once.expected_errors)


@pytest.mark.parametrize("lmwt, penalty", [(0, 0), (-1, 0), (float("inf"), 0), (1, float("nan"))])
def test_scales_that_cannot_be(lmwt, penalty):
    with pytest.raises(ValueError, match="lmwt must be positive, and both finite"):
        Scales(lmwt, penalty)


def test_a_decision_that_is_none():
    with pytest.raises(InputError, match="the decision is 'best', not one of max, mbr"):
        Scales(decision="best")


def test_scales_may_weigh_each_lm_of_a_mixture():
    """The better hypothesis by the second LM alone is not the better one by the mixture."""
    hyps = tuple(Hypothesis((word,), -1.0) for word in "ab")
    rows = (np.log([[0.9, 0.9], [0.1, 0.2]]), np.log([[0.1, 0.2], [0.4, 0.5]]))
    item = ScoredList(NBest("u", hyps), rows)
    for features, best in (((("log_prob", 1.0),), 0), ((("log_prob.y", 1.0),), 1)):
        assert choose(item, facts_of("x", "y"), Scales(features=features)).best == best


def test_scales_of_a_file(tmp_path):
    path = tmp_path / "scales.yaml"
    path.write_text("lmwt: 7\nword_penalty: -0.5\nwer: {rescored: 3.0}\n")
    assert read_scales(path) == Scales(7.0, -0.5) and read_scales(path).tuned_on is None
    # an older file, and one of scales that were given
    for text in ("tuned_on: dev\n", "counted: {unit: word, tuned_on: dev}\n"):
        path.write_text(f"lmwt: 7\nword_penalty: -0.5\n{text}")
        assert read_scales(path).tuned_on == "dev"
    path.write_text("features: {am_score: 0.5, rank: 1}\n")
    expected = Scales(features=(("am_score", 0.5), ("rank", 1.0)))
    assert read_scales(path) == expected
    (tmp_path / "scales.yaml.gz").write_bytes(gzip.compress(path.read_bytes()))
    assert read_scales(tmp_path / "scales.yaml.gz") == expected


BAD_SCALES = ["", "lmwt: 7\n", "- 7\n", "lmwt: a\nword_penalty: 0\n", "a: b: c\n", "features: 3\n"]
BAD_SCALES += ["lmwt: 7\nword_penalty: 0\ncounted: [1]\n"]
BAD_SCALES += ["lmwt: 0\nword_penalty: 0\n", "features: {}\n", "features: {rank: .nan}\n"]
BAD_POSTERIORS = ["{sharpness: 0}", "{sharpness: x}", "[1]", "{blunt: 1}", "{slope: -1}"]
BAD_SCALES += [f"lmwt: 10\nword_penalty: 0\nposterior: {text}\n" for text in BAD_POSTERIORS]


@pytest.mark.parametrize("content", BAD_SCALES)
def test_scales_files_that_cannot_be_used(tmp_path, content):
    path = tmp_path / "scales.yaml"
    path.write_text(content)
    expected = r"(no usable `lmwt` and `word_penalty`, or|not a yaml file|expected a yaml mapping)"
    with pytest.raises(InputError, match=rf"scales\.yaml: {expected}") as error:
        read_scales(path)
    assert str(error.value).endswith("Give the scales.yaml of a tuned `bayeslm rescore`.")
    assert not re.search(r"\n|Error\(|object at", str(error.value))


HYPS = st.lists(st.sampled_from("abc"), max_size=5).map(tuple)
# integer totals: sums in any order are the same to the last digits that matter
WEIGHED = st.lists(st.tuples(HYPS, st.integers(-6, 6)), min_size=1, max_size=7)


def best_alignments(words, other):
    """All alignments with the fewest errors: of each word whether the other has it there."""
    if not words:
        yield len(other), ()
        return
    found = [(cost + 1, (False, *rest)) for cost, rest in best_alignments(words[1:], other)]
    if other:
        wrong = words[0] != other[0]
        paired = best_alignments(words[1:], other[1:])
        found += [(cost + wrong, (not wrong, *rest)) for cost, rest in paired]
        found += [(cost + 1, rest) for cost, rest in best_alignments(words, other[1:])]
    least = min(cost for cost, _ in found)
    yield from {item for item in found if item[0] == least}


@settings(max_examples=50)
@example(items=[((), 0), ((), 5), (("a",), 0), (("a",), 5), (("a", "a"), 0)], sharpness=4.0)
@given(items=WEIGHED, sharpness=st.sampled_from([0.25, 1.0, 4.0]))
def test_risk_is_that_of_exhaustive_enumeration(items, sharpness):
    hyps, totals = [words for words, _ in items], np.array([float(total) for _, total in items])
    mass = [np.exp(sharpness * total) for total in totals]
    posterior = list_posterior(totals, sharpness)
    np.testing.assert_allclose(posterior, np.array(mass) / sum(mass), rtol=1e-12)
    pairs = list(zip(hyps, posterior, strict=True))
    risks = [sum(p * edit_distance(ref, hyp) for ref, p in pairs) for hyp in hyps]
    distances = edit_distances(hyps)
    np.testing.assert_allclose(distances @ posterior, risks, atol=1e-12)
    best = least_risk(posterior, distances)
    # the first of those with the least
    assert risks[best] == pytest.approx(min(risks), abs=1.1 * SAME_RISK * max(risks))
    assert all(risk > risks[best] for risk in risks[:best])


@settings(max_examples=50)
@given(HYPS, st.lists(HYPS, min_size=1, max_size=4))
def test_places_are_those_of_an_alignment_with_the_fewest_errors(words, others):
    found = words_in_place(words, others)
    assert found.shape == (len(others), len(words))
    for other, row in zip(others, found, strict=True):
        assert tuple(row) in {places for _, places in best_alignments(words, other)}


def test_confidence_of_a_word_by_hand():
    hyps = [("the", "cat", "sat"), ("the", "cat"), ("a", "cat", "sat"), ()]
    posterior = np.array([0.4, 0.3, 0.2, 0.1])
    places = words_in_place(hyps[0], hyps)
    np.testing.assert_allclose(word_confidences(posterior, places), [0.7, 0.9, 0.6], rtol=1e-12)
    assert word_confidences(posterior, words_in_place((), hyps)).shape == (0,)
    np.testing.assert_allclose(
        list_posterior(np.array([-np.inf, 1.0, 1.0])), [0, 0.5, 0.5], rtol=1e-12
    )
    # no overflow however large the totals are
    np.testing.assert_allclose(list_posterior(np.array([1e8, 0.0]), 5.0), [1.0, 0.0], atol=1e-12)


@pytest.mark.parametrize(
    "totals, named",
    [
        ([0.0, np.nan], "hypothesis 2 of 2 is nan"),
        ([np.inf, 0.0], "hypothesis 1 of 2 is inf"),
        ([-np.inf, -np.inf], "hypothesis 1 of 2 is -inf"),
    ],
)
def test_no_posterior_without_finite_totals(totals, named):
    with pytest.raises(InputError, match=named):
        list_posterior(np.array(totals))


LETTERS = list("abcdefgh")


def make_lists(*, num_lists, sharpness, seed=0, size=6):
    """Return lists of which each reference is drawn from the posterior of known sharpness."""
    rng = np.random.default_rng(seed)
    totals, hyps, refs = [], [], []
    for _ in range(num_lists):
        base = rng.choice(LETTERS, size=5)
        changed = rng.random((size, 5)) < 0.4
        lists = np.where(changed, rng.choice(LETTERS, size=(size, 5)), base)
        values = rng.normal(size=size) * 4
        ref = rng.choice(size, p=list_posterior(values, sharpness))
        totals.append(values)
        hyps.append([tuple(map(str, row)) for row in lists])
        refs.append(hyps[-1][ref])
    return totals, hyps, refs


def test_the_sharpness_that_made_the_references_is_found():
    sharpness = 0.6
    totals, hyps, refs = make_lists(num_lists=1500, sharpness=sharpness)
    best = [int(values.argmax()) for values in totals]
    found = tuned_posterior(totals, hyps, refs, best)
    # the grid's step is a factor of 1.19; a few steps are within sampling error
    assert abs(np.log2(found.sharpness / sharpness)) < 0.8
    # calibrated by nature: the scaling is nearly the identity
    assert found.slope == pytest.approx(1.0, abs=0.35) and abs(found.offset) < 0.35
    test_totals, test_hyps, test_refs = make_lists(num_lists=1500, sharpness=sharpness, seed=1)
    gaps = []
    for posterior in (ListPosterior(1000.0), found):
        confidences, correct = [], []
        for values, words, ref in zip(test_totals, test_hyps, test_refs, strict=True):
            k = int(values.argmax())
            masses = word_confidences(
                list_posterior(values, posterior.sharpness), words_in_place(words[k], words)
            )
            confidences.extend(posterior.scaling.calibrated(masses))
            correct.extend(words_in_place(words[k], [ref])[0])
        gaps.append(abs(np.mean(confidences) - np.mean(correct)))
    assert gaps[1] < 0.02 < gaps[0]


def test_lists_that_say_nothing():
    assert tuned_posterior([np.zeros(1)], [[()]], [("a",)], [0]) == ListPosterior()
    assert spread([np.zeros(3), np.array([-np.inf, 1.0])]) == 1.0
    single = tuned_posterior([np.zeros(1)] * 3, [[("a", "b")]] * 3, [("a", "c")] * 3, [0] * 3)
    # half of the words are right, and nothing tells which
    masses = single.scaling.calibrated(np.ones(1))
    assert masses == pytest.approx([0.5], abs=1e-3)


def test_very_sure_words_keep_their_order():
    """From 0 to 1; the log-odds are finite, and their own but for the surest words."""
    low = np.array([0.0, 1e-12, 1e-9, 1e-6, 9e-5, 1.1e-4, 0.01, 0.3])
    values = np.array([*low, *(1 - low[::-1])])
    odds = log_odds(values)
    for found in (odds, Platt(0.9, 0.1).calibrated(values)):
        assert np.isfinite(found).all() and (np.diff(found) > 0).all()
    inner = values[5:-5]
    np.testing.assert_allclose(odds[5:-5], np.log(inner / (1 - inner)), rtol=1e-12)
    np.testing.assert_allclose(odds, -odds[::-1], rtol=1e-9)


@pytest.mark.parametrize("confidence", [0.0, 1e-9, 1e-7, 1e-5, 0.4])
def test_normalized_cross_entropy_of_words_that_were_thought_wrong(confidence):
    """A confidence below 1e-7 counts as 1e-7; 1 - c of a wrong word is c of a right one."""
    right = np.array([True, False, True, True])
    sure = np.array([confidence, 0.2, 0.9, 0.7])
    entropy = -np.log(0.75) * 0.75 - np.log(0.25) * 0.25
    cost = -np.log([max(confidence, 1e-7), 0.8, 0.9, 0.7]).mean()
    assert normalized_cross_entropy(sure, right) == pytest.approx(1 - cost / entropy, rel=1e-9)
    assert normalized_cross_entropy(1 - sure, ~right) == pytest.approx(1 - cost / entropy, rel=1e-6)


@pytest.mark.parametrize("size", [1, 3, 7, 11, 40])
def test_risks_are_those_of_the_surest_words(size):
    rng = np.random.default_rng(size)
    values = rng.permutation(np.linspace(0.1, 0.9, size))
    ref = tuple(map(str, range(size)))
    words = tuple("wrong" if rng.random() < 0.4 else word for word in ref)
    tally = ListTally({"u": ref})
    nbest = NBest("u", (Hypothesis(words),))
    tally.add(RescoredList(nbest, (0.0,), (values,), 0, masses=values, confidences=values))
    found, surest = tally.calibration(), [words[n] for n in np.argsort(-values)]
    for percent in range(10, 101, 10):
        part = surest[: math.ceil(percent * size / 100)]
        assert found[f"risk_at_{percent}"] == pytest.approx(part.count("wrong") / len(part))


@pytest.mark.parametrize(
    "values", [(0.0, 1.0, 0.0), (np.inf, 1.0, 0.0), (1.0, -1.0, 0.0), (1.0, 1.0, np.nan)]
)
def test_a_posterior_checks_itself(values):
    with pytest.raises(ValueError, match="sharpness must be positive"):
        ListPosterior(*values)


def test_errors_and_words_with_confidences_are_counted():
    refs = {"u1": ("a", "b"), "u2": ("a",), "u3": ("c",)}
    tally = ListTally(refs)
    assert tally.calibration() == {}
    for utt, ref in refs.items():
        words = ("a",) if utt == "u3" else ref
        values = np.full(len(words), 0.75)
        nbest = NBest(utt, (Hypothesis(words),))
        item = RescoredList(nbest, (0.0,), (values,), 0, masses=values, confidences=values)
        tally.add(item)
    assert list(tally.errors) == ["first pass", "rescored", "oracle"]
    calibration = tally.calibration()
    assert tally.errors["rescored"].errors == 1 and calibration["words"] == 4
    assert ", AUROC " in calibration_text(calibration) and ", NCE " in calibration_text(calibration)
    # three of the four words are right, all at one confidence
    assert calibration["risk_at_50"] == calibration["risk_at_100"] == 0.25
    assert calibration["nce_of_confidence"] == pytest.approx(0, abs=1e-12)
    right = ListTally({"u1": refs["u1"]})
    values = np.full(2, 0.75)
    nbest = NBest("u1", (Hypothesis(refs["u1"]),))
    right.add(RescoredList(nbest, (0.0,), (values,), 0, masses=values, confidences=values))
    named = {name for name in right.calibration() if not name.startswith("risk_at_")}
    assert named == {"words", "ece_of_posterior", "ece_of_confidence"}
    assert right.calibration()["risk_at_10"] == 0
    del calibration["auroc_of_posterior"]
    assert "AUROC" not in calibration_text(calibration)


@pytest.mark.parametrize("control, last", [(1, "without the LM"), (2, "first pass")])
def test_the_last_step_is_from_the_better_control(control, last):
    """A control that is worse than the first pass does not make an LM look better."""
    hyps = tuple(map(Hypothesis, (("a", "x"), ("a", "b"), ("x", "y"), ("a", "b"))))
    tally = ListTally({"u": ("a", "b")})
    tally.add(RescoredList(NBest("u", hyps), (), (), 3, control=control))
    found = tally.tests()
    assert {*found} == {"first pass", "without the LM"} and [*found][-1] == last
    assert list(tally.errors) == ["first pass", "without the LM", "rescored", "oracle"]
