"""Linear interpolation, word by word: p = sum_k w_k p_k."""

from __future__ import annotations

from typing import List, Sequence

import numpy as np
from numpy.typing import ArrayLike

from espnet_bayeslm.evaluation.em import em_weights
from espnet_bayeslm.evaluation.word_scores import WordScorer, WordScores
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.weights import check_weights

# Of p = sum_k w_k p_k, word by word; of ln P = sum_k w_k ln P_k, as Kaldi's lmrescore.
COMBINATIONS = ("linear", "loglinear")


def combined(log_probs: np.ndarray, weights: np.ndarray, combine: str) -> np.ndarray:
    """Combined score of each word and `</s>`, (n + 1,), in nats.

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


def check_combination(combine: str, weights: ArrayLike, num_components: int) -> np.ndarray:
    """Weights as float64, (K,)."""
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


class MixtureScorer:
    """A fixed mixture of scorers."""

    def __init__(
        self,
        components: Sequence[WordScorer],
        weights: ArrayLike,
        *,
        name: str = "mixture",
    ):
        self.weights = check_weights(weights, len(components))
        self.components = list(components)
        self.name = name

    def word_scores(self, sentences: Sequence[Sequence[str]]) -> List[WordScores]:
        """Scores of the mixture; a word is OOV where a component does not know it."""
        return mix([c.word_scores(sentences) for c in self.components], self.weights)


def mix(scores: Sequence[Sequence[WordScores]], weights: ArrayLike) -> List[WordScores]:
    """Ln sum_k w_k p_k of each word."""
    checked = check_weights(weights, len(scores))
    mixed = []
    for sentence in zip(*scores, strict=True):
        log_probs = np.stack([s.log_probs for s in sentence])
        oov = np.logical_or.reduce([s.oov for s in sentence])
        mixed.append(WordScores(combined(log_probs, checked, "linear"), oov))
    return mixed


def estimate_weights(scores: Sequence[Sequence[WordScores]]) -> np.ndarray:
    """EM weights over the words that every component knows, of scores as `mix` takes them."""
    log_probs = np.stack([np.concatenate([s.log_probs for s in c]) for c in scores], axis=1)
    oov = np.stack([np.concatenate([s.oov for s in c]) for c in scores], axis=1)
    return em_weights(log_probs[~oov.any(axis=1)])
