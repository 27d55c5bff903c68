"""The search of weights: exact scaling, never above the starts, risk's gradient, folds."""

import numpy as np
import pytest

from espnet_bayeslm.rescoring import weight_search
from espnet_bayeslm.rescoring.weight_search import (
    descend,
    folds,
    make_problem,
    normalised,
)


def random_lists(seed, num_lists=40, num_hyps=8, num_features=3):
    """Return features, errors, sizes; the first feature is right more often than not."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(num_lists, num_hyps, num_features)) * [1.0, 30.0, 0.1]
    errors = rng.integers(0, 10, (num_lists, num_hyps))
    features[..., 0] -= 0.3 * errors
    return features, errors, rng.integers(1, num_hyps + 1, num_lists)


def test_a_constant_feature_has_no_spread_and_no_part():
    features, errors, sizes = random_lists(1)
    features[..., 2] = 12345.678
    features[..., 1] = 0.1 + 1e-17
    problem = make_problem(features, errors, sizes)
    assert problem.spreads[0] > 0 and problem.spreads[1:].tolist() == [0, 0]
    assert not problem.features[..., 1:].any()


def test_what_follows_a_short_list_changes_nothing():
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
