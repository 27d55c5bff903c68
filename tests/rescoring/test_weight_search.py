"""Features of hypotheses, and the search of their weights."""

import numpy as np
import pytest

from espnet_bayeslm.nbest.types import Hypothesis, NBest
from espnet_bayeslm.rescoring import weight_search
from espnet_bayeslm.rescoring.feature_tuning import folds
from espnet_bayeslm.rescoring.features import (
    FIRST_WINS,
    Problem,
    feature_table,
    hypothesis_features,
    is_normalised,
    make_problem,
    totals,
)
from espnet_bayeslm.rescoring.weight_search import (
    descend,
    errors_along,
    normalised,
    smoothed_pieces,
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


def test_what_a_list_lacks_or_excludes(caplog):
    nbest = NBest("u", (Hypothesis(("a",), -1.0), Hypothesis(("b",), -2.0)))
    found = hypothesis_features(nbest, {})
    assert {"am_score", "rank"} <= found.keys() and not {"lm_score", "graph_score"} & found.keys()
    names, values, sizes = feature_table([found, hypothesis_features(NBest("v", HYPS), {})])
    assert {"lm_score", "graph_score"}.isdisjoint(names)
    for name in ("lm_score", "graph_score"):
        assert f"1 of 2 lists have no {name}: it is left out" in caplog.text
    assert values.shape == (2, 2, len(names)) and sizes.tolist() == [2, 2]
    log_probs = {"log_prob": np.array([-np.inf, -7.0])}
    assert hypothesis_features(NBest("u", HYPS), log_probs)["log_prob"].tolist() == [-107, -7]
    log_probs = {"log_prob": np.array([-np.inf, -np.inf])}
    assert np.isfinite(hypothesis_features(NBest("u", HYPS), log_probs)["log_prob"]).all()
    with pytest.raises(InputError, match="log_prob of 'u' is not a number"):
        hypothesis_features(NBest("u", HYPS), {"log_prob": np.array([np.nan, 0.0])})


@pytest.mark.parametrize("name", ["am_score", "lm_score", "graph_score"])
@pytest.mark.parametrize(
    "scores, message",
    [
        ((None, -1.0), "1 of 2 hypotheses of 'u' have a {}"),
        ((-1.0, np.nan), "{} of hypothesis 2 of 'u' is nan"),
        ((-1.0, np.inf), "{} of hypothesis 2 of 'u' is inf"),
        ((-np.inf, -1.0), "{} of hypothesis 1 of 'u' is -inf"),
    ],
)
def test_bad_scores_are_one_error(name, scores, message):
    nbest = NBest("u", tuple(Hypothesis(("a",), **{name: score}) for score in scores))
    with pytest.raises(InputError, match=message.format(name)):
        hypothesis_features(nbest, {})


def test_totals_and_the_first_of_equals():
    features = {"a": np.array([1.0, 2.0, 2.0]), "b": np.array([0.0, -1.0, -1.0])}
    assert totals(features, {"a": 2.0, "b": 0.5}).values.tolist() == [2.0, 3.5, 3.5]
    assert totals(features, {"a": 2.0, "b": 0.5}).best() == 1
    # 0.1 + 0.2 > 0.3 by rounding only
    features = {"a": np.array([0.3, 0.1]), "b": np.array([0.0, 0.2])}
    assert totals(features, {"a": 1.0, "b": 1.0}).best() == 0
    features["is_first"] = np.array([1.0, 0.0])
    assert totals(features, dict(FIRST_WINS)).best() == 0
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


def random_problem(seed):
    """Return intercepts, slopes, errors of random lists, with ties and equal lines."""
    rng = np.random.default_rng(seed)
    shape = rng.integers(1, 30), rng.integers(1, 12)
    if seed % 2:  # integers: many lines are parallel, or cross in one point
        lines = rng.integers(-4, 5, (2, *shape)).astype(float)
    else:
        lines = rng.normal(size=(2, *shape))
    return *lines, rng.integers(0, 9, shape)


def errors_at(intercepts, slopes, errors, t):
    """Return the errors of the first best of each list at one t."""
    return errors[np.arange(len(errors)), (intercepts + t * slopes).argmax(axis=1)].sum()


def value_at(profile, t):
    """Return the profile's values at places that are no edges."""
    return profile.values[np.searchsorted(profile.edges, t)]


@pytest.mark.parametrize("seed", range(16))
def test_errors_along_a_line_are_those_of_a_fine_grid(seed):
    intercepts, slopes, errors = random_problem(seed)
    profile = errors_along(intercepts, slopes, errors)
    # an irrational step: no point of the grid is an edge
    grid = np.arange(-40, 40, 0.001 * np.pi) + np.sqrt(2) / 7
    found = np.array([errors_at(intercepts, slopes, errors, t) for t in grid])
    np.testing.assert_array_equal(value_at(profile, grid), found)
    middles, means = smoothed_pieces(profile, 1e-12)
    exact = [errors_at(intercepts, slopes, errors, middle) for middle in middles]
    # narrow means are the values at the middles; the exact minimum is never above the grid's
    np.testing.assert_allclose(means, exact, atol=0.05)
    assert min(exact) <= found.min()


def test_the_middle_of_an_unbounded_piece_is_that_of_its_angle():
    # one edge at t = 1: the piece from 45 to 90 degrees has its middle at 67.5
    profile = errors_along(np.array([[1.0, 0.0]]), np.array([[0.0, 1.0]]), np.array([[3, 2]]))
    assert profile.edges.tolist() == [1.0] and profile.values.tolist() == [3, 2]
    middles, means = smoothed_pieces(profile, np.radians(30))
    np.testing.assert_allclose(middles, np.tan(np.radians([-22.5, 67.5])))
    # of 2 between 45 and 90 degrees, and of 3 from 37.5 to 45
    np.testing.assert_allclose(means, [3, 2 + 7.5 / 52.5])


@pytest.mark.parametrize("seed", range(4))
def test_smoothed_errors_are_means_over_the_angle(seed):
    profile = errors_along(*random_problem(seed))
    for middle, value in zip(*smoothed_pieces(profile, 0.2, offset=0.5, scale=2.0), strict=True):
        centre = np.arctan((middle + 0.5) / 2)
        low, high = max(centre - 0.2, -np.pi / 2), min(centre + 0.2, np.pi / 2)
        angles = low + (high - low) * (np.arange(20_000) + 0.5) / 20_000
        # each edge moves the mean of the grid by at most a jump / 20,000
        assert value == pytest.approx(value_at(profile, 2 * np.tan(angles) - 0.5).mean(), abs=0.05)


def random_lists(seed, num_lists=40, num_hyps=8, num_features=3):
    """Return features, errors, sizes; the first feature is right more often than not."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(num_lists, num_hyps, num_features)) * [1.0, 30.0, 0.1]
    errors = rng.integers(0, 10, (num_lists, num_hyps))
    features[..., 0] -= 0.3 * errors
    return features, errors, rng.integers(1, num_hyps + 1, num_lists)


def test_features_without_spread_and_short_lists():
    features, errors, sizes = random_lists(1)
    features[..., 2] = 12345.678
    features[..., 1] = 0.1 + 1e-17
    problem = make_problem(features, errors, sizes)
    assert problem.spreads[0] > 0 and problem.spreads[1:].tolist() == [0, 0]
    assert not problem.features[..., 1:].any()
    features, errors, sizes = random_lists(2)
    garbage, wrong = features.copy(), errors.copy()
    beyond = np.arange(features.shape[1]) >= sizes[:, None]
    garbage[beyond], wrong[beyond] = np.nan, 999
    plain = make_problem(features, errors, sizes)
    for ours, other in zip(plain, make_problem(garbage, wrong, sizes), strict=True):
        np.testing.assert_array_equal(other, ours)
    assert ((plain.features @ np.array([1.0, 0.5, -0.5])).argmax(axis=1) < sizes).all()


@pytest.mark.parametrize("seed", range(5))
def test_the_search_ends_where_no_feature_alone_betters_the_smoothed_errors(seed, monkeypatch):
    """Along one feature from the answer: nothing is below, by brute force over the angle."""
    monkeypatch.setattr(weight_search, "PENALTY", 0.0)
    monkeypatch.setattr(weight_search, "ROUNDS", 50)
    problem = make_problem(*random_lists(seed))
    start = np.array([1.0, 1.0, 1.0])
    weights, cost = descend(problem, start, start)
    # the smoothed cost can be no lower than the lowest errors, nor the answer's far from it
    for direction in np.eye(3):
        found = weight_search.step(problem, weights, cost, direction, normalised(start))
        np.testing.assert_array_equal(found[0], weights)
    assert problem.list_errors(weights).sum() < problem.list_errors(start).sum()


@pytest.mark.parametrize("anchor", [(1.0, 1.0, 1.0), (1.0, 0.2, 0.0)])
def test_where_errors_tell_nothing_weights_are_those_of_the_anchor(anchor):
    """All hypotheses have as many errors; one start is far from the anchor."""
    rng = np.random.default_rng(0)
    problem = Problem(rng.normal(size=(300, 4, 3)), np.ones((300, 4), int), np.ones(3))
    start, anchor = np.array([0.0, 0.0, 1.0]), np.array(anchor)
    weights, _ = descend(problem, start, anchor)
    assert weights @ normalised(anchor) > 0.99 > start @ normalised(anchor)


def test_folds_keep_groups_together_and_are_of_a_size():
    groups = [f"speaker{n % 7}" for n in range(70)]
    parts = folds(groups, 5)
    assert sorted(np.concatenate(parts)) == list(range(70))
    assert [len({groups[n] for n in part}) for part in parts] == [2, 2, 1, 1, 1]
    assert not any(
        {groups[n] for n in a} & {groups[n] for n in b} for a in parts for b in parts if a is not b
    )
    assert len(folds(["one"] * 5, 5)) == 1


@pytest.mark.parametrize("units", [(1.0, 1.0, 1.0), (1e-4, 1e5, 7.0)])
def test_features_have_a_spread_of_one_within_lists(units):
    """In any units; the spreads lead back to the features' own."""
    features, errors, sizes = random_lists(4)
    problem = make_problem(features * units, errors, sizes)
    inside = [own[:size] for own, size in zip(problem.features, sizes, strict=True)]
    spreads = np.sqrt(np.mean([own.var(axis=0) for own in inside], axis=0))
    np.testing.assert_allclose(spreads, 1.0, rtol=1e-4)
    for own, raw in zip(inside, features * units, strict=True):
        expected = raw[: len(own)] - raw[0]
        tolerance = 1e-5 * problem.spreads.max()
        np.testing.assert_allclose(own * problem.spreads, expected, atol=tolerance)
