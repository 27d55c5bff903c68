"""Minimum Bayes risk over an N-best list, and confidences of words with their calibration.

The posterior over the list is softmax(sharpness x total): what a hypothesis is worth as a
reference. Goel, V. and Byrne, W. (2000): Minimum Bayes-risk automatic speech recognition.

It is tuned by calibration: the sharpness is the one whose confidences, once scaled, have the
highest likelihood of the words that are right; the words are those of the best hypotheses. Word
errors would be a staircase, lower or higher by chance at neighbouring values; this is smooth.
"""

from __future__ import annotations

import dataclasses
import math
from itertools import combinations
from typing import Dict, NamedTuple, Optional, Sequence, Tuple

import kaldialign
import numpy as np

from espnet_bayeslm.utils.errors import InputError

Words = Tuple[str, ...]

DECISIONS = ("max", "mbr")
# Risks that differ by less than this part of the largest are equal: the first of them wins.
SAME_RISK = 1e-9
# Stands where an alignment has no word; no word is empty.
GAP = ""
# Sharpness per inverse spread of the totals within a list
GRID = 2.0 ** np.arange(-4.0, 5.25, 0.25)
NUM_BINS = 15
# The log-odds of a confidence that is nearer to 0 or 1 go on in a straight line.
NEAREST = 1e-4
# The NCE of a confidence that is nearer to 0 or 1 is taken at this distance
NEAREST_NCE = 1e-7


class Platt(NamedTuple):
    """Platt scaling of confidences: sigmoid(slope x log-odds + offset).

    Attributes:
        slope: Not negative, so that the order of confidences stays.
        offset: In nats.
    """

    slope: float = 1.0
    offset: float = 0.0

    def calibrated(self, confidences: np.ndarray) -> np.ndarray:
        """Probabilities of being right, (n,); without a scaling the confidences themselves."""
        if self == Platt():
            return confidences
        return 1.0 / (1.0 + np.exp(-(self.slope * log_odds(confidences) + self.offset)))


