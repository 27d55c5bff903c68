"""Word errors along a line of weights: piecewise constant, found exactly (Och 2003, MERT).

Where the weights are w + t d, a hypothesis' total is a line in t. The best of a list is the upper
envelope of its lines, so the errors of all lists change at finitely many t only.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

# Edges that are nearer to each other, as an angle, are one: nothing between them is meant.
SAME_EDGE = 1e-9


class Envelopes(NamedTuple):
    """Which hypothesis of each list is the best, from t = -inf to inf.

    Attributes:
        lists: (S,) index of the list of each piece.
        starts: (S,) where it begins; -inf for the first of a list.
        winners: (S,) index of the best hypothesis there.
    """

    lists: np.ndarray
    starts: np.ndarray
    winners: np.ndarray


class Profile(NamedTuple):
    """A piecewise constant function of t.

    Attributes:
        edges: (K,) where it changes, ascending.
        values: (K + 1,) between the edges.
    """

    edges: np.ndarray
    values: np.ndarray

    def at(self, t: np.ndarray) -> np.ndarray:
        """Values at places that are no edges."""
        return self.values[np.searchsorted(self.edges, t)]


def upper_envelopes(intercepts: np.ndarray, slopes: np.ndarray) -> Envelopes:
    """Upper envelopes of the lines of each list, all lists at a time.

    Of equal lines the first wins.

    Args:
        intercepts: (L, N).
        slopes: (L, N).
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
    return Envelopes(*map(np.concatenate, zip(*pieces, strict=True)))


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


class Pieces(NamedTuple):
    """Pieces of a profile that are wide enough to be meant.

    Attributes:
        middles: (M,) the middle of each, as a t.
        widths: (M,) in radians.
        values: (M,).
    """

    middles: np.ndarray
    widths: np.ndarray
    values: np.ndarray


def pieces_of(profile: Profile, *, offset: float = 0.0, scale: float = 1.0) -> Pieces:
    """Pieces of a profile with their middles.

    Only the direction of the weights counts, so a middle is that of an angle; that of an
    unbounded piece is then finite.

    Args:
        profile: Along w + t d.
        offset: w's component along d: w = v + offset d, v orthogonal to d.
        scale: |v| / |d|.
    """
    angles = np.arctan((profile.edges + offset) / scale)
    bounds = np.concatenate([[-np.pi / 2], angles, [np.pi / 2]])
    widths = np.diff(bounds)
    kept = widths > SAME_EDGE
    middles = np.tan((bounds[:-1] + widths / 2)[kept]) * scale - offset
    return Pieces(middles, widths[kept], profile.values[kept])


def smoothed(
    profile: Profile,
    pieces: Pieces,
    half_width: float,
    *,
    offset: float = 0.0,
    scale: float = 1.0,
) -> np.ndarray:
    """Mean value within `half_width` radians of the middle of each piece, (M,).

    Args:
        profile: Along w + t d.
        pieces: Its pieces, of the same offset and scale.
        half_width: In radians; the half circle's ends cut it off.
        offset: w's component along d.
        scale: |v| / |d|.
    """
    angles = np.arctan((profile.edges + offset) / scale)
    bounds = np.concatenate([[-np.pi / 2], angles, [np.pi / 2]])
    integral = np.concatenate([[0.0], np.cumsum(profile.values * np.diff(bounds))])
    middles = np.arctan((pieces.middles + offset) / scale)
    low = np.maximum(middles - half_width, -np.pi / 2)
    high = np.minimum(middles + half_width, np.pi / 2)
    total = np.interp(high, bounds, integral) - np.interp(low, bounds, integral)
    return total / (high - low)
