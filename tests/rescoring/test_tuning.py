"""Tuned scales: they make the errors that tuning reports, in memory and from their file."""

import dataclasses
import itertools

import numpy as np
import pytest
from mixtures import facts_of

from espnet_bayeslm.bin.rescore import write_settings
from espnet_bayeslm.evaluation.wer import Counted
from espnet_bayeslm.nbest.segments import Segment
from espnet_bayeslm.nbest.types import Hypothesis, NBest
from espnet_bayeslm.report import weight_sweep
from espnet_bayeslm.rescoring.decision import ListTally, ScoredList, choose
from espnet_bayeslm.rescoring.feature_tuning import chosen_errors
from espnet_bayeslm.rescoring.features import hypothesis_features, totals
from espnet_bayeslm.rescoring.rescore import RescoredLists, tune_and_choose
from espnet_bayeslm.rescoring.rescore_options import RescoreOptions
from espnet_bayeslm.rescoring.scales import read_scales, scales_of
from espnet_bayeslm.rescoring.tuning import (
    FACTORS,
    Sweep,
    fold_lists,
    hypothesis_errors,
    sweep,
    tune,
)

PRESENT = {"all": 1, "half": 2, "none": 1000}
NAMES = ("am_score", "graph_score", "log_prob", "words", "rank", "lm_score")
MIXTURE = facts_of("lm")


def simulated(seed, num_lists=40, *, present=("all", "all", "none"), ties=False, num_lms=1):
    """Return lists of errors at random, with am, graph and lm score in all, half or none of them.

    Graph scores know nothing and are large. With `ties` all scores are small whole numbers.
    """
    rng = np.random.default_rng(seed)
    lists, refs = [], {}
    for u in range(num_lists):
        ref = [f"w{k}" for k in rng.integers(10, 99, 6)]
        hyps, log_probs = [], []
        for k in range(4):
            wrong = int(rng.integers(0 if k else 1, 4))
            words = [*(f"x{k}" for _ in range(wrong)), *ref[wrong:], *["y"] * (k % 2)]
            scores = np.array([-10.0 * wrong, 0.0, -wrong]) + rng.normal(size=3) * [4, 60, 1]
            lm = -wrong + rng.normal(size=num_lms) * 0.4
            if ties:
                scores, lm = (scores / [10, 60, 1]).round(), lm.round()
            shown = [
                float(score) if u % PRESENT[where] == 0 and where != "none" else None
                for score, where in zip(scores, present, strict=True)
            ]
            hyps.append(Hypothesis(tuple(words), shown[0], shown[2], shown[1]))
            each = np.full((num_lms, len(words) + 1), -1.0)
            each[:, -1] = 4.0 + lm - len(words) - 8.0
            log_probs.append(each)
        lists.append(ScoredList(NBest(f"u{u}", tuple(hyps)), tuple(log_probs)))
        refs[f"u{u}"] = tuple(ref)
    return lists, refs


def errors_of(lists, refs, mixture, scales):
    places = [choose(item, mixture, scales).best for item in lists]
    errors = hypothesis_errors([item.nbest for item in lists], refs)
    return sum(int(counts[k]) for counts, k in zip(errors, places, strict=True))


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("graph", PRESENT)
def test_scales_choose_what_the_tuned_weights_choose(graph, ties):
    """For any weights of any features that all lists have, of either sign."""
    rng = np.random.default_rng(0)
    lists, _ = simulated(1, present=("all", graph, "all"), ties=ties)
    features = [hypothesis_features(item.nbest, item.lm_scores(MIXTURE)) for item in lists]
    names = [name for name in NAMES if all(name in own for own in features)]
    for size in range(1, len(names) + 1):
        for some in itertools.combinations(names, size):
            values = rng.choice([1.0, 1.0, 0.5, -0.5, 0.01, 0.3], size)
            weights = dict(zip(some, values.tolist(), strict=True))
            scales = scales_of(weights, has_graph=graph != "none")
            for item, own in zip(lists, features, strict=True):
                assert item.choice(own, scales) == totals(own, weights).best(), weights


KALDI_FORMS = {
    "am and LM": ({"am_score": 0.1, "log_prob": 1.0}, "none", True),
    "words": ({"am_score": 0.1, "log_prob": 1.0, "words": 0.5}, "none", True),
    "one weight of graph and LM": (
        {"am_score": 0.05, "graph_score": 0.5, "log_prob": 0.5},
        "all",
        True,
    ),
    "graph apart": ({"am_score": 0.07, "graph_score": -0.0008, "log_prob": 0.76}, "all", False),
    "graph left out": ({"am_score": 0.1, "log_prob": 1.0}, "half", False),
    "no LM": ({"am_score": 0.1, "words": 1.0}, "none", False),
    "an LM against": ({"am_score": 0.1, "log_prob": -1.0}, "none", False),
    "acoustics against": ({"am_score": -0.1, "log_prob": 1.0}, "none", False),
    "more": ({"am_score": 0.1, "log_prob": 1.0, "rank": 0.3}, "none", False),
}


