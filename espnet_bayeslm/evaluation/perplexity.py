"""Perplexity: sums that add, from which each normalisation is derived.

`</s>` is counted in every normalisation, `<s>` in none.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Optional, Sequence

import numpy as np

from espnet_bayeslm.evaluation.word_scores import CountingScorer, WordScorer, WordScores

# A larger perplexity tells only that a word has a probability near zero.
MAX_SENSIBLE = 1e6
BEYOND_SENSE = (
    "A perplexity above 1e6 comes from words or </s> with a probability near zero: check for a"
    " closed vocabulary (an n-gram without <unk>), another tokenisation or another form of text."
)


def perplexity_text(perplexity: Optional[float], digits: int = 2) -> str:
    """Perplexity as tables show it: above 1e6 in scientific form, a dash where there is none.

    Args:
        perplexity: The value.
        digits: Digits after the point.
    """
    if perplexity is None:
        return "–"
    if math.isinf(perplexity):
        return "∞"
    return f"{perplexity:.1e}" if perplexity > MAX_SENSIBLE else f"{perplexity:.{digits}f}"


@dataclasses.dataclass(frozen=True)
class Tally:
    """The log-probability of some words and how much text they are; tallies add.

    Attributes:
        log_prob: Sum of ln p, in nats.
        words: Words, each `</s>` counted as one.
        tokens: The LM's own tokens, each `</s>` counted as one.
        characters: Characters, spaces between words and each `</s>` counted as one.
    """

    log_prob: float = 0.0
    words: int = 0
    tokens: int = 0
    characters: int = 0

    def __add__(self, other: Tally) -> Tally:
        if not isinstance(other, Tally):
            return NotImplemented
        pairs = zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True)
        return Tally(*(a + b for a, b in pairs))

    def perplexity(self, per: str = "words") -> float:
        """Perplexity exp(-log_prob / count), nan where nothing is counted.

        Args:
            per: What is counted: "words", "tokens" or "characters".
        """
        count = getattr(self, per)
        return math.exp(min(-self.log_prob / count, 700.0)) if count else math.nan


@dataclasses.dataclass(frozen=True)
class Perplexity:
    """The perplexity of a text, kept as sums; those of several texts add.

    Attributes:
        known: Words that count in both figures, and every `</s>`.
        oov: Words left out of the figure "without OOVs".
        sentences: Number of sentences.
    """

    known: Tally = Tally()
    oov: Tally = Tally()
    sentences: int = 0

    def __add__(self, other: Perplexity) -> Perplexity:
        if not isinstance(other, Perplexity):
            return NotImplemented
        return Perplexity(
            self.known + other.known, self.oov + other.oov, self.sentences + other.sentences
        )

    @property
    def all(self) -> Tally:
        """Tally of all words, OOVs included."""
        return self.known + self.oov


def sentence_perplexity(
    words: Sequence[str],
    scores: WordScores,
    *,
    tokens: Optional[np.ndarray] = None,
    excluded: Optional[np.ndarray] = None,
) -> Perplexity:
    """Perplexity of one sentence.

    Args:
        words: Its n words.
        scores: Their n + 1 scores, the last one that of `</s>`.
        tokens: (n + 1,) LM tokens of each word (default: one each).
        excluded: (n + 1,) bool, the words that are left out of the figure "without OOVs"
            (default: `scores.oov`); several LMs must share it to be comparable.
    """
    # the space before a word is the word's, as a character LM counts it
    characters = np.array([len(w) + (i > 0) for i, w in enumerate(words)] + [1])
    counts = np.ones(len(words) + 1, int) if tokens is None else tokens
    out = scores.oov if excluded is None else excluded

    def tally(mask: np.ndarray) -> Tally:
        return Tally(
            float(scores.log_probs[mask].sum()),
            int(mask.sum()),
            int(counts[mask].sum()),
            int(characters[mask].sum()),
        )

    return Perplexity(tally(~out), tally(out), 1)


def token_counts(scorer: WordScorer, words: Sequence[str]) -> np.ndarray:
    """(n + 1,) LM tokens of each word and `</s>`: one each, or as the scorer counts."""
    if isinstance(scorer, CountingScorer):
        return scorer.token_counts(words)
    return np.ones(len(words) + 1, int)
