"""The control: scales that are tuned in the same way without the scores of the new LMs."""

import dataclasses

import numpy as np
import pytest
import yaml
from mixtures import facts_of

from espnet_bayeslm.bin.rescore import print_report, write_settings, written_lists
from espnet_bayeslm.evaluation.wer import ALL_WORDS, Counted
from espnet_bayeslm.nbest.types import Hypothesis, NBest
from espnet_bayeslm.rescoring.decision import ListTally, ScoredList, choose
from espnet_bayeslm.rescoring.feature_tuning import AS_IT_CAME, feature_sets
from espnet_bayeslm.rescoring.features import sign_of
from espnet_bayeslm.rescoring.rescore import RescoredLists, tune_and_choose
from espnet_bayeslm.rescoring.rescore_options import RescoreOptions
from espnet_bayeslm.rescoring.scales import Scales, read_scales

MIXTURE = facts_of("lm")


def simulated(num_lists=24, *, know=0.0, own=2.0, seed=0):
    """Return scored lists of four hypotheses and their references.

    `know` and `own` say how much the LM's and the recogniser's score know of the errors.
    """
    rng = np.random.default_rng(seed)
    lm_rng = np.random.default_rng(seed + 1000)
    lists, refs = [], {}
    for number in range(num_lists):
        ref = tuple(rng.choice(list("abcdef"), size=rng.integers(3, 8)))
        hyps, log_probs = [], []
        for wrong in rng.permutation(4):
            words = ("x",) * min(wrong, len(ref)) + ref[wrong:] + ("y",) * int(rng.integers(2))
            hyps.append(Hypothesis(words, -own * wrong + rng.normal(), -float(rng.normal() ** 2)))
            score = -know * wrong + lm_rng.normal()
            log_probs.append(np.full((1, len(words) + 1), score / (len(words) + 1)))
        nbest = NBest(f"u{number}", tuple(hyps))
        lists.append(ScoredList(nbest, tuple(log_probs)))
        refs[nbest.utt] = ref
    return lists, refs


def rescoring(lists, refs, *, mixture=MIXTURE, **options):
    return tune_and_choose(lists, mixture, RescoreOptions.of(tune_folds=2, **options), refs=refs)


def tallied(items, refs, counting=ALL_WORDS):
    tally = ListTally(refs, counting)
    for item in items:
        tally.add(item)
    return tally


@pytest.mark.parametrize(
    "names, small",
    [
        ("am_score lm_score words", (("am_score",), ("lm_score",), ("words",))),
        (
            "am_score graph_score lm_score words",
            (("am_score",), ("graph_score", "lm_score"), ("words",)),
        ),
        ("am_score words", (("am_score",), ("words",))),
        ("words", (("rank",), ("words",))),
    ],
)
def test_without_a_new_lm_the_recognisers_own_takes_its_place(names, small):
    names = [*names.split(), "rank", "is_first"]
    sets = feature_sets(names, normalised_scores=False)
    first, middle, full = sets.values()
    assert (first, middle) == (small, (*small, ("is_first",)))
    assert {name for column in full for name in column} == set(names)
    assert not any("LM" in name for name in sets)


def several(lists):
    """Return lists with the scores of two more LMs of the same knowledge, the last subtracted."""
    found = []
    for item in lists:
        rows = [np.concatenate([each, each, -2 * each]) for each in item.log_probs]
        found.append(ScoredList(item.nbest, tuple(rows)))
    return found


TWO_LMS = facts_of("a", "b", subtracted=["c"])


@pytest.mark.parametrize(
    "options, decision",
    [({}, "max"), ({}, "mbr"), ({"folds": 2}, "max"), ({"tune_lms": True}, "max")],
)
def test_the_control_does_not_depend_on_the_lm(options, decision):
    """Not on its mixture, nor on an LM's own column, nor on a subtracted LM."""
    found = []
    for know in (0.0, 3.0):
        # a set of three weights needs 24 lists
        lms = TWO_LMS if options.get("tune_lms") else MIXTURE
        num_lists = 64 if lms is TWO_LMS else 48 if options else 24
        lists, refs = simulated(num_lists, know=know)
        lists = several(lists) if lms is TWO_LMS else lists
        done = rescoring(lists, refs, mixture=lms, decision=decision, **options)
        found.append(done.tuned.control.held_out)
        control, places = done.scales.control, [item.control for item in done]
        assert control is not None and None not in places
        own = control.weights(())
        assert own == dict(control.features) and not any(map(sign_of, own))
        # the recogniser's own score is worth weighing again
        assert any(places)
    assert found[0] == found[1] and (lms is MIXTURE or "all features" in found[0])