@pytest.mark.parametrize("case", KALDI_FORMS)
def test_lmwt_and_penalty_alone_stand_for_their_own_formula_only(case):
    weights, graph, kaldi = KALDI_FORMS[case]
    scales = scales_of(weights, has_graph=graph != "none")
    assert (scales.features is None) == kaldi
    content = scales.settings(MIXTURE)
    # an LMWT is the ratio of two weights of one sign: where the LM has none there is none
    known = weights.get("log_prob", 0) > 0 and weights["am_score"] > 0
    assert ("lmwt" in content) == ("word_penalty" in content) == known
    if known:
        assert content["lmwt"] == pytest.approx(weights["log_prob"] / weights["am_score"])


MIXTURES = [
    (dict(present=present, ties=ties), {})
    for present, ties in [
        (("all", "all", "none"), False),
        (("all", "half", "none"), False),
        (("all", "all", "all"), True),
        (("half", "none", "all"), False),
        (("none", "none", "none"), True),
        (("all", "none", "half"), True),
    ]
]
MIXTURES += [
    (dict(num_lms=2, present=("all", "all", "none")), dict(tune_lms=True)),
    (dict(num_lms=3, ties=True), dict(tune_lms=True)),
    (dict(num_lms=2, present=("all", "half", "none")), {}),
]


@pytest.mark.parametrize("lists, how", MIXTURES)
def test_the_errors_that_tuning_reports_are_those_of_scales_yaml(lists, how, tmp_path, monkeypatch):
    monkeypatch.setattr(weight_sweep, "write_sweep", lambda *_, **__: None)
    num_lms = lists.get("num_lms", 1)
    lists, refs = simulated(3, 24, **lists)
    given = facts_of(*(f"lm{k}" for k in range(num_lms)))
    tuned = tune(lists, refs, given, RescoreOptions.of(tune_folds=2, **how))
    reported = tuned.chosen.errors["tuned"]
    assert (
        reported == errors_of(lists, refs, given, tuned.scales) <= tuned.chosen.errors["first pass"]
    )
    of_each = how.get("tune_lms", False)
    features = [
        hypothesis_features(item.nbest, item.lm_scores(given, of_each=of_each)) for item in lists
    ]
    errors = hypothesis_errors([item.nbest for item in lists], refs)
    own = dict(tuned.chosen.weights)
    assert reported == chosen_errors(features, errors, own).sum()
    done = RescoredLists(iter(()), given, tuned.scales, tuned)
    write_settings(tmp_path, done, ListTally(None), Counted())
    scales = read_scales(tmp_path / "scales.yaml")
    assert errors_of(lists, refs, given, scales) == reported


def test_folds_are_said_and_have_no_say_in_their_scales():
    lists, refs = simulated(4, 24, present=("all", "none", "none"))
    nbests, options = [item.nbest for item in lists], RescoreOptions.of(tune_folds=2, folds=3)
    tuned = tune_and_choose(lists, MIXTURE, options, refs=refs).tuned
    held_out = sum(fold.rescored for fold in tuned.folds)
    first = sum(fold.first_pass for fold in tuned.folds)
    assert first == tuned.chosen.errors["first pass"]
    assert sum(fold.num_lists for fold in tuned.folds) == len(lists)
    lines = tuned.fold_lines()
    for number, (fold, line) in enumerate(zip(tuned.folds, lines, strict=False), 1):
        assert line.startswith(f"fold {number} ({fold.num_lists} lists): ")
        assert f"errors {fold.first_pass} -> {fold.rescored} ({fold.control} without" in line
    assert lines[4].startswith(f"errors: {first} in the first pass, {held_out} held out in 3 folds")
    kept = tuned._replace(
        chosen=tuned.chosen._replace(errors={**tuned.chosen.errors, "tuned": 999})
    )
    assert kept.fold_lines()[-1].startswith("the weights of all lists make more errors than")
    by_risk = dataclasses.replace(tuned.scales, decision="mbr")
    alone = [fold._replace(control=None) for fold in tuned.folds]
    lines = tuned._replace(scales=by_risk, risk_errors=77, folds=alone).fold_lines()
    assert "held out in 3 folds, 77 with the weights of all lists" in lines[4]
    assert not any("without the LM" in line for line in lines)
    recordings = {utt: f"r{n % 3}" for n, utt in enumerate(refs)}
    parts = fold_lists(nbests, 2, recordings)
    assert not set.intersection(*({n % 3 for n in part.tolist()} for part in parts))
    # the worst hypothesis of each held list becomes right
    held = [nbests[k] for k in fold_lists(nbests, 3)[0]]
    refs = {**refs, **{nbest.utt: nbest.hypotheses[-1].words for nbest in held}}
    before = tuned.folds
    after = tune_and_choose(lists, MIXTURE, options, refs=refs).tuned.folds
    assert after[0].scales == before[0].scales
    assert all(a.scales != b.scales for a, b in zip(after[1:], before[1:], strict=True))


