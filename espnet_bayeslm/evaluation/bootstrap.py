"""Bootstrap interval of the difference between two word error rates.

Bisani and Ney, "Bootstrap estimates for confidence intervals in ASR performance evaluation",
ICASSP 2004: utterances are drawn again and again with replacement, the same ones for both systems.
"""

from __future__ import annotations

import dataclasses
from typing import Tuple

import numpy as np

from espnet_bayeslm.utils.errors import InputError

NUM_REPLICATES = 10_000
LEVEL = 0.95
# Draws of utterances that are held at a time, so that memory does not grow with the set
_BLOCK = 1 << 22


@dataclasses.dataclass(frozen=True)
class WerDifference:
    """WER of system A less WER of system B: positive where B is the better system.

    Attributes:
        difference: On the set itself, as a fraction.
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
        num_replicates: How often U utterances are drawn.
        level: Probability of the interval.
        seed: Of the draws; one seed and one U give the same draws for all systems.

    Raises:
        InputError: The references have no words.
    """
    totals = replicate_totals(
        np.stack([errors_a, errors_b, words], axis=1), num_replicates=num_replicates, seed=seed
    )
    return difference_of_totals(
        (int(np.sum(errors_a)), int(np.sum(errors_b)), int(np.sum(words))), *totals.T, level=level
    )


def replicate_totals(
    counts: np.ndarray, *, num_replicates: int = NUM_REPLICATES, seed: int = 0
) -> np.ndarray:
    """Totals of counts over utterances drawn with replacement.

    Args:
        counts: (U, K) K counts of each utterance: errors of some systems, words.
        num_replicates: How often U utterances are drawn.
        seed: Of the draws.

    Returns:
        (num_replicates, K) float64, whole numbers.
    """
    num_utts = len(counts)
    if num_utts == 0:
        return np.zeros((num_replicates, counts.shape[1]))
    rows = max(1, _BLOCK // num_utts)
    rng = np.random.default_rng(seed)
    totals = []
    for start in range(0, num_replicates, rows):
        # the draws do not depend on how many are held at a time
        shape = min(rows, num_replicates - start), num_utts
        block = rng.integers(num_utts, size=shape, dtype=np.int32)
        # how often each row holds each utterance, (R, U)
        places = (block + num_utts * np.arange(len(block))[:, None]).ravel()
        drawn = np.bincount(places, minlength=block.size).reshape(block.shape)
        totals.append(drawn @ counts.astype(np.float64))
    return np.concatenate(totals)


def difference_of_totals(
    totals: Tuple[int, int, int],
    errors_a: np.ndarray,
    errors_b: np.ndarray,
    words: np.ndarray,
    *,
    level: float = LEVEL,
) -> WerDifference:
    """Difference of two word error rates and its interval, from replicates.

    Args:
        totals: Errors of A, errors of B and words of the set itself.
        errors_a: (R,) errors of system A in each replicate.
        errors_b: (R,) errors of system B.
        words: (R,) words of the references; a replicate without a word is left out.
        level: Probability of the interval.

    Raises:
        InputError: The references have no words.
    """
    drawn = words > 0
    if not totals[2] or not drawn.any():
        raise InputError(
            "the references have no words, so there is no word error rate to compare",
            remedy="Give one system, or references with words.",
        )
    differences = (errors_a - errors_b)[drawn] / words[drawn]
    low, high = np.quantile(differences, [(1 - level) / 2, (1 + level) / 2])
    return WerDifference(
        (totals[0] - totals[1]) / totals[2],
        float(low),
        float(high),
        float((differences > 0).mean()),
        level,
    )
