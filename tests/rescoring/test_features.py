"""Features of hypotheses, their totals, and lists of several kinds."""

import numpy as np
import pytest

from espnet_bayeslm.nbest.types import Hypothesis, NBest
from espnet_bayeslm.rescoring.features import (
    FIRST_PASS,
    best_place,
    feature_table,
    hypothesis_features,
    is_normalised,
    totals,
)
from espnet_bayeslm.utils.errors import InputError

HYPS = (Hypothesis(("ab", "c"), -8.0, -3.0, -1.0), Hypothesis((), -6.5, -2.0, -0.5))


def test_features_of_a_list():
    found = hypothesis_features(NBest("u", HYPS), {"log_prob": np.array([-4.0, -1.5])})
    expected = {
        "am_score": [-8.0, -6.5],
        "lm_score": [-3.0, -2.0],
        "graph_score": [-1.0, -0.5],
        "am_score_x_length": [-24.0, -6.5],
        "log_prob": [-4.0, -1.5],
        "words": [2, 0],
        "chars": [3, 0],
        "rank": [0, -np.log(2)],
        "is_first": [1, 0],
    }
    assert {name: values.tolist() for name, values in found.items()} == expected


def test_what_a_list_lacks_is_left_out(caplog):
    nbest = NBest("u", (Hypothesis(("a",), -1.0), Hypothesis(("b",), -2.0)))
    found = hypothesis_features(nbest, {})
    assert {"am_score", "rank"} <= found.keys() and not {"lm_score", "graph_score"} & found.keys()
    names, values, sizes = feature_table([found, hypothesis_features(NBest("v", HYPS), {})])
    assert {"lm_score", "graph_score"}.isdisjoint(names)
    for name in ("lm_score", "graph_score"):
        assert f"1 of 2 lists have no {name}: it is left out" in caplog.text
    assert values.shape == (2, 2, len(names)) and sizes.tolist() == [2, 2]


@pytest.mark.parametrize(
    "hyps, message",
    [
        ([(-1.0, None), (-2.0, -1.0)], "1 of 2 hypotheses of 'u' have a lm_score"),
        ([(-1.0, -1.0), (float("nan"), -1.0)], "am_score of hypothesis 2 of 'u' is nan"),
        ([(float("-inf"), -1.0), (-1.0, -1.0)], "am_score of hypothesis 1 of 'u' is -inf"),
    ],
)
def test_bad_scores_are_one_error(hyps, message):
    nbest = NBest("u", tuple(Hypothesis(("a",), am, lm) for am, lm in hyps))
    with pytest.raises(InputError, match=message):
        hypothesis_features(nbest, {})


def test_an_impossible_hypothesis_is_far_below_the_others():
    log_probs = {"log_prob": np.array([-np.inf, -7.0])}
    assert hypothesis_features(NBest("u", HYPS), log_probs)["log_prob"].tolist() == [-107, -7]
    log_probs = {"log_prob": np.array([-np.inf, -np.inf])}
    assert np.isfinite(hypothesis_features(NBest("u", HYPS), log_probs)["log_prob"]).all()
    with pytest.raises(InputError, match="log_prob of 'u' is not a number"):
        hypothesis_features(NBest("u", HYPS), {"log_prob": np.array([np.nan, 0.0])})


def test_totals_and_the_first_of_equals():
    features = {"a": np.array([1.0, 2.0, 2.0]), "b": np.array([0.0, -1.0, -1.0])}
    assert totals(features, {"a": 2.0, "b": 0.5}).tolist() == [2.0, 3.5, 3.5]
    assert best_place(features, {"a": 2.0, "b": 0.5}) == 1
    # 0.1 + 0.2 > 0.3 by rounding only
    features = {"a": np.array([0.3, 0.1]), "b": np.array([0.0, 0.2])}
    assert best_place(features, {"a": 1.0, "b": 1.0}) == 0
    features["is_first"] = np.array([1.0, 0.0])
    assert best_place(features, dict(FIRST_PASS)) == 0
    with pytest.raises(InputError, match="no lm_score in the list"):
        totals(features, {"a": 1.0, "lm_score": 1.0})


def test_scores_divided_by_the_length_are_found_by_their_correlation():
    rng = np.random.default_rng(0)
    lists = []
    for num_words in rng.integers(1, 30, 200):
        per_word = -5 + rng.normal(0, 1)
        words = np.array([float(num_words)])
        lists.append({"am_score": np.array([per_word]), "words": words})
    assert is_normalised(lists)
    sums = [{**f, "am_score": f["am_score"] * (f["words"] + 1)} for f in lists]
    assert not is_normalised(sums)
    assert not is_normalised([{**f, "lm_score": f["am_score"]} for f in lists])
    # no score, one length, too few lists: nothing is known
    assert not is_normalised([{**f, "am_score": 0 * f["words"]} for f in lists])
    assert not is_normalised([{**f, "words": np.ones(1)} for f in lists])
    assert not is_normalised(lists[:2]) and not is_normalised([{"words": np.ones(1)}] * 9)
