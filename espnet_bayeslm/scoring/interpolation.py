"""Linear interpolation, word by word: p = sum_k w_k p_k; weights of the highest likelihood."""

from __future__ import annotations

from typing import List, Optional, Sequence

import numpy as np
from numpy.typing import ArrayLike

from espnet_bayeslm.scoring.word_scores import WordScores
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.options import check_weights

MAX_STEPS = 1000


def combined(log_probs: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Ln p under the mixture, (n + 1,), of ln p of each component, (K, n + 1), and K weights."""
    if len(weights) == 1:
        return log_probs[0]
    used = weights > 0
    with np.errstate(divide="ignore"):
        return np.logaddexp.reduce(log_probs[used] + np.log(weights[used])[:, None], axis=0)


def mixed_scores(scores: Sequence[Sequence[WordScores]], weights: ArrayLike) -> List[WordScores]:
    """Ln sum_k w_k p_k of each word; a word is OOV where a component does not know it."""
    checked = check_weights(weights, len(scores))
    mixed = []
    for sentence in zip(*scores, strict=True):
        log_probs = np.stack([s.log_probs for s in sentence])
        oov = np.logical_or.reduce([s.oov for s in sentence])
        mixed.append(WordScores(combined(log_probs, checked), oov))
    return mixed


def estimate_weights(scores: Sequence[Sequence[WordScores]]) -> np.ndarray:
    """EM weights over the words that every component knows, of scores as `mix` takes them."""
    log_probs = np.stack([np.concatenate([s.log_probs for s in c]) for c in scores], axis=1)
    oov = np.stack([np.concatenate([s.oov for s in c]) for c in scores], axis=1)
    return em_weights(log_probs[~oov.any(axis=1)])


def em_weights(log_probs: np.ndarray, tol: float = 1e-6) -> np.ndarray:
    """Interpolation weights that maximise the likelihood, which falls in no step.

    From equal weights on, each step takes the maximum over all w >= 0 of the quadratic model at w,
    if the likelihood is higher there (Kim et al. 2020, "A fast algorithm for maximum likelihood
    estimation of mixture proportions using sequential quadratic programming"). Otherwise it is a
    step of expectation-maximisation, w_k <- mean(w_k p_k / sum_j w_j p_j) (Jelinek and Mercer
    1980). EM alone needs hundreds of steps where components are alike.

    Args:
        log_probs: (T, K) ln p of T words under each of K components; -inf is allowed
            where another component knows the word.
        tol: Stop when no weight would change by more.

    Returns:
        (K,) float64 weights, not negative, with the sum 1.

    Raises:
        InputError: The shape is wrong, a value is nan or +inf, or no component knows a word.
    """
    probs = _scaled_probs(log_probs)
    weights = np.full(len(probs), 1.0 / len(probs))
    mix = weights @ probs
    likelihood = float(np.log(mix).mean())
    for _ in range(MAX_STEPS):
        # ratio: (K, T), p_k / sum_j w_j p_j; its mean is the gradient, 1 at the maximum where w > 0
        ratio = probs / mix
        gradient = ratio.mean(axis=1)
        candidates = [weights * gradient / (weights @ gradient)]
        newton = _newton(weights, gradient, ratio)
        if newton is not None:
            candidates.insert(0, newton)
        if np.abs(candidates[0] - weights).max() <= tol:
            break
        for candidate in candidates:
            candidate_mix = candidate @ probs
            with np.errstate(divide="ignore"):
                value = float(np.log(candidate_mix).mean())
            if value > likelihood:
                weights, mix, likelihood = candidate, candidate_mix, value
                break
        else:  # the likelihood is at its maximum within rounding
            break
    return weights


def _scaled_probs(log_probs: np.ndarray) -> np.ndarray:
    """(K, T) probabilities, each word's divided by its largest: the maximum stays in place."""
    values = np.asarray(log_probs, dtype=np.float64)
    if values.ndim != 2 or 0 in values.shape:
        raise InputError(
            f"log_probs has the shape {values.shape} where (words, components) was expected",
            remedy="Give at least one word and one component.",
        )
    columns = np.ascontiguousarray(values.T)  # long rows: the fast layout for few components
    top = columns.max(axis=0)
    bad = np.flatnonzero(~np.isfinite(top))  # nan, +inf, or -inf in all components
    if len(bad):
        raise InputError(
            f"{len(bad)} of {len(top)} rows of log_probs cannot be used, the first"
            f" {bad[0]}: {values[bad[0]].tolist()}",
            remedy="ln p must be finite, or -inf in some components of a row only.",
        )
    return np.exp(columns - top)


def _newton(weights: np.ndarray, gradient: np.ndarray, ratio: np.ndarray) -> Optional[np.ndarray]:
    """Maximum over w >= 0 of the quadratic model at `weights`, scaled to the sum 1.

    The quadratic model approximates mean(ln p w) - sum(w), whose maximum has the sum 1 by itself.
    With gradient `g - 1` and curvature `H = ratio ratio' / T`, `H w = g`, it is maximal at the
    non-negative least squares solution of `R y = R^-T (2g - 1)`, `R' R = H`.
    """
    from scipy.optimize import nnls  # takes a while

    hessian = ratio @ ratio.T / ratio.shape[1]
    ridge = 1e-10 * float(np.trace(hessian))  # equal components make it singular
    try:
        root = np.linalg.cholesky(hessian + ridge * np.eye(len(weights)))
        target, _ = nnls(root.T, np.linalg.solve(root, 2 * gradient - 1 + ridge * weights))
    except (np.linalg.LinAlgError, RuntimeError):  # the step of EM is always there
        return None
    total = target.sum()
    return target / total if total > 0 else None
