"""Word errors along a line, against a fine grid."""

import numpy as np
import pytest

from espnet_bayeslm.rescoring.weight_search import errors_along, smoothed_pieces


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
