"""Word errors around tuned weights: a picture of the two that matter most."""

from __future__ import annotations

from typing import NamedTuple, Sequence, Tuple

import numpy as np

from espnet_bayeslm.rescoring.features import Features, first_of_equals, size_of, totals

# Factors of a weight, in a log scale
FACTORS = 2.0 ** np.arange(-5, 5.5, 0.5)
NAMED_SUMS = "+"


class Sweep(NamedTuple):
    """Word errors of tuning lists where two weights are multiplied.

    Attributes:
        names: The two features (or sums of some).
        weights: Their weights, (A,) and (B,); in the middle those that were tuned.
        errors: (A, B).
    """

    names: Tuple[str, str]
    weights: Tuple[np.ndarray, np.ndarray]
    errors: np.ndarray

    @property
    def at_edge(self) -> bool:
        """True if the errors are fewest at the border of the picture only."""
        rows, columns = (slice(1, -1) if size > 1 else slice(None) for size in self.errors.shape)
        return bool(self.errors.min() < self.errors[rows, columns].min())


def sweep(
    lists: Sequence[Features],
    errors: Sequence[np.ndarray],
    *,
    weights: Sequence[Tuple[str, float]],
    scaled: Sequence[Tuple[str, float]],
) -> Sweep:
    """Errors where the weights after the largest one are multiplied."""
    own = dict(weights)
    names = [name for name, weight in scaled[1:3] if weight]
    parts = [name.split(NAMED_SUMS) for name in names]
    total = np.zeros((len(FACTORS) if names else 1, len(FACTORS) if len(names) > 1 else 1), int)
    for features, counts in zip(lists, errors, strict=True):
        grid = totals(features, own)[None, None, :]
        size = np.full((1, 1), size_of(features, own))
        for part, more in zip(parts, ((FACTORS - 1)[:, None], FACTORS - 1), strict=False):
            moved = {name: own[name] for name in part}
            grid = grid + more[..., None] * totals(features, moved)
            size = size + more * size_of(features, moved)
        total += counts[first_of_equals(grid, size)]
    values = [own[part[0]] * FACTORS for part in parts] + [np.zeros(1), np.zeros(1)]
    labels = [*names, "", ""]
    return Sweep((labels[0], labels[1]), (values[0], values[1]), total)
