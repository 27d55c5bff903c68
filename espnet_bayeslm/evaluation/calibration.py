"""Confidences of words: how well they are calibrated, how well they tell right from wrong."""

from __future__ import annotations

from typing import NamedTuple, Optional, Sequence, Tuple

import numpy as np

NUM_BINS = 15
# The log-odds of a confidence of 0 or 1 are taken at this distance from it.
NEAREST = 1e-4


def calibration_error(confidences: np.ndarray, correct: np.ndarray) -> float:
    """Expected calibration error: mean |accuracy - confidence| over bins of equal width.

    Guo et al. (2017): On calibration of modern neural networks. Bins count by their words. The
    confidences, (n,), are between 0 and 1; `correct`, (n,), is True for each right word.
    """
    bins = np.minimum((confidences * NUM_BINS).astype(int), NUM_BINS - 1)
    gaps = np.bincount(bins, weights=correct - confidences, minlength=NUM_BINS)
    return float(np.abs(gaps).sum() / max(len(confidences), 1))


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


def log_odds(confidences: np.ndarray) -> np.ndarray:
    """Ln(p / (1 - p)) of each, (n,), in nats; finite for 0 and 1 too."""
    inner = np.clip(confidences, NEAREST, 1.0 - NEAREST)
    return np.log(inner) - np.log1p(-inner)


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
