"""Bootstrap interval of the difference between two word error rates.

Bisani and Ney, "Bootstrap estimates for confidence intervals in ASR performance evaluation",
ICASSP 2004: utterances are drawn again and again with replacement, the same ones for both systems.
"""

from __future__ import annotations

import dataclasses

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
    counts = np.stack([errors_a, words, errors_b, words], axis=1)
    drawn = replicate_totals(counts, num_replicates=num_replicates, seed=seed)
    return difference_of_totals(counts.sum(axis=0), drawn, level=level)


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


def difference_of_totals(
    totals: np.ndarray, drawn: np.ndarray, *, level: float = LEVEL
) -> WerDifference:
    """Difference of two word error rates and its interval, from replicates.

    Args:
        totals: (4,) errors and words of system A, errors and words of system B. The words differ
            only where references have alternations.
        drawn: (num_replicates, 4) the same of each replicate; one without a word is left out.
        level: Probability of the interval.
    """
    drawn = drawn[(drawn[:, 1] > 0) & (drawn[:, 3] > 0)]
    if not (totals[1] and totals[3] and len(drawn)):
        raise InputError(
            "the references have no words, so there is no word error rate to compare",
            remedy="Give one system, or references with words.",
        )
    # exactly 0 where the errors are equal and the words are
    errors_a, words_a, errors_b, words_b = np.vstack([totals, drawn]).T
    observed, *differences = (errors_a - errors_b * (words_a / words_b)) / words_a
    low, high = np.quantile(differences, [(1 - level) / 2, (1 + level) / 2])
    improvement = float((np.array(differences) > 0).mean())
    return WerDifference(float(observed), float(low), float(high), improvement, level)