def test_an_lm_that_knows_nothing_gains_nothing_over_the_control():
    tallies = {}
    for know in (0.0, 3.0):
        lists, refs = simulated(60, know=know, own=1.0)
        tallies[know] = tallied(rescoring(lists, refs, folds=2), refs)
    good = tallies[3.0].errors
    assert list(good) == ["first pass", "without the LM", "rescored", "oracle"]
    assert good["rescored"].errors < 0.8 * good["without the LM"].errors
    assert good["without the LM"].errors < 0.8 * good["first pass"].errors
    tests = [tally.tests() for tally in tallies.values()]
    assert tests[0]["without the LM"].p > 0.05 > tests[1]["without the LM"].p
    assert tests[0]["first pass"].p < 0.05


def test_an_lm_without_which_the_tuning_lists_have_fewer_errors_gets_no_weight(tmp_path):
    without = []
    for seed in range(12):
        lists, refs = simulated(26, own=0.5, seed=seed)
        done = rescoring(lists, refs)
        found, control = done.tuned.chosen, done.tuned.control
        assert found.errors["tuned"] <= control.errors["tuned"]
        assert tallied(done, refs).errors["rescored"].errors == found.errors["tuned"]
        if found is control and found.kept != AS_IT_CAME:
            without.append(done)
    weights = [dict(done.scales.features) for done in without]
    assert weights and not any("log_prob" in features for features in weights)
    mixture = facts_of("lm", text_form="as_is")
    counted = Counted(ignored=("x",), text_forms=mixture.text_forms)
    done = dataclasses.replace(without[0], mixture=mixture)
    write_settings(tmp_path, done, ListTally(None), counted)
    assert "&" not in (tmp_path / "scales.yaml").read_text()


@pytest.mark.parametrize("counting", [{}, {"unit": "char"}, {"ignore_words": ["x"]}])
def test_the_folds_count_as_the_tables_do(counting):
    """With `x` for a wrong word the units decide how many errors there are."""
    lists, refs = simulated(18, know=1.0)
    refs = {utt: tuple(word * 2 for word in ref) for utt, ref in refs.items()}
    done = rescoring(lists, refs, folds=3, **counting)
    errors = tallied(done, refs, RescoreOptions.of(**counting).errors.counting).errors
    folds = done.tuned.folds
    assert sum(fold.first_pass for fold in folds) == errors["first pass"].errors
    assert sum(fold.control for fold in folds) == errors["without the LM"].errors
    assert sum(fold.rescored for fold in folds) == errors["rescored"].errors
    assert done.tuned.words == errors["oracle"].words


def test_the_control_of_a_file(tmp_path):
    done = rescoring(*simulated())
    path = tmp_path / "scales.yaml"
    path.write_text(yaml.safe_dump(done.scales.settings(MIXTURE)))
    scales = read_scales(path)
    assert scales.control == done.scales.control
    lists, _ = simulated(seed=1)
    for decision in ("max", "mbr"):
        tuned = dataclasses.replace(done.scales, decision=decision)
        of_file = dataclasses.replace(scales, decision=decision)
        expected = [choose(item, MIXTURE, tuned).control for item in lists]
        assert [choose(item, MIXTURE, of_file).control for item in lists] == expected
        assert any(expected)
    content = rescoring(*simulated()).scales.settings(MIXTURE)
    del content["control"]
    path.write_text(yaml.safe_dump(content))
    scales = read_scales(path)
    assert scales.control is None
    lists, refs = simulated(5)
    tally = tallied((choose(item, MIXTURE, scales) for item in lists), refs)
    assert list(tally.errors) == ["first pass", "rescored", "oracle"]
    assert list(tally.tests()) == ["first pass"]


