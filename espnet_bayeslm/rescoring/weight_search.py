"""Weights of features with the fewest word errors on N-best lists: minimum error rate training.

Och, F. J. (2003): Minimum error rate training in statistical machine translation. Each step
finds the exact word errors along a line of weights; what is minimised is their mean over
directions near by (`HALF_WIDTH`), so that the answer is the middle of a good region and not the
edge of a lucky one, plus a penalty on the distance from where the search is anchored.
"""

from __future__ import annotations

from typing import NamedTuple, Sequence, Tuple

import numpy as np

from espnet_bayeslm.rescoring.features import Problem

# Edges that are nearer to each other, as an angle, are one: nothing between them is meant.
SAME_EDGE = 1e-9
HALF_WIDTH = 0.15
"""Half of the angle, in radians, over which errors along a line are averaged."""
PENALTY = 0.01
"""Part of the first pass's errors that weights at right angles to the anchor cost."""
ROUNDS = 6
RANDOM_DIRECTIONS = 2
SEED = 0
# Lists on which the starts are tried; the best goes on with all lists.
EXPLORED = 1000


class Profile(NamedTuple):
    """A piecewise constant function of t.

    Attributes:
        edges: (K,) where it changes, ascending.
        values: (K + 1,) between the edges.
    """

    edges: np.ndarray
    values: np.ndarray


def errors_along(intercepts: np.ndarray, slopes: np.ndarray, errors: np.ndarray) -> Profile:
    """Summed errors of the best hypotheses as a function of t, where totals are lines in t.

    Args:
        intercepts: (L, N) totals at t = 0.
        slopes: (L, N) their change with t.
        errors: (L, N) of each hypothesis.
    """
    # The upper envelope of the lines of each list, piece by piece, all lists at a time: the list
    # of a piece, the t where it begins, and the best hypothesis there, the first of equal lines
    rows = np.arange(len(slopes))
    flattest = slopes.min(axis=1, keepdims=True)
    winners = np.where(slopes == flattest, intercepts, -np.inf).argmax(axis=1)
    first_errors = errors[rows, winners]
    starts, before = np.full(len(rows), -np.inf), first_errors
    edges, changes = [starts[:0]], [first_errors[:0]]
    while len(rows):
        # where each steeper line crosses the best one so far; the first crossing is the next edge
        own = np.arange(len(rows)), winners
        rise = slopes - slopes[own][:, None]
        with np.errstate(divide="ignore", invalid="ignore"):
            crossing = np.where(rise > 0, (intercepts[own][:, None] - intercepts) / rise, np.inf)
        first = crossing.min(axis=1)
        winners = np.where(crossing == first[:, None], slopes, -np.inf).argmax(axis=1)
        going = np.isfinite(first)
        rows, intercepts, slopes = rows[going], intercepts[going], slopes[going]
        winners, starts = winners[going], np.maximum(first, starts)[going]
        after = errors[rows, winners]
        edges.append(starts)
        changes.append(after - before[going])
        before = after
    unique_edges, place = np.unique(np.concatenate(edges), return_inverse=True)
    steps = np.bincount(place, weights=np.concatenate(changes), minlength=len(unique_edges))
    return Profile(unique_edges, np.concatenate([[0], steps.cumsum()]) + first_errors.sum())


def smoothed_pieces(
    profile: Profile, half_width: float, *, offset: float = 0.0, scale: float = 1.0
) -> Tuple[np.ndarray, np.ndarray]:
    """The middle of each piece of a profile that is wide enough to be meant, and the mean there.

    Only the direction of the weights counts, so a middle is that of an angle; that of an
    unbounded piece is then finite.

    Args:
        profile: Along w + t d.
        half_width: Of the means, in radians; the half circle's ends cut it off.
        offset: w's component along d: w = v + offset d, v orthogonal to d.
        scale: |v| / |d|.

    Returns:
        (M,) middles, as a t, and (M,) means of the profile's values around them.
    """
    end = np.pi / 2
    bounds = np.concatenate([[-end], np.arctan((profile.edges + offset) / scale), [end]])
    widths = np.diff(bounds)
    integral = np.concatenate([[0.0], np.cumsum(profile.values * widths)])
    middles = (bounds[:-1] + widths / 2)[widths > SAME_EDGE]
    low, high = np.maximum(middles - half_width, -end), np.minimum(middles + half_width, end)
    total = np.interp(high, bounds, integral) - np.interp(low, bounds, integral)
    return np.tan(middles) * scale - offset, total / (high - low)


def normalised(weights: np.ndarray) -> np.ndarray:
    """Weights of length 1; only their direction counts."""
    return weights / np.linalg.norm(weights)


def mert(problem: Problem, starts: Sequence[np.ndarray], anchor: np.ndarray) -> np.ndarray:
    """Weights of length 1 with the fewest smoothed errors, from the best of several starts.

    The penalty draws them to the anchor, (F,); starts are (F,) each, in units of spread.
    """
    explored = problem
    if len(problem.errors) > EXPLORED:
        chosen = np.random.default_rng(SEED).permutation(len(problem.errors))[:EXPLORED]
        explored = problem.only(np.sort(chosen))
    descents = [descend(explored, start, anchor) for start in starts]
    best = min(descents, key=lambda item: item[1])[0]
    return best if explored is problem else descend(problem, best, anchor)[0]


def descend(problem: Problem, start: np.ndarray, anchor: np.ndarray) -> Tuple[np.ndarray, float]:
    """Weights that no line search betters, and their cost."""
    rng, size = np.random.default_rng(SEED), len(start)
    weights, cost = normalised(start), np.inf
    for _ in range(ROUNDS):
        before = cost
        # each feature by itself, and some directions at random
        more = [normalised(rng.normal(size=size)) for _ in range(RANDOM_DIRECTIONS)]
        for direction in [*np.eye(size), *more]:
            weights, cost = step(problem, weights, cost, direction, normalised(anchor))
        if not cost < before:
            break
    return weights, cost


def step(
    problem: Problem, weights: np.ndarray, cost: float, direction: np.ndarray, anchor: np.ndarray
) -> Tuple[np.ndarray, float]:
    """Best weights on the half circle through `weights` and `direction`, and their cost."""
    offset = float(weights @ direction)
    scale = float(np.linalg.norm(weights - offset * direction))
    if scale < 1e-6:  # the line is a point
        return weights, cost
    profile = errors_along(problem.features @ weights, problem.features @ direction, problem.errors)
    middles, means = smoothed_pieces(profile, HALF_WIDTH, offset=offset, scale=scale)
    tried = weights + middles[:, None] * direction
    tried /= np.linalg.norm(tried, axis=1, keepdims=True)
    penalty = PENALTY * problem.errors[:, 0].sum() / 2
    values = means + penalty * ((tried - anchor) ** 2).sum(axis=1)
    values[(tried * problem.signs < 0).any(axis=1)] = np.inf
    k = int(values.argmin())
    return (tried[k], float(values[k])) if values[k] < cost - 1e-9 else (weights, cost)
