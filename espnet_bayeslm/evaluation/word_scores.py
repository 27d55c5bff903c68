"""What every LM, n-gram and mixture gives for a sentence: ln p of each word and of </s>."""

from __future__ import annotations

from typing import List, NamedTuple, Protocol, Sequence

import numpy as np


class WordScores(NamedTuple):
    """Natural-log probabilities of a sentence of n words, the last one that of `</s>`.

    Attributes:
        log_probs: (n + 1,) float64, ln P(word | preceding words).
        oov: (n + 1,) bool, True where the LM does not know the word (scored as `<unk>`).
    """

    log_probs: np.ndarray
    oov: np.ndarray


class WordScorer(Protocol):
    """Anything that scores sentences word by word: a neural LM, an n-gram, a mixture."""

    name: str

    def word_scores(self, sentences: Sequence[Sequence[str]]) -> List[WordScores]:
        """Return the scores of each sentence (words without `<s>`, `</s>`), in order."""
        ...