@dataclasses.dataclass(frozen=True)
class ListPosterior:
    """Posterior over the hypotheses of a list, as a softmax of their totals.

    Attributes:
        sharpness: Factor of the totals before the softmax.
        slope: Slope of the scaling of word confidences (`Platt`).
        offset: Offset of this scaling, in nats.

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
    """Probabilities of the hypotheses of a list, (N,): softmax(sharpness x totals).

    Totals are weighted sums of scores, (N,), higher is better; -inf is impossible.
    """
    highest = totals.max()
    if not np.isfinite(highest):
        place = int((~(totals < np.inf)).argmax())
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
    distances = np.zeros((len(distinct), len(distinct)), dtype=int)
    for i, j in combinations(range(len(distinct)), 2):
        errors = kaldialign.edit_distance(distinct[i], distinct[j])["total"]
        distances[i, j] = distances[j, i] = errors
    return distances[np.ix_(rows, rows)]


def distances_of(words: Words, hypotheses: Sequence[Words]) -> np.ndarray:
    """Word errors of one hypothesis with each one of a list as the reference, (N,)."""
    known = {other: kaldialign.edit_distance(words, other)["total"] for other in set(hypotheses)}
    return np.array([known[other] for other in hypotheses])


def least_risk(posterior: np.ndarray, distances: np.ndarray) -> int:
    """Place of the hypothesis with the fewest expected errors, the first of equals.

    The posterior is (N,), the distances are (N, N), by `edit_distances`.
    """
    risks = distances @ posterior
    return int((risks <= risks.min() + SAME_RISK * risks.max()).argmax())


def words_in_place(words: Words, hypotheses: Sequence[Words]) -> np.ndarray:
    """True where a hypothesis has a word at the place of the alignment, (N, n)."""
    known = {
        other: [own == its for own, its in kaldialign.align(words, other, GAP) if own != GAP]
        for other in set(hypotheses)
    }
    return np.array([known[other] for other in hypotheses]).reshape(len(hypotheses), len(words))


def word_confidences(posterior: np.ndarray, in_place: np.ndarray) -> np.ndarray:
    """Posterior mass, (n,), of the hypotheses that have each word at its place, (N, n)."""
    return np.clip(posterior @ in_place, 0.0, 1.0)


def tuned_posterior(
    totals: Sequence[np.ndarray],
    hypotheses: Sequence[Sequence[Words]],
    refs: Sequence[Words],
    best: Sequence[int],
) -> ListPosterior:
    """The posterior under which the words that are right are likeliest.

    Of each list there are the totals, (N,), the hypotheses' words, the words that were said, and
    the place of the best hypothesis.
    """
    rows = list(zip(hypotheses, refs, best, strict=True))
    in_place = [words_in_place(hyps[k], hyps) for hyps, _, k in rows]
    correct = np.concatenate([words_in_place(hyps[k], [ref])[0] for hyps, ref, k in rows])
    best_posterior, least = ListPosterior(), math.inf
    for sharpness in (1.0 / spread(totals) * GRID).tolist() if len(correct) else ():
        pairs = zip(totals, in_place, strict=True)
        masses = [word_confidences(list_posterior(t, sharpness), places) for t, places in pairs]
        platt, loss = fit_platt(np.concatenate(masses), correct)
        if loss < least:
            best_posterior, least = ListPosterior(sharpness, *platt), loss
    return best_posterior


def spread(totals: Sequence[np.ndarray]) -> float:
    """Root of the mean variance of the possible totals within a list; 1 where they are equal."""
    possible = [values[np.isfinite(values)] for values in totals]
    variances = [values.var() for values in possible if len(values)]
    root = float(np.sqrt(np.mean(variances))) if variances else 0.0
    return root if root > 0 else 1.0


def log_odds(confidences: np.ndarray) -> np.ndarray:
    """Ln(p / (1 - p)) of each, (n,), in nats; finite for 0 and 1 too, and in the order of p."""
    inner = np.clip(confidences, NEAREST, 1.0 - NEAREST)
    beyond = (confidences - inner) / (NEAREST * (1.0 - NEAREST))
    return np.log(inner) - np.log1p(-inner) + beyond


def fit_platt(confidences: np.ndarray, correct: np.ndarray) -> Tuple[Platt, float]:
    """The scaling of the highest likelihood, and its mean negative log-likelihood in nats.

    Targets are smoothed as by Platt (1999), so that few words, or all of them right, do no harm.
    Confidences are (n,), one or more; `correct`, (n,), is True for each right word.
    """
    num_right = int(correct.sum())
    num_wrong = len(correct) - num_right
    from scipy.optimize import minimize  # takes a while

    targets = np.where(correct, (num_right + 1) / (num_right + 2), 1 / (num_wrong + 2))
    odds = log_odds(confidences)

    def loss(params: np.ndarray) -> Tuple[float, np.ndarray]:
        logits = params[0] * odds + params[1]
        excess = 1.0 / (1.0 + np.exp(-logits)) - targets
        value = (np.logaddexp(0.0, logits) - targets * logits).mean()
        return float(value), np.array([(excess * odds).mean(), excess.mean()])

    bounds = [(0.0, None), (None, None)]
    optimum = minimize(loss, [1.0, 0.0], jac=True, method="L-BFGS-B", bounds=bounds)
    return Platt(*map(float, optimum.x)), float(optimum.fun)


def calibration_error(confidences: np.ndarray, correct: np.ndarray) -> float:
    """Expected calibration error: mean |accuracy - confidence| over bins of equal width.

    Guo et al. (2017): On calibration of modern neural networks. Bins count by their words. The
    confidences, (n,), are between 0 and 1; `correct`, (n,), is True for each right word.
    """
    bins = np.minimum((confidences * NUM_BINS).astype(int), NUM_BINS - 1)
    gaps = np.bincount(bins, weights=correct - confidences, minlength=NUM_BINS)
    return float(np.abs(gaps).sum() / max(len(confidences), 1))


def normalized_cross_entropy(confidences: np.ndarray, correct: np.ndarray) -> Optional[float]:
    """NIST's NCE: by how much of their entropy confidences tell right words from wrong ones.

    1 at best, 0 for the share of right words as each word's confidence, and below for worse ones.
    As in sclite confidences are kept 1e-7 away from 0 and 1. Both arguments are as of
    `calibration_error`; None where all words are right, or none is.
    """
    share = float(np.mean(correct)) if len(correct) else 0.0
    if share in (0.0, 1.0):
        return None
    sure = np.clip(confidences, NEAREST_NCE, 1 - NEAREST_NCE)
    entropy = -share * math.log(share) - (1 - share) * math.log1p(-share)
    return 1 + float(np.log(np.where(correct, sure, 1 - sure)).mean()) / entropy


def risk_coverage(confidences: np.ndarray, correct: np.ndarray) -> np.ndarray:
    """Share of wrong words among the 1, 2, ... n words of the highest confidence, (n,).

    El-Yaniv and Wiener (2010): On the foundations of noise-free selective classification. Words of
    one confidence come in no order: each counts as their share of wrong ones.
    """
    _, group, sizes = np.unique(-confidences, return_inverse=True, return_counts=True)
    wrong = np.bincount(group, weights=~correct) / sizes
    return np.cumsum(wrong[np.sort(group)]) / np.arange(1, len(correct) + 1)


def auroc(values: Sequence[float], positive: Sequence[bool]) -> Optional[float]:
    """Probability that a positive item has a larger value than a negative one.

    Ties count half. None where all are positive, or none is.
    """
    from scipy.stats import rankdata  # takes a while

    mask = np.array(positive, dtype=bool)
    num_positive, num_negative = int(mask.sum()), int((~mask).sum())
    if not num_positive or not num_negative:
        return None
    ranks = rankdata(values)[mask].sum()
    return float((ranks - num_positive * (num_positive + 1) / 2) / (num_positive * num_negative))