RNG = np.random.default_rng(0)
SWEPT = ("am_score", "graph_score", "log_prob", "words")
LISTS = [{name: RNG.normal(size=6) for name in SWEPT} for _ in range(20)]
ERRORS = [RNG.integers(0, 9, 6) for _ in LISTS]
WEIGHTS = {"am_score": 0.5, "graph_score": 1.0, "log_prob": 1.0, "words": -0.25}
SCALED = ((("am_score",), 0.9), (("graph_score", "log_prob"), 0.5), (("words",), -0.1))


def test_the_two_weights_after_the_largest_are_multiplied():
    """Three tenths added up or multiplied differ by rounding only."""
    found = sweep(LISTS, ERRORS, weights=WEIGHTS, scaled=SCALED)
    assert found.names == ("graph_score+log_prob", "words")
    np.testing.assert_array_equal(found.weights[1], -0.25 * FACTORS)
    assert found.errors.shape == (21, 21) and FACTORS[10] == 1
    for a in (0, 10, 17):
        for b in (3, 10, 20):
            total = 0
            for features, errors in zip(LISTS, ERRORS, strict=True):
                lm = features["graph_score"] + features["log_prob"]
                totals = 0.5 * features["am_score"] + FACTORS[a] * lm
                totals = totals - 0.25 * FACTORS[b] * features["words"]
                total += errors[totals.argmax()]
            assert found.errors[a, b] == total
    lists = [{"a": np.array([0.3, 0.1]), "b": np.array([0.0, 0.1]), "c": np.array([0.0, 0.1])}] * 2
    errors = [np.array([1, 5])] * 2
    weights = dict.fromkeys("abc", 1.0)
    assert 0.1 + 0.1 + 0.1 > 0.3
    found = sweep(lists, errors, weights=weights, scaled=[((name,), 1.0) for name in "abc"])
    assert found.errors[10, 10] == chosen_errors(lists, errors, weights).sum() == 2


def test_a_name_may_have_a_plus():
    lists = [{"c+d" if name == "words" else name: v for name, v in f.items()} for f in LISTS]
    weights = {"c+d" if name == "words" else name: v for name, v in WEIGHTS.items()}
    found = sweep(lists, ERRORS, weights=weights, scaled=[*SCALED[:2], (("c+d",), -0.1)])
    expected = sweep(LISTS, ERRORS, weights=WEIGHTS, scaled=SCALED)
    np.testing.assert_array_equal(found.errors, expected.errors)


def test_as_it_came_or_at_the_edge():
    lists = [{**features, "is_first": np.eye(6)[0]} for features in LISTS]
    found = sweep(lists, ERRORS, weights={"is_first": 1.0}, scaled=())
    assert found.names == ("", "") and found.errors.tolist() == [[sum(e[0] for e in ERRORS)]]
    assert not found.at_edge
    found = sweep(LISTS, ERRORS, weights=WEIGHTS, scaled=SCALED)
    errors = np.full((21, 21), 9)
    errors[0, 5] = 3
    assert found._replace(errors=errors).at_edge
    errors[7, 5] = 3
    assert not found._replace(errors=errors).at_edge


def test_the_edge_of_the_sweep_is_a_warning(monkeypatch, caplog):
    lists, refs = simulated(3)
    monkeypatch.setattr(Sweep, "at_edge", True)
    tune(lists, refs, MIXTURE)
    assert "the errors are fewest at the edge of the sweep: see sweep.png" in caplog.text


def test_recordings_stay_whole_in_folds():
    lists, refs = simulated(3)
    segments = {f"u{n}": Segment("short" if n % 4 == 0 else "long", float(n)) for n in range(40)}
    known = [segments[item.nbest.utt].recording for item in lists]
    held = [
        dataclasses.replace(item, nbest=dataclasses.replace(item.nbest, recording=recording))
        for item, recording in zip(lists, known, strict=True)
    ]
    options = RescoreOptions.of(folds=2)
    for items, own in ((lists, RescoreOptions.of(folds=2, segments=segments)), (held, options)):
        tuned = tune_and_choose(items, MIXTURE, own, refs=refs).tuned
        assert sorted(fold.num_lists for fold in tuned.folds) == [10, 30]


def test_each_lm_has_a_score_where_it_is_asked_for():
    (item,), _ = simulated(3, 1, num_lms=2)
    plain = facts_of("a", "b")
    every = {"log_prob", "log_prob.a", "log_prob.b"}
    assert {*item.lm_scores(plain)} == {"log_prob"}
    assert {*item.lm_scores(plain, of_each=True)} == every
