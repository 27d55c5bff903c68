"""Odds that words of a hypothesis stand for a listed phrase that is spelled nearly as they are.

They are those of a logistic regression, whose weights are found on lists with references. These are
drawn towards weights that are known, as by a Gaussian prior.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
from typing import Any, Dict, Mapping, NamedTuple, Sequence, Tuple

import numpy as np

from espnet_bayeslm.evaluation.near_spellings import Near

LEAST = -2.0
"""Ln odds below which no hypothesis is made."""
PER_LIST = 0.5
"""Ln odds that a list loses where it is e times as long: some phrase of it is near by chance."""
FEWEST_KEPT = 2
"""A word that fewer best hypotheses have counts as one that none has."""
PRIOR_PRECISION = 1.0
STEPS = 100

Words = Tuple[str, ...]


class OddsWeights(NamedTuple):
    """Weights of the ln odds that words stand for a listed phrase.

    The defaults were found on the 10-best lists of an ESPnet recogniser, LibriSpeech dev-other,
    with lists of 100 words beside an utterance's own.

    Attributes:
        intercept: Of all pairs.
        edits: Of each letter that differs.
        letters: Of each letter of the phrase.
        share: Of the edits as a share of the longer spelling.
        joined: Of each word after the first one.
        frequency: Of the mean ln of the words' frequency (per million).
        agreement: Of the share of the list's hypotheses that have the words.
    """

    intercept: float = 6.6
    edits: float = -0.59
    letters: float = 0.215
    share: float = -6.4
    joined: float = 1.6
    frequency: float = -0.5
    agreement: float = -2.25

    def total(self, values: Sequence[float]) -> float:
        """Weighted sum of the values of a pair, (K,)."""
        return sum(map(operator.mul, self, values))


KNOWN = OddsWeights()


@dataclasses.dataclass(frozen=True)
class NearWords:
    """Odds that some words of a hypothesis stand for a listed phrase.

    Attributes:
        weights: The weights.
        counts: Word -> how often best hypotheses have it, of which names are a small part.
        least: Ln odds below which no hypothesis is made.
    """

    weights: OddsWeights = KNOWN
    counts: Mapping[str, int] = dataclasses.field(default_factory=dict, hash=False)
    least: float = LEAST

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> NearWords:
        """Odds of the content of a yaml file."""
        weights = {name: float(content[name]) for name in OddsWeights._fields}
        # a word and its count, in turn
        rows = str(content["words"]).split()
        counts = dict(zip(rows[::2], map(int, rows[1::2]), strict=True))
        counts[""] = int(content["others"])
        return cls(OddsWeights(**weights), counts, float(content["least"]))

    def at_least(self, least: float) -> NearWords:
        """Odds with another least one."""
        return dataclasses.replace(self, least=least)

    def content(self) -> Dict[str, Any]:
        """Content of a yaml file: weights, and the words that are not rare."""
        known = {w: n for w, n in self.counts.items() if w and n >= FEWEST_KEPT}
        rows = sorted(known.items(), key=lambda row: (-row[1], row[0]))
        others = self.total - sum(known.values())
        words = " ".join(f"{word} {count}" for word, count in rows)
        own = {**self.weights._asdict(), "least": self.least}
        return {**own, "others": others, "words": words}

    @functools.cached_property
    def total(self) -> int:
        """Number of all words."""
        return max(1, sum(self.counts.values()))

    def ln_frequency(self, words: Words, own: Mapping[str, int]) -> float:
        """Mean ln of the frequency of words, per million, but for those of the list itself."""
        counts = (max(0, self.counts.get(word, 0) - own.get(word, 0)) + 0.5 for word in words)
        return sum(math.log(1e6 * count / self.total) for count in counts) / len(words)

    def most_edits(self, run: WordRun, num_phrases: int) -> int:
        """Most edits with which some phrase may stand for a run of words; -1: none may."""
        edits = 0
        while edits <= run.size:
            best = Near("", run.size + edits, edits)
            if self.ln_odds(run, best, num_phrases) < self.least:
                break
            edits += 1
        return edits - 1

    def ln_odds(self, run: WordRun, near: Near, num_phrases: int) -> float:
        """Ln odds that a run of words stands for a phrase of a list."""
        return self.weights.total(columns_of(run, near)) + self.offset(num_phrases)

    @staticmethod
    def offset(num_phrases: int) -> float:
        """Part of the ln odds that has no weight: that of a list's length."""
        return -PER_LIST * math.log(max(1, num_phrases))


class WordRun(NamedTuple):
    """Neighbouring words of a hypothesis that may stand for a listed phrase.

    Attributes:
        words: The words.
        ln_frequency: Mean ln of their frequency.
        agreement: Share of the hypotheses that have them.
        size: Number of their letters.
    """

    words: Words
    ln_frequency: float
    agreement: float
    size: int


def columns_of(run: WordRun, near: Near) -> Tuple[float, ...]:
    """Values that `OddsWeights` weigh."""
    share = near.edits / max(run.size, near.size)
    joined = len(run.words) - 1
    return (1.0, near.edits, near.size, share, joined, run.ln_frequency, run.agreement)


def map_weights(
    values: np.ndarray, offsets: np.ndarray, labels: np.ndarray, start: OddsWeights
) -> OddsWeights:
    """Weights of highest posterior probability, by Newton's method.

    Args:
        values: Values of each pair, (N, K).
        offsets: Part of each pair's ln odds that has no weight, (N,).
        labels: 1 where the words stand for the phrase, else 0, (N,).
        start: Mean of the Gaussian prior.
    """
    mean = np.array(start)
    weights = mean
    for _ in range(STEPS):
        ln_odds = values @ weights + offsets
        odds = 1 / (1 + np.exp(-np.clip(ln_odds, -500, 500)))
        slope = values.T @ (labels - odds) - PRIOR_PRECISION * (weights - mean)
        curvature = (values * (odds * (1 - odds))[:, None]).T @ values
        step = np.linalg.solve(curvature + PRIOR_PRECISION * np.eye(len(mean)), slope)
        # far from the solution Newton's steps are too long
        weights = weights + step / max(1.0, float(np.abs(step).max()))
        if float(np.abs(step).max()) < 1e-9:
            break
    return OddsWeights(*weights.tolist())
