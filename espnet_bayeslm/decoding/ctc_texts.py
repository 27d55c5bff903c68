"""Texts of one utterance's CTC search: words and first letters, what they cost and may gain.

A text is a number: its word sequence (`WordHistories`) times `MOST_BEGUN`, plus the first letters
of a word that has begun (`BegunWords`). A hypothesis is a text and its last column, a token or the
blank: its key is the text times the number of tokens, plus the column. Arrays of texts are for
steps of many hypotheses, single texts for steps of few.
"""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence

import numpy as np

from espnet_bayeslm.decoding.ctc_tokens import CTCTokens
from espnet_bayeslm.decoding.ctc_words import BegunWords, WordFusion, WordHistories

MOST_BEGUN = 1 << 24
"""Above the number of first letters of words in one search."""


class Texts:
    """Texts of one utterance, whose complete words are paid on demand.

    Args:
        tokens: The recogniser's tokens.
        begun: First letters of words.
        fusion: LMs, vocabulary and hotwords.
        start: State of the LMs before the first word; None: the start of a sentence.

    Attributes:
        size: Number of tokens.
        blank: Column of the blank.
        opens: True for each token that begins a word.
    """

    def __init__(
        self, tokens: CTCTokens, begun: BegunWords, fusion: WordFusion, start: Optional[Any] = None
    ):
        self.fusion, self.begun = fusion, begun
        self.size, self.blank, self.opens = len(tokens.tokens), tokens.blank, tokens.words.opens
        self.histories = WordHistories(fusion, tokens.words, start)
        # text -> its words, the last one complete
        self.finished: Dict[int, int] = {}
        self._contexts: Dict[int, int] = {}
        self._numbers: Dict[Any, int] = {}

    def known(self, texts: np.ndarray) -> np.ndarray:
        """Word sequence of each text with its last word complete, (N,); -1: it is not paid yet."""
        histories, begun = np.divmod(texts, MOST_BEGUN)
        get = self.finished.get
        found = np.array([get(text, -1) for text in texts.tolist()], np.int64)
        return np.where(begun == 0, histories, found)

    def pay(self, texts: Sequence[int]) -> List[int]:
        """Word sequence of each text, whose last words are paid at once."""
        new = [text for text in dict.fromkeys(texts) if text not in self.finished]
        letters = self.begun.letters
        pairs = [(text // MOST_BEGUN, letters[text % MOST_BEGUN]) for text in new]
        self.finished.update(zip(new, self.histories.add(pairs), strict=True))
        return [self.finished[text] for text in texts]

    def most(self, text: int, after: int) -> float:
        """Score of a text with first letters of a next word, by an LM that is sure of its word."""
        history, begun = divmod(text, MOST_BEGUN)
        score: float = self.histories.scores.item(history)
        if self.fusion.hotwords is None:
            return score + self.begun.complete.item(begun) + self.begun.ahead.item(after)
        letters, fusion, hot = self.begun.letters, self.fusion, self.histories.hot[history]
        ahead = fusion.ahead(fusion.after(hot, letters[begun]), letters[after])
        return score + fusion.complete(hot, letters[begun]) + ahead

    def most_of(self, texts: np.ndarray, after: np.ndarray) -> np.ndarray:
        """Score of each text with first letters of a next word, by an LM that is sure, (N,)."""
        if self.fusion.hotwords is not None:
            pairs = zip(texts.tolist(), after.tolist(), strict=True)
            return np.array([self.most(text, added) for text, added in pairs])
        histories, begun = np.divmod(texts, MOST_BEGUN)
        gains = self.begun.complete[begun] + self.begun.ahead[after]
        return self.histories.scores[histories] + gains

    def score(self, history: int, begun: int) -> float:
        """Score of a text by all but the logits."""
        score: float = self.histories.scores.item(history)
        if self.histories.in_phrase.item(history):
            return score + self.fusion.ahead(self.histories.hot[history], self.begun.letters[begun])
        return score + self.begun.ahead.item(begun)

    def scores(self, keys: np.ndarray) -> np.ndarray:
        """Score of each hypothesis by all but the logits, (N,)."""
        histories, begun = np.divmod(keys // self.size, MOST_BEGUN)
        found: np.ndarray = self.histories.scores[histories] + self.begun.ahead[begun]
        if self.fusion.hotwords is not None:
            for n in np.flatnonzero(self.histories.in_phrase[histories]).tolist():
                found[n] = self.score(int(histories[n]), int(begun[n]))
        return found

    def context(self, history: int) -> int:
        """Number of the words that still tell what the next ones cost."""
        number = self._contexts.get(history)
        if number is None:
            last: Any = history
            if not self.histories.in_phrase[history]:
                last = self.histories.words(history, self.fusion.context_words)
            number = self._contexts[history] = self._numbers.setdefault(last, len(self._numbers))
        return number
