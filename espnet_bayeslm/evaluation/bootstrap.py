"""Bootstrap interval of the difference between two word error rates.

Bisani and Ney, "Bootstrap estimates for confidence intervals in ASR performance evaluation",
ICASSP 2004: utterances are drawn again and again with replacement, the same ones for both systems.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import numpy as np

from espnet_bayeslm.utils.errors import InputError

NUM_REPLICATES = 10_000
LEVEL = 0.95
# The most utterance numbers that are held at a time, so that memory does not grow with the set
_HELD = 1 << 22


@dataclasses.dataclass(frozen=True)
class WerDifference:
    """WER of system A less WER of system B: positive where B is the better system.

    Attributes:
        difference: Difference on the set itself, as a fraction.
        low: Lower end of the interval.
        high: Upper end of the interval.
        improvement: Probability that B is better than A: the share of the replicates in which it
            makes fewer errors.
        level: Probability of the interval, half of the rest lying on each side.
    """

    difference: float
    low: float
    high: float
    improvement: float
    level: float = LEVEL


def bootstrap_wer_difference(
    errors_a: np.ndarray,
    errors_b: np.ndarray,
    words: np.ndarray,
    *,
    num_replicates: int = NUM_REPLICATES,
    level: float = LEVEL,
    seed: int = 0,
) -> WerDifference:
    """Difference of two word error rates and its interval.

    Args:
        errors_a: (U,) errors of system A in each utterance.
        errors_b: (U,) errors of system B in the same utterances.
        words: (U,) words of their references.
        num_replicates: Number of replicates of U utterances each.
        level: Probability of the interval.
        seed: Seed of the replicates; one seed and one U give equal replicates for all systems.

    Raises:
        InputError: The references have no words.
    """
    totals = replicate_totals(
        np.stack([errors_a, errors_b, words], axis=1), num_replicates=num_replicates, seed=seed
    )
    observed = (int(np.sum(errors_a)), int(np.sum(errors_b)), int(np.sum(words)))
    drawn_a, drawn_b, drawn_words = totals.T
    return difference_of_totals(
        ErrorTotals(observed[0], observed[2], drawn_a, drawn_words),
        ErrorTotals(observed[1], observed[2], drawn_b, drawn_words),
        level=level,
    )


def replicate_totals(
    counts: np.ndarray, *, num_replicates: int = NUM_REPLICATES, seed: int = 0
) -> np.ndarray:
    """Totals of counts over utterances drawn with replacement.

    Args:
        counts: (U, K) K counts of each utterance: errors of some systems, words.
        num_replicates: Number of replicates of U utterances each.
        seed: Seed of the replicates.

    Returns:
        (num_replicates, K) float64, whole numbers.
    """
    num_utts = len(counts)
    if num_utts == 0:
        return np.zeros((num_replicates, counts.shape[1]))
    rows = max(1, _HELD // num_utts)
    rng = np.random.default_rng(seed)
    totals = []
    for start in range(0, num_replicates, rows):
        # the replicates do not depend on how many are held at a time
        shape = min(rows, num_replicates - start), num_utts
        chosen = rng.integers(num_utts, size=shape, dtype=np.int32)
        # how often each row holds each utterance, (R, U)
        places = (chosen + num_utts * np.arange(len(chosen))[:, None]).ravel()
        drawn = np.bincount(places, minlength=chosen.size).reshape(chosen.shape)
        totals.append(drawn @ counts.astype(np.float64))
    return np.concatenate(totals)


class ErrorTotals(NamedTuple):
    """Errors and reference words of one system."""

    errors: int
    words: int
    drawn_errors: np.ndarray
    drawn_words: np.ndarray


def difference_of_totals(a: ErrorTotals, b: ErrorTotals, *, level: float = LEVEL) -> WerDifference:
    """Difference of two word error rates and its interval, from replicates.

    Args:
        a: System A.
        b: System B; the number of words differs from A's only where references have alternations.
        level: Probability of the interval; a replicate without a word is left out.
    """
    drawn = (a.drawn_words > 0) & (b.drawn_words > 0)
    if not a.words or not b.words or not drawn.any():
        raise InputError(
            "the references have no words, so there is no word error rate to compare",
            remedy="Give one system, or references with words.",
        )
    differences = _difference(
        *(values[drawn] for total in (a, b) for values in (total.drawn_errors, total.drawn_words))
    )
    low, high = np.quantile(differences, [(1 - level) / 2, (1 + level) / 2])
    return WerDifference(
        float(_difference(a.errors, a.words, b.errors, b.words)),
        float(low),
        float(high),
        float((differences > 0).mean()),
        level,
    )


def _difference(errors_a: Any, words_a: Any, errors_b: Any, words_b: Any) -> Any:
    """Rate of A less rate of B; exactly 0 where the errors are equal and the words are."""
    return (errors_a - errors_b * (words_a / words_b)) / words_a