def test_lists_that_lack_a_score_of_the_control_have_none(tmp_path, caplog):
    """The rescoring itself goes on; a control of some lists is no control of the set."""
    scales = Scales(control=Scales(features=(("lm_score", 1.0),)))
    lists, refs = simulated(4)
    bare = tuple(Hypothesis(hyp.words, hyp.am_score) for hyp in lists[0].nbest.hypotheses)
    lists[0] = dataclasses.replace(lists[0], nbest=NBest(lists[0].nbest.utt, bare))
    done = [choose(item, MIXTURE, scales) for item in lists]
    assert [item.control is None for item in done] == [True, False, False, False]
    written = written_lists(tmp_path, done, format="jsonl", token_scores=False)
    tally = tallied(written, refs)
    assert "without the LM" not in {**tally.errors, **tally.tests()}
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"nbest.jsonl", "lmwt.nn", "text", "trn"}
    print_report(RescoredLists(iter(()), MIXTURE, scales), tally, Counted())
    assert "without the LM: the lists lack a score that its scales weigh" in caplog.text


def too_short(num_lists, *, know=0.0, seed=0):
    """Return lists whose errors the number of words tells, and an LM that may know them."""
    rng, lm_rng = np.random.default_rng(seed), np.random.default_rng(seed + 1000)
    lists, refs = [], {}
    for number in range(num_lists):
        ref = tuple(rng.choice(list("abcdef"), size=8))
        missing, wrong = rng.integers(0, 3, (2, 4))
        scores = rng.normal(size=4)
        hyps, log_probs = [], []
        for k in np.argsort(-scores):
            added = ("y",) * int(rng.integers(3) == 0)
            words = ("x",) * wrong[k] + ref[wrong[k] : 8 - missing[k]] + added
            hyps.append(Hypothesis(words, float(scores[k])))
            score = lm_rng.normal() - know * (wrong[k] + missing[k]) - len(words)
            log_probs.append(np.full((1, len(words) + 1), score / (len(words) + 1)))
        lists.append(ScoredList(NBest(f"u{number}", tuple(hyps)), tuple(log_probs)))
        refs[f"u{number}"] = ref
    return lists, refs


@pytest.mark.parametrize("know, seeds", [(0.0, (1, 4, 6)), (1.0, (1, 4))])
def test_the_gain_of_length_is_not_the_lms(know, seeds, caplog):
    """A blind LM is not credited, and never has a negative weight; one that knows is kept."""
    for seed in seeds:
        caplog.clear()
        lists, refs = too_short(40, know=know, seed=seed)
        done = tune_and_choose(lists, MIXTURE, RescoreOptions.of(tune_folds=3), refs=refs)
        tally, scales = tallied(done, refs), done.scales
        errors = tally.errors
        assert errors["without the LM"].errors < 0.9 * errors["first pass"].errors
        weight = scales.weights(("am_score",)).get("log_prob", 0.0)
        last = [*tally.tests().values()][-1]
        lines = sum(line.startswith("the LM is not used: ") for line in caplog.messages)
        assert lines == (weight == 0)
        assert weight > 0 if know else weight >= 0 and last.p > 0.05
        assert errors["rescored"].errors <= errors["without the LM"].errors
        if know:
            assert errors["rescored"].errors < 0.9 * errors["without the LM"].errors


@pytest.mark.parametrize("has_scores", [False, True])
def test_lists_without_scores_are_named(has_scores, caplog):
    caplog.set_level("INFO")
    lists, refs = simulated()
    if not has_scores:
        bare = [tuple(Hypothesis(hyp.words) for hyp in x.nbest.hypotheses) for x in lists]
        nbests = [NBest(x.nbest.utt, hyps) for x, hyps in zip(lists, bare, strict=True)]
        lists = [ScoredList(nbest, x.log_probs) for x, nbest in zip(lists, nbests, strict=True)]
    tune_and_choose(lists, MIXTURE, RescoreOptions(), refs=refs)
    assert ("the lists have no scores" in caplog.text) != has_scores
