"""Features of the hypotheses of an N-best list, their weighted totals, and tables of them.

| feature | of a hypothesis |
|---|---|
| `am_score` | acoustic score, or the total of a recogniser that gives one score |
| `am_score_x_length` | `am_score` x (words + 1): undoes a division by the length |
| `lm_score`, `graph_score` | the first pass's, where the list has them apart |
| `log_prob` | ln P of the words and `</s>` under the mixture of LMs |
| `log_prob.NAME` | the same under one LM |
| `subtracted.NAME` | ln P under a subtracted LM; its weight is at or below zero |
| `bias` | weights of the phrases of its bias list that it holds, each once |
| `near_words` | ln odds of listed phrases that stand in place of words that are near them |
| `words`, `chars` | how many; characters without blanks |
| `rank` | -ln rank in the list, from 0 |
| `is_first` | 1 for the recogniser's best, else 0 |

A hypothesis with the words and scores of an earlier one has its rank, too. One that was made from
another (`Rewriting`) has its rank, scores, length and `bias`, and is chosen by weights of
`near_words` alone.
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy as np

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
BIAS = "bias"
"""Phrases of a bias list."""
NEAR = "near_words"
"""Listed phrases in place of words that are near them."""
REWRITTEN = "rewritten"
"""1 for a hypothesis that was made from another one, 2 where it is barred; it has no weight."""
_SIGNS = {LM: 1, SUBTRACTED: -1, BIAS: 1, NEAR: 1}
FIRST_WINS = (("is_first", 1.0),)
"""Weights by which the first hypothesis wins: the list stays as it came."""
# Totals that differ by less than this part of their size are equal: the first of them wins.
SAME_TOTAL = 1e-9
# ln P = -inf counts as so many nats below the lowest of the list.
IMPOSSIBLE = 100.0
# Grid of the scaled features: scores that differ by rounding only become equal.
GRID = 2.0**-20
# |correlation| of score and length below which scores count as normalised by length.
UNCORRELATED = 0.5


def hypothesis_features(nbest: NBest, log_probs: Mapping[str, np.ndarray]) -> Features:
    """Features of the hypotheses of a list, (N,) each; those that it lacks are left out.

    `log_probs` are `log_prob` and others of that kind, (N,), in nats.
    """
    hyps = nbest.hypotheses
    origins = [hyp.rewriting.origin if hyp.rewriting else n for n, hyp in enumerate(hyps)]
    texts = [hyps[origin].words for origin in origins]
    words = np.array(list(map(len, texts)), dtype=float)
    features: Features = {}
    for name in SCORES:
        if (scores := nbest.scores(name)) is None:
            continue
        if not np.isfinite(scores).all():
            place = int(np.flatnonzero(~np.isfinite(scores))[0])
            raise InputError(
                f"{name} of hypothesis {place + 1} of {nbest.utt[:80]!r} is {scores[place]},"
                " and a finite number was expected",
                remedy="Leave the hypothesis out, or the score out of the whole list.",
            )
        features[name] = scores
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
    features["chars"] = np.array([sum(map(len, text)) for text in texts], dtype=float)
    ranks = (nbest.numbered() + 1.0)[origins]
    features["rank"] = -np.log(ranks)
    features["is_first"] = (ranks == 1).astype(float)
    if any(hyp.rewriting for hyp in hyps):
        features[REWRITTEN] = np.array([float(hyp.rewriting is not None) for hyp in hyps])
    return features


def sign_of(name: str) -> int:
    """Sign of a new feature's weight: 1 for ln P under an LM, -1 under a subtracted one.

    0: of either sign, and a feature of lists without LMs and bias lists.
    """
    return _SIGNS.get(name.partition(".")[0], 0)


def is_of_lm(name: str) -> bool:
    """True for ln P under an LM, or a subtracted one."""
    return name.partition(".")[0] in (LM, SUBTRACTED)


class Totals(NamedTuple):
    """Weighted sums of the features of hypotheses.

    Attributes:
        values: The sums, (..., N).
        size: Sum over features of the largest |weight x value|, (...), to which rounding is
            relative.
    """

    values: np.ndarray
    size: Any

    def best(self) -> np.ndarray:
        """Place of the first total that rounding alone sets below the highest, (...).

        Scores in other units choose the same.
        """
        least = self.values.max(axis=-1) - SAME_TOTAL * np.asarray(self.size)
        return (self.values >= least[..., None]).argmax(axis=-1)


def totals(
    features: Mapping[str, np.ndarray], weights: Mapping[str, float], *, is_part: bool = False
) -> Totals:
    """Weighted sum of the features of each hypothesis, (N,).

    Without a weight of near words it is -inf for hypotheses that were made of them, but in a part
    of a sum.
    """
    lacking = [name for name in weights if name not in features]
    if lacking:
        raise InputError(
            f"no {lacking[0]} in the list, and the scales give it a weight"
            f" (it has {', '.join(features)})",
            remedy="Tune on lists of the same kind, with the same LMs.",
        )
    size = sum(abs(w) * float(np.abs(features[name]).max()) for name, w in weights.items())
    values = np.sum([w * features[name] for name, w in weights.items()], axis=0)
    if REWRITTEN in features and not is_part:
        barred = features[REWRITTEN] > (1 if weights.get(NEAR) else 0)
        values = np.where(barred, -np.inf, values)
    return Totals(values, size)


def feature_table(lists: Sequence[Features]) -> Tuple[List[str], np.ndarray, np.ndarray]:
    """Features of lists as one array; those that some list lacks are left out, with a warning.

    Returns:
        The features that all lists have; their values, (L, N, F), in their own units, where 0
        follows a list's hypotheses; the number of each list's hypotheses, (L,).
    """
    names = []
    for name in dict.fromkeys(name for features in lists for name in features):
        if name == REWRITTEN:
            continue
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


class Problem(NamedTuple):
    """Features and errors of N-best lists as the search sees them.

    Attributes:
        features: (L, N, F) relative to the first hypothesis, in units of `spreads`; short lists
            are filled with copies of their first hypothesis.
        errors: (L, N) word errors.
        spreads: (F,) root of the mean variance of a feature within a list.
        names: Of the features, where these are asked for by their names.
        rewritten: (L, N) True for hypotheses of near words, without whose feature they are copies
            of the first one; None: there are none.
    """

    features: np.ndarray
    errors: np.ndarray
    spreads: np.ndarray
    names: Tuple[Tuple[str, ...], ...] = ()
    rewritten: Optional[np.ndarray] = None

    def only(self, lists: np.ndarray) -> Problem:
        """Problem of some of the lists."""
        rewritten = None if self.rewritten is None else self.rewritten[lists]
        features, errors = self.features[lists], self.errors[lists]
        return self._replace(features=features, errors=errors, rewritten=rewritten)

    def columns(self, names: Sequence[Tuple[str, ...]]) -> Problem:
        """Problem of some of the features."""
        kept = [self.names.index(name) for name in names]
        features, errors, spreads = self.features[..., kept], self.errors, self.spreads[kept]
        if self.rewritten is not None and (NEAR,) not in names:
            features = np.where(self.rewritten[..., None], 0.0, features)
            errors = np.where(self.rewritten, errors[:, :1], errors)
        own = dict(features=features, errors=errors, spreads=spreads)
        return self._replace(**own, names=tuple(names))

    def list_errors(self, weights: np.ndarray) -> np.ndarray:
        """Errors of the best hypothesis (the first of equals) of each list, (L,)."""
        winners = (self.features @ weights).argmax(axis=1)
        return self.errors[np.arange(len(winners)), winners]

    @property
    def signs(self) -> np.ndarray:
        """(F,) 1 for weights at or above zero, those of LMs; -1 for those at or below; else 0."""
        names = self.names or ((),) * len(self.spreads)
        return np.array([sum({sign_of(name) for name in column}) for column in names], dtype=int)


def make_problem(features: np.ndarray, errors: np.ndarray, sizes: np.ndarray) -> Problem:
    """Search problem of lists, with features scaled by their standard deviation.

    A score that is multiplied by a number gives the same problem, bit by bit: what rounding
    leaves of a difference is below the grid.

    Args:
        features: (L, N, F) in their own units.
        errors: (L, N).
        sizes: (L,) hypotheses of each list; what follows them is not read.
    """
    real = np.arange(features.shape[1]) < sizes[:, None]
    relative = np.where(real[..., None], features - features[:, :1], 0.0)
    counts = sizes[:, None]
    means = relative.sum(axis=1) / counts
    within = np.where(real[..., None], relative - means[:, None], 0.0)
    spreads = np.sqrt(((within**2).sum(axis=1) / counts).mean(axis=0))
    size = np.abs(features).max(axis=(0, 1), where=real[..., None], initial=0.0)
    # what is no more than rounding is no spread
    spreads = np.where(spreads > 1e-12 * size, spreads, 0.0)
    units = np.where(spreads > 0, spreads, np.inf)
    scaled = np.round(relative / units / GRID) * GRID
    return Problem(scaled, np.where(real, errors, errors[:, :1]), spreads)


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
