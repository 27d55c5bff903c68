"""Minimum Bayes risk over an N-best list: expected word errors, and confidences of words.

The posterior over the list is softmax(sharpness x total): what a hypothesis is worth as a
reference. Goel, V. and Byrne, W. (2000): Minimum Bayes-risk automatic speech recognition.
"""

from __future__ import annotations

import dataclasses
import math
from itertools import combinations
from typing import Dict, List, Sequence, Tuple

import kaldialign
import numpy as np

from espnet_bayeslm.evaluation.calibration import Platt
from espnet_bayeslm.utils.errors import InputError

Words = Tuple[str, ...]

DECISIONS = ("max", "mbr")
# Risks that differ by less than this part of the largest are equal: the first of them wins.
SAME_RISK = 1e-9
# Stands where an alignment has no word; no word is empty.
GAP = ""


@dataclasses.dataclass(frozen=True)
class Posterior:
    """How a list's totals become probabilities.

    Attributes:
        sharpness: What totals are multiplied by before the softmax.
        slope: Of the scaling of words' confidences (`Platt`).
        offset: Of the same, in nats.

    Raises:
        ValueError: The sharpness is not positive, the slope is negative, or one is not finite.
    """

    sharpness: float = 1.0
    slope: float = 1.0
    offset: float = 0.0

    def __post_init__(self) -> None:
        ok = 0 < self.sharpness < math.inf and 0 <= self.slope < math.inf
        if not (ok and math.isfinite(self.offset)):
            raise ValueError(
                f"sharpness must be positive, slope not negative, and all finite: {self}"
            )

    @property
    def scaling(self) -> Platt:
        """Calibration of posterior masses of words to probabilities of being right."""
        return Platt(self.slope, self.offset)


def list_posterior(totals: np.ndarray, sharpness: float = 1.0) -> np.ndarray:
    """Probabilities of the hypotheses of a list, (N,).

    Args:
        totals: (N,) weighted sums of scores, higher is better; -inf is impossible.
        sharpness: What they are multiplied by before the softmax.

    Raises:
        InputError: A total is NaN or +inf, or all are -inf.
    """
    highest = totals.max()
    if not np.isfinite(highest):
        place = 0 if highest == -np.inf else int((~(totals < np.inf)).argmax())
        raise InputError(
            f"the total score of hypothesis {place + 1} of {len(totals)} is {totals[place]}, and a"
            " posterior over the list needs a finite one",
            remedy="Leave the hypothesis out, or give a finite score.",
        )
    shares = np.exp(sharpness * (totals - highest))
    return shares / shares.sum()


def edit_distances(hypotheses: Sequence[Words]) -> np.ndarray:
    """Word errors of each hypothesis with each other one as the reference, (N, N).

    Each pair of distinct hypotheses is aligned once.
    """
    place: Dict[Words, int] = {}
    rows = [place.setdefault(words, len(place)) for words in hypotheses]
    distinct = list(place)
    found = np.zeros((len(distinct), len(distinct)), dtype=int)
    for i, j in combinations(range(len(distinct)), 2):
        errors = kaldialign.edit_distance(distinct[i], distinct[j])["total"]
        found[i, j] = found[j, i] = errors
    return found[np.ix_(rows, rows)]


def distances_of(words: Words, hypotheses: Sequence[Words]) -> np.ndarray:
    """Word errors of one hypothesis with each one of a list as the reference, (N,)."""
    known = {other: kaldialign.edit_distance(words, other)["total"] for other in set(hypotheses)}
    return np.array([known[other] for other in hypotheses])


def least_risk(posterior: np.ndarray, distances: np.ndarray) -> int:
    """Place of the hypothesis with the fewest expected errors, the first of equals.

    Args:
        posterior: (N,) probabilities.
        distances: (N, N) errors of each with each other one as the reference.
    """
    risks = distances @ posterior
    return int((risks <= risks.min() + SAME_RISK * risks.max()).argmax())


def words_in_place(words: Words, hypotheses: Sequence[Words]) -> np.ndarray:
    """Whether each hypothesis has each of some words at its place of the alignment, (N, n).

    Args:
        words: n words, those of one hypothesis.
        hypotheses: All N of the list.
    """
    known: Dict[Words, List[bool]] = {}
    for other in hypotheses:
        if other not in known:
            pairs = kaldialign.align(words, other, GAP)
            known[other] = [word == theirs for word, theirs in pairs if word != GAP]
    return np.array([known[other] for other in hypotheses]).reshape(len(hypotheses), len(words))


def word_confidences(posterior: np.ndarray, in_place: np.ndarray) -> np.ndarray:
    """Posterior mass of the hypotheses that have each word at its place, (n,).

    Args:
        posterior: (N,) probabilities.
        in_place: (N, n), by `words_in_place`.
    """
    return np.clip(posterior @ in_place, 0.0, 1.0)
