"""A mixture of LMs and n-grams that scores words one by one, after the words before them."""

from __future__ import annotations

from typing import Any, Iterable, List, Optional, Sequence, Tuple, Union

import numpy as np

from espnet_bayeslm.scoring.interpolation import combined, mixed_scores
from espnet_bayeslm.scoring.word_scores import WordScorer, WordScores


class MixtureScorer(WordScorer):
    """Scorer of a mixture; a state has one of each component.

    Args:
        scorers: The components.
        weights: Their weights, of sum 1, (K,).
    """

    name = "mixture"

    def __init__(self, scorers: Sequence[WordScorer], weights: Union[np.ndarray, Sequence[float]]):
        self._scorers, self._weights = scorers, np.asarray(weights)

    def word_scores(self, sentences: Sequence[Sequence[str]]) -> List[WordScores]:
        """Scores of each sentence by the mixture."""
        return mixed_scores([s.word_scores(sentences) for s in self._scorers], self._weights)

    def begin(
        self, *, anywhere: bool = False, vocabulary: Optional[Iterable[str]] = None
    ) -> Tuple[Any, ...]:
        """States of the components before the first word."""
        return tuple(s.begin(anywhere=anywhere, vocabulary=vocabulary) for s in self._scorers)

    def after(self, state: Tuple[Any, ...], word: str) -> Tuple[Any, ...]:
        """States of the components after one more word."""
        pairs = zip(self._scorers, state, strict=True)
        return tuple(scorer.after(own, word) for scorer, own in pairs)

    def next_words(self, states: Sequence[Tuple[Any, ...]], words: Sequence[str]) -> np.ndarray:
        """Ln p of a word, or of `END`, after each state, (N,), by the mixture."""
        columns = zip(self._scorers, zip(*states, strict=True), strict=True)
        rows = [scorer.next_words(column, words) for scorer, column in columns]
        return combined(np.stack(rows), self._weights)
