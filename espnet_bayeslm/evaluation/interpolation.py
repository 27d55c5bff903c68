"""Linear interpolation, word by word: p = sum_k w_k p_k."""

from __future__ import annotations

from typing import List, Sequence

import numpy as np
from numpy.typing import ArrayLike

from espnet_bayeslm.evaluation.em import em_weights
from espnet_bayeslm.evaluation.word_scores import WordScores
from espnet_bayeslm.utils.weights import check_weights


def combined(log_probs: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Ln p of each word and `</s>` under the mixture, (n + 1,), in nats.

    Args:
        log_probs: ln p of each component, (K, n + 1).
        weights: (K,), from 0.
    """
    used = weights > 0
    with np.errstate(divide="ignore"):
        return np.logaddexp.reduce(log_probs[used] + np.log(weights[used])[:, None], axis=0)


def mix(scores: Sequence[Sequence[WordScores]], weights: ArrayLike) -> List[WordScores]:
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
