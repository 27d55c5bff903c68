"""The errors around tuned weights, against brute force."""

import numpy as np

from espnet_bayeslm.rescoring.feature_tuning import chosen_errors
from espnet_bayeslm.rescoring.tuning import FACTORS, sweep

RNG = np.random.default_rng(0)
NAMES = ("am_score", "graph_score", "log_prob", "words")
LISTS = [{name: RNG.normal(size=6) for name in NAMES} for _ in range(20)]
ERRORS = [RNG.integers(0, 9, 6) for _ in LISTS]
WEIGHTS = {"am_score": 0.5, "graph_score": 1.0, "log_prob": 1.0, "words": -0.25}
SCALED = (("am_score", 0.9), ("graph_score+log_prob", 0.5), ("words", -0.1))


def test_the_two_weights_after_the_largest_are_multiplied():
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


def test_as_it_came_there_is_nothing_to_multiply():
    lists = [{**features, "is_first": np.eye(6)[0]} for features in LISTS]
    weights = (("is_first", 1.0),)
    found = sweep(lists, ERRORS, weights=dict(weights), scaled=weights)
    assert found.names == ("", "") and found.errors.tolist() == [[sum(e[0] for e in ERRORS)]]
    assert not found.at_edge


def test_the_edge_is_where_the_fewest_errors_are_at_the_border_only():
    found = sweep(LISTS, ERRORS, weights=WEIGHTS, scaled=SCALED)
    errors = np.full((21, 21), 9)
    errors[0, 5] = 3
    assert found._replace(errors=errors).at_edge
    errors[7, 5] = 3
    assert not found._replace(errors=errors).at_edge


def test_the_middle_chooses_the_first_of_equals_as_tuned_weights_do():
    """Three tenths added up or multiplied differ by rounding only."""
    lists = [{"a": np.array([0.3, 0.1]), "b": np.array([0.0, 0.1]), "c": np.array([0.0, 0.1])}] * 2
    errors = [np.array([1, 5])] * 2
    weights = (("a", 1.0), ("b", 1.0), ("c", 1.0))
    assert 0.1 + 0.1 + 0.1 > 0.3
    found = sweep(lists, errors, weights=dict(weights), scaled=weights)
    assert found.errors[10, 10] == chosen_errors(lists, errors, dict(weights)) == 2
