"""The discounts of modified Kneser-Ney smoothing, one triple per order."""

from __future__ import annotations

import logging
from itertools import pairwise
from typing import List, Sequence

import numpy as np

from espnet_bayeslm.ngram.counts import NgramTable
from espnet_bayeslm.utils.errors import InputError

# lmplz's default for --discount_fallback: D1, D2, D3+ with a leading D0
FALLBACK = np.array([0.0, 0.5, 1.0, 1.5])


def estimate_discounts(
    tables: Sequence[NgramTable], *, discount_fallback: bool = False
) -> List[np.ndarray]:
    """Discounts (4,) of adjusted counts 0 (always 0), 1, 2 and 3+, per order.

    Args:
        tables: Orders 1 to n.
        discount_fallback: Take 0.5, 1, 1.5 for an order whose counts allow no estimate.

    Raises:
        InputError: They allow none, and `discount_fallback` is off.
    """
    discounts = []
    for order, counts in enumerate(_statistics_counts(tables), 1):
        try:
            discounts.append(closed_form_discounts(np.bincount(counts, minlength=5)[:5]))
        except ValueError as error:
            if not discount_fallback:
                raise InputError(
                    f"cannot estimate the discounts of {order}-grams: {error}",
                    remedy="The text is small or artificial: take more text, a lower --order, or "
                    "--discount_fallback true.",
                ) from error
            logging.warning(
                "%d-grams: %s; fallback discounts %s", order, error, FALLBACK[1:].tolist()
            )
            discounts.append(FALLBACK)
    return discounts


def closed_form_discounts(count_of_counts: np.ndarray) -> np.ndarray:
    """(0, D1, D2, D3+): Eq. (26), Chen and Goodman 1998.

    Args:
        count_of_counts: (5,) how many n-grams have adjusted count 0 (not used), 1, 2, 3, 4.

    Raises:
        ValueError: A count of counts is 0, or a discount exceeds its count or is negative.
    """
    n = np.asarray(count_of_counts, dtype=np.float64)
    if not n[1:4].all():
        missing = 1 + int(np.argmin(n[1:4]))
        raise ValueError(f"none has adjusted count {missing}")
    y = n[1] / (n[1] + 2 * n[2])
    j = np.arange(1, 4)
    discounts = j - (j + 1) * y * n[2:5] / n[1:4]
    bad = (discounts < 0) | (discounts > j)
    if bad.any():
        worst = int(np.argmax(bad))
        raise ValueError(
            f"the discount of adjusted count {worst + 1} is {discounts[worst]:.4g}, "
            f"outside 0 to {worst + 1}"
        )
    return np.concatenate([[0.0], discounts])


def _statistics_counts(tables: Sequence[NgramTable]) -> List[np.ndarray]:
    """Counts (G,) from which lmplz takes its counts of counts, per order.

    They are the adjusted counts, but lmplz files the very last n-gram of each lower order under
    its raw count. On a small text this one count moves the discounts by more than 1e-4.
    """
    result = []
    for table, higher in pairwise(tables):
        counts = table.adjusted.copy()
        counts[-1] = table.raw[-1]
        result.append(counts)
        # a last n-gram that starts with <s> has no longer one, and ends the chain
        if higher.suffix[-1] != len(table.raw) - 1:
            break
    return [*result, *(table.adjusted for table in tables[len(result) :])]
