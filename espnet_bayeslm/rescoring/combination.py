"""How the components' scores of a sentence become one: linear or log-linear."""

from __future__ import annotations

from typing import List

import numpy as np
from numpy.typing import ArrayLike

from espnet_bayeslm.rescoring.interpolation import check_weights
from espnet_bayeslm.utils.errors import InputError

# Of p = sum_k w_k p_k, word by word; of ln P = sum_k w_k ln P_k, as Kaldi's lmrescore.
COMBINATIONS = ("linear", "loglinear")
# Shares of the first component that a sweep tries.
SHARES = tuple(round(0.1 * k, 1) for k in range(11))


def check_combination(combine: str, weights: ArrayLike, num_components: int) -> np.ndarray:
    """Return the weights as float64, (K,).

    Raises:
        InputError: The combination is unknown, or they do not fit: for `linear` they have the
            sum 1, for `loglinear` they are numbers from 0.
    """
    if combine not in COMBINATIONS:
        raise InputError(f"--combine {combine}: expected {' or '.join(COMBINATIONS)}")
    if combine == "linear":
        return check_weights(weights, num_components)
    values = np.asarray(weights, dtype=np.float64)
    if values.shape != (num_components,) or not np.isfinite(values).all() or (values < 0).any():
        raise InputError(
            f"weights {values.tolist()} where {num_components} numbers from 0 were expected",
            remedy="Give one for each --lm, then for each --ngram.",
        )
    return values


def combined(log_probs: np.ndarray, weights: np.ndarray, combine: str) -> np.ndarray:
    """Return the combination's score of each word and `</s>`, (n + 1,), in nats.

    Args:
        log_probs: ln p of each component, (K, n + 1).
        weights: (K,).
        combine: One of `COMBINATIONS`; a log-linear score is not a probability.
    """
    used = weights > 0
    if combine == "linear":
        with np.errstate(divide="ignore"):
            return np.logaddexp.reduce(log_probs[used] + np.log(weights[used])[:, None], axis=0)
    return weights[used] @ log_probs[used]


def candidates(weights: np.ndarray) -> List[np.ndarray]:
    """Return weights to try: shares of the first component, the others in proportion."""
    if len(weights) == 1:
        return [weights]
    first, others = weights[0], weights[1:]
    total = weights.sum()
    rest = others / others.sum() if others.sum() > 0 else np.full(len(others), 1 / len(others))
    shares = sorted({*SHARES, float(first / total)})
    return [total * np.array([share, *((1 - share) * rest)]) for share in shares]
