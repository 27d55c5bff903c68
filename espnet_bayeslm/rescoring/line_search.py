"""Word errors along a line of weights: piecewise constant, found exactly (Och 2003, MERT).

Where the weights are w + t d, a hypothesis' total is a line in t. The best of a list is the upper
envelope of its lines, so the errors of all lists change at finitely many t only.
"""

from __future__ import annotations

from typing import List, NamedTuple, Tuple

import numpy as np

# Edges that are nearer to each other, as an angle, are one: nothing between them is meant.
SAME_EDGE = 1e-9


class Profile(NamedTuple):
    """A piecewise constant function of t.

    Attributes:
        edges: (K,) where it changes, ascending.
        values: (K + 1,) between the edges.
    """

    edges: np.ndarray
    values: np.ndarray


def upper_envelopes(intercepts: np.ndarray, slopes: np.ndarray) -> List[np.ndarray]:
    """Upper envelopes of the lines of each list, all lists at a time.

    Of equal lines the first wins.

    Args:
        intercepts: (L, N).
        slopes: (L, N).

    Returns:
        (S,) each: the list of each piece; the t where it begins, -inf for the first of a list;
        the best hypothesis there.
    """
    rows = np.arange(len(slopes))
    flattest = slopes.min(axis=1, keepdims=True)
    winners = np.where(slopes == flattest, intercepts, -np.inf).argmax(axis=1)
    starts = np.full(len(rows), -np.inf)
    pieces = [(rows, starts, winners)]
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
        pieces.append((rows, starts, winners))
    return list(map(np.concatenate, zip(*pieces, strict=True)))


def errors_along(intercepts: np.ndarray, slopes: np.ndarray, errors: np.ndarray) -> Profile:
    """Summed errors of the best hypotheses as a function of t.

    Args:
        intercepts: (L, N) totals at t = 0.
        slopes: (L, N) their change with t.
        errors: (L, N) of each hypothesis.
    """
    lists, starts, winners = upper_envelopes(intercepts, slopes)
    order = np.lexsort((starts, lists))
    lists, starts, found = lists[order], starts[order], errors[lists, winners][order]
    begins = np.isneginf(starts)
    change = np.diff(found, prepend=0)[~begins]
    edges, place = np.unique(starts[~begins], return_inverse=True)
    steps = np.bincount(place, weights=change, minlength=len(edges))
    return Profile(edges, np.concatenate([[0], steps.cumsum()]) + found[begins].sum())


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
