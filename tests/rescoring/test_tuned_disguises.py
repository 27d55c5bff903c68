"""Tuning of real lists in several disguises; needs AMI_TEXT and NBEST, as egs2/ami/lm has them."""

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

import tuning

from espnet_bayeslm.bin.ngram import main as estimate
from espnet_bayeslm.ngram.query import NgramScorer

FOLDERS = [os.environ.get(name) for name in ("AMI_TEXT", "NBEST")]
pytestmark = pytest.mark.skipif(None in FOLDERS, reason="AMI_TEXT and NBEST are not set")


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    """Return the dev and eval lists of one voice with a 3-gram's scores."""
    text, nbest = map(Path, FOLDERS)
    arpa = tmp_path_factory.mktemp("ngram") / "3gram.arpa"
    estimate(["--text", str(text / "train.txt"), "--arpa", str(arpa)])
    return [tuning.read_lists(nbest / f"{part}_us", NgramScorer(arpa)) for part in ("dev", "eval")]


@pytest.fixture(scope="module")
def found(sets):
    """Return disguise -> what was kept on dev, and the choices and lists of eval."""
    results = {}
    for name, change in tuning.DISGUISES.items():
        dev, test = map(change, sets)
        results[name] = (*tuning.tuned_choices(dev, test), test)
    return results


def test_dev_is_never_worse_than_the_first_pass(found):
    for kept, _, _ in found.values():
        assert kept.errors["tuned"] <= kept.errors["first pass"]


def test_rates_of_other_lists(sets, found):
    rates = {name: test.rate(choices) for name, (_, choices, test) in found.items()}
    first = sets[1].rate([0] * len(sets[1].scored))
    grid = sets[1].rate(tuning.grid_choices(*sets))
    # a tenth of a point is nine words of 8,985
    assert rates["(a) as they are"] <= grid + 0.1 < first - 0.5
    assert rates["(b) total / (length + 1)"] <= rates["(a) as they are"] + 0.3
    assert rates["(c) no scores"] < first - 0.3


def test_scores_in_other_units_choose_exactly_the_same(found):
    _, expected, _ = found["(a) as they are"]
    for name in ("(d) scores x 0.001", "(d) scores x 1000"):
        assert found[name][1] == expected


def test_lists_with_the_best_first_stay_as_they_came(found):
    kept, choices, _ = found["(g) best first"]
    assert kept.kept == "as it came" and not any(choices)
