"""Mixture weights against slow optimisers, and the laws of a likelihood that climbs."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from oracles.em_plain import log_likelihood, plain_em, scipy_optimum

from espnet_bayeslm.evaluation.interpolation import em_weights
from espnet_bayeslm.utils.errors import InputError

# ln p of words, no smaller than what exp() still holds
LOG_PROBS = st.integers(1, 5).flatmap(
    lambda k: arrays(
        np.float64,
        st.tuples(st.integers(1, 12), st.just(k)),
        elements=st.floats(-30, 0, allow_nan=False),
    )
)


def random_log_probs(num_words, num_components, seed, spread=2.0):
    """Return ln p that differ between the components by about `spread`."""
    rng = np.random.default_rng(seed)
    common = -rng.gamma(2.0, 2.0, (num_words, 1))
    return np.minimum(common + spread * rng.normal(size=(num_words, num_components)), -1e-3)


@pytest.mark.parametrize("num_components, spread", [(2, 0.3), (2, 2.0), (3, 2.0), (5, 2.0)])
@pytest.mark.parametrize("seed", range(3))
def test_equals_plain_em_and_a_general_optimiser(seed, num_components, spread):
    log_probs = random_log_probs(150, num_components, seed, spread)
    weights = em_weights(log_probs)
    assert weights.dtype == np.float64 and weights.shape == (num_components,)
    for optimum in (plain_em, scipy_optimum):
        assert np.allclose(weights, optimum(log_probs), atol=1e-4, rtol=0)


def test_closed_form_of_words_that_one_component_each_knows():
    """p is w_1 for 30 words and w_2 for 10: the maximum of 30 ln w_1 + 10 ln w_2 is 3/4."""
    log_probs = np.full((40, 2), -np.inf)
    log_probs[:30, 0] = log_probs[30:, 1] = -2.0
    assert np.allclose(em_weights(log_probs), [0.75, 0.25], atol=1e-6)


def test_better_equal_and_impossible_components():
    one, two = random_log_probs(50, 1, 0), random_log_probs(60, 2, 2)
    # one that is better everywhere takes all
    weights = em_weights(np.hstack([one, one - 1.0, one - 0.1]))
    assert np.allclose(weights, [1, 0, 0], atol=1e-4)
    best = em_weights(two)
    weights = em_weights(two[:, [0, 1, 1]])
    assert np.allclose([weights[0], weights[1] + weights[2]], best, atol=1e-4)
    weights = em_weights(np.hstack([two, np.full((60, 1), -np.inf)]))
    assert weights[2] == pytest.approx(0, abs=1e-9) and np.allclose(weights[:2], best, atol=1e-4)
    assert em_weights(np.array([[-3.0], [-700.0]])).tolist() == [1.0]


def test_tiny_probabilities_do_not_underflow():
    log_probs = random_log_probs(80, 3, 4)
    assert np.allclose(em_weights(log_probs - 5000.0), em_weights(log_probs), atol=1e-9)


@settings(max_examples=50)
@given(log_probs=LOG_PROBS)
def test_the_likelihood_never_falls(log_probs):
    # the less a weight may change at the end, the later the step
    steps = [em_weights(log_probs, tol) for tol in (1.0, 0.3, 0.1, 0.03, 0.01, 1e-3, 1e-6, 0.0)]
    values = [log_likelihood(log_probs, weights) for weights in steps]
    # 1e-9 of a sum of up to 12 terms of up to 30: rounding of the oracle's own sum
    assert all(b >= a - 1e-9 for a, b in itertools.pairwise(values))
    assert np.allclose(steps[0], 1 / log_probs.shape[1])
    for weights in steps:
        assert (weights >= 0).all() and weights.sum() == pytest.approx(1)


@settings(max_examples=50)
@given(log_probs=LOG_PROBS)
def test_nothing_nearby_is_better(log_probs):
    """The likelihood is concave: at its maximum no mixture with a single component helps."""
    weights = em_weights(log_probs, tol=1e-9)
    best = log_likelihood(log_probs, weights)
    for corner in np.eye(len(weights)):
        for step in (1e-3, 1e-2, 0.5):
            other = (1 - step) * weights + step * corner
            assert log_likelihood(log_probs, other) <= best + 1e-6 * len(log_probs)


@pytest.mark.parametrize(
    "log_probs, message",
    [
        (np.zeros(3), r"shape \(3,\)"),
        (np.zeros((0, 2)), r"shape \(0, 2\)"),
        (np.zeros((4, 0)), r"shape \(4, 0\)"),
        (np.array([[-1.0, -2.0], [-1.0, np.nan]]), "1 of 2 rows .* the first 1"),
        (np.array([[np.inf, -1.0]]), "1 of 1 rows"),
        (np.array([[-1.0, -1.0], [-np.inf, -np.inf]]), "the first 1"),
    ],
)
def test_what_has_no_maximum_is_refused(log_probs, message):
    with pytest.raises(InputError, match=message):
        em_weights(log_probs)
