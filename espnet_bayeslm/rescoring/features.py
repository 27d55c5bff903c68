"""Features of the hypotheses of an N-best list, and their weighted totals.

| feature | of a hypothesis |
|---|---|
| `am_score` | acoustic score, or the total of a recogniser that gives one score |
| `am_score_x_length` | `am_score` x (words + 1): undoes a division by the length |
| `lm_score`, `graph_score` | the first pass's, where the list has them apart |
| `log_prob` | ln P of the words and `</s>` under the mixture of LMs |
| `log_prob.NAME` | the same under one LM |
| `subtracted.NAME` | ln P under a subtracted LM; its weight is at or below zero |
| `words`, `chars` | how many; characters without blanks |
| `rank` | -ln rank in the list, from 0 |
| `is_first` | 1 for the recogniser's best, else 0 |
"""

from __future__ import annotations

from typing import Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np
from numpy.typing import ArrayLike

from espnet_bayeslm.nbest.fields import SCORES
from espnet_bayeslm.nbest.types import NBest
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.log import LOG

Features = Dict[str, np.ndarray]
LENGTH_TIMES = "am_score_x_length"
LM = "log_prob"
"""ln P under the mixture; `log_prob.NAME` is that of one LM."""
SUBTRACTED = "subtracted"
"""ln P under a subtracted LM: `subtracted.NAME`."""
FIRST_PASS = (("is_first", 1.0),)
"""Weights that leave a list as it came."""
# Totals that differ by less than this part of their size are equal: the first of them wins.
SAME_TOTAL = 1e-9
# ln P = -inf counts as so many nats below the lowest of the list.
IMPOSSIBLE = 100.0
# |correlation| of score and length below which scores count as normalised by length.
UNCORRELATED = 0.5


def hypothesis_features(nbest: NBest, log_probs: Mapping[str, np.ndarray]) -> Features:
    """Features of the hypotheses of a list, (N,) each; those that it lacks are left out.

    `log_probs` are `log_prob` and others of that kind, (N,), in nats.
    """
    hyps = nbest.hypotheses
    words = np.array([len(hyp.words) for hyp in hyps], dtype=float)
    features: Features = {}
    for name in SCORES:
        if (values := _scores(nbest, name)) is not None:
            features[name] = values
    if "am_score" in features:
        features[LENGTH_TIMES] = features["am_score"] * (words + 1)
    for name, values in log_probs.items():
        if not (values < np.inf).all():
            raise InputError(f"{name} of {nbest.utt[:80]!r} is not a number")
        # what is impossible is far below the rest of the list
        finite = np.isfinite(values)
        lowest = values[finite].min() if finite.any() else 0.0
        features[name] = np.where(finite, values, lowest - IMPOSSIBLE)
    features["words"] = words
    features["chars"] = np.array([sum(map(len, hyp.words)) for hyp in hyps], dtype=float)
    features["rank"] = -np.log(np.arange(1.0, len(hyps) + 1))
    features["is_first"] = (np.arange(len(hyps)) == 0).astype(float)
    return features


def _scores(nbest: NBest, name: str) -> Optional[np.ndarray]:
    """Scores of one name, (N,), all finite; None where no hypothesis has one."""
    scores = nbest.scores(name)
    if scores is not None and not np.isfinite(scores).all():
        place = int(np.flatnonzero(~np.isfinite(scores))[0])
        raise InputError(
            f"{name} of hypothesis {place + 1} of {nbest.utt[:80]!r} is {scores[place]},"
            " and a finite number was expected",
            remedy="Leave the hypothesis out, or the score out of the whole list.",
        )
    return scores


def sign_of(name: str) -> int:
    """Sign of a feature's weight: 1 for ln P under an LM, -1 under a subtracted one, 0: either."""
    kind = name.partition(".")[0]
    return (kind == LM) - (kind == SUBTRACTED)


def totals(features: Mapping[str, np.ndarray], weights: Mapping[str, float]) -> np.ndarray:
    """Weighted sum of the features of each hypothesis, (N,)."""
    lacking = [name for name in weights if name not in features]
    if lacking:
        raise InputError(
            f"no {lacking[0]} in the list, and the scales give it a weight"
            f" (it has {', '.join(features)})",
            remedy="Tune on lists of the same kind, with the same LMs.",
        )
    return np.sum([weight * features[name] for name, weight in weights.items()], axis=0)


def best_place(features: Mapping[str, np.ndarray], weights: Mapping[str, float]) -> int:
    """Place of the hypothesis with the highest total, the first of equals.

    Totals are equal where they differ by no more than rounding, so that scores in other units
    choose the same.
    """
    return int(first_of_equals(totals(features, weights), size_of(features, weights)))


def size_of(features: Mapping[str, np.ndarray], weights: Mapping[str, float]) -> float:
    """Sum over features of the largest |weight x value|, to which rounding is relative."""
    return sum(abs(w) * float(np.abs(features[name]).max()) for name, w in weights.items())


def first_of_equals(sums: np.ndarray, size: ArrayLike) -> np.ndarray:
    """Place of the first total, of (..., N), that rounding alone sets below the highest, (...).

    The size, (...), is that of `size_of`.
    """
    least = sums.max(axis=-1) - SAME_TOTAL * np.asarray(size)
    return (sums >= least[..., None]).argmax(axis=-1)


def feature_table(lists: Sequence[Features]) -> Tuple[List[str], np.ndarray, np.ndarray]:
    """Features of lists as one array; those that some list lacks are left out, with a warning.

    Returns:
        The features that all lists have; their values, (L, N, F), in their own units, where 0
        follows a list's hypotheses; the number of each list's hypotheses, (L,).
    """
    names = []
    for name in dict.fromkeys(name for features in lists for name in features):
        if num := sum(name not in features for features in lists):
            LOG.warning("%d of %d lists have no %s: it is left out", num, len(lists), name)
        else:
            names.append(name)
    sizes = np.array([len(features["rank"]) for features in lists])
    values = np.zeros((len(lists), int(sizes.max()), len(names)))
    for row, features in zip(values, lists, strict=True):
        for column, name in enumerate(names):
            row[: len(features[name]), column] = features[name]
    return names, values, sizes


def is_normalised(lists: Sequence[Features]) -> bool:
    """True if the lists' scores seem to be divided by the length.

    The score of a whole sentence falls with its length; that of an average word does not. Lists
    of first hypotheses of one length tell nothing, and count as not normalised; acoustic scores
    with the LM's apart are sums.
    """
    if any({"lm_score", "graph_score"} & features.keys() for features in lists):
        return False
    pairs = [(f["am_score"][0], f["words"][0]) for f in lists if "am_score" in f]
    if len(pairs) < 3:
        return False
    scores, words = np.array(pairs).T
    # what is no more than rounding is no spread
    if np.ptp(words) == 0 or np.ptp(scores) <= 1e-12 * np.abs(scores).max():
        return False
    return bool(abs(np.corrcoef(scores, words)[0, 1]) < UNCORRELATED)
