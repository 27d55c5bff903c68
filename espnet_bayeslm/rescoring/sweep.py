"""Word errors around tuned weights: a picture of the two that matter most."""

from __future__ import annotations

from typing import NamedTuple, Sequence, Tuple

import numpy as np

from espnet_bayeslm.rescoring.features import Features, totals

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
        """Whether the errors are fewest at the picture's border only."""
        rows, columns = (slice(1, -1) if size > 1 else slice(None) for size in self.errors.shape)
        return bool(self.errors.min() < self.errors[rows, columns].min())


def sweep(
    lists: Sequence[Features],
    errors: Sequence[np.ndarray],
    *,
    weights: Sequence[Tuple[str, float]],
    scaled: Sequence[Tuple[str, float]],
) -> Sweep:
    """Errors where the weights after the largest one are multiplied.

    Args:
        lists: Of each list its features.
        errors: Of each list the word errors of its hypotheses.
        weights: Those of features, in their own units.
        scaled: Those of features or sums, in units of spread, the largest first. Only ratios
            count, so the first is held.
    """
    own = dict(weights)
    names = [name for name, weight in scaled[1:3] if weight]
    parts = [name.split(NAMED_SUMS) for name in names]
    total = np.zeros((len(FACTORS) if names else 1, len(FACTORS) if len(names) > 1 else 1), int)
    for features, counts in zip(lists, errors, strict=True):
        moved = [totals(features, {name: own[name] for name in part}) for part in parts]
        grid = totals(features, own)[None, None, :]
        if moved:
            grid = grid + (FACTORS - 1)[:, None, None] * moved[0]
        if moved[1:]:
            grid = grid + (FACTORS - 1)[:, None] * moved[1]
        total += counts[grid.argmax(axis=-1)]
    values = [own[part[0]] * FACTORS for part in parts] + [np.zeros(1), np.zeros(1)]
    labels = [*names, "", ""]
    return Sweep((labels[0], labels[1]), (values[0], values[1]), total)
