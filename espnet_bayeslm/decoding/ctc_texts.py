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
from espnet_bayeslm.decoding.ctc_words import BegunPhrases, BegunWords, CTCFusion, WordHistories

MOST_BEGUN = 1 << 24
"""Above the number of first letters of words in one search."""


class Texts:
    """Texts of one utterance, whose complete words are paid on demand.

    Args:
        tokens: The recogniser's tokens.
        begun: First letters of words.
        fusion: LMs, vocabulary and a bias list.
        phrases: Gains of first letters by the bias list; None: there is none.
        start: State of the LMs before the first word; None: the start of a sentence.

    Attributes:
        size: Number of tokens.
        blank: Column of the blank.
        opens: True for each token that begins a word.
    """

    def __init__(
        self,
        tokens: CTCTokens,
        begun: BegunWords,
        fusion: CTCFusion,
        phrases: Optional[BegunPhrases] = None,
        start: Optional[Any] = None,
    ):
        self.fusion, self.begun, self.phrases = fusion, begun, phrases
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

    def most(self, texts: Sequence[int], after: Sequence[int]) -> List[float]:
        """Score of each text with first letters of a next word, by an LM that is sure."""
        if self.phrases is not None:
            found: List[float] = self.most_of(np.array(texts), np.array(after)).tolist()
            return found
        scores, complete = self.histories.scores.item, self.begun.complete.item
        ahead, parts = self.begun.ahead.item, (divmod(text, MOST_BEGUN) for text in texts)
        return [
            scores(history) + complete(begun) + ahead(number)
            for (history, begun), number in zip(parts, after, strict=True)
        ]

    def most_of(self, texts: np.ndarray, after: np.ndarray) -> np.ndarray:
        """Score of each text with first letters of a next word, by an LM that is sure, (N,)."""
        histories, begun = np.divmod(texts, MOST_BEGUN)
        scores = self.histories.scores[histories] + self.begun.complete[begun]
        if self.phrases is None:
            found: np.ndarray = scores + self.begun.ahead[after]
            return found
        known, letters = self.histories, self.begun.letters
        ahead = self.phrases.ahead(known, histories, after)
        for n in np.flatnonzero(self.phrases.lead_on(known, histories, begun)).tolist():
            heard = known.heard_after(histories[n], letters[begun[n]])
            scores[n] += known.phrase_gain(histories[n], heard)
            gain = self.fusion.bias_weight * heard.ahead(letters[after[n]]) if heard else 0.0
            ahead[n] = gain or self.begun.ahead[after[n]]
        return scores + ahead

    def score(self, history: int, begun: int) -> float:
        """Score of a text by all but the logits."""
        score: float = self.histories.scores.item(history)
        if self.phrases is None:
            return score + self.begun.ahead.item(begun)
        return score + self.phrases.score(self.histories, history, begun)

    def scores(self, keys: np.ndarray) -> np.ndarray:
        """Score of each hypothesis by all but the logits, (N,)."""
        histories, begun = np.divmod(keys // self.size, MOST_BEGUN)
        ahead = self.begun.ahead[begun]
        if self.phrases is not None:
            ahead = self.phrases.ahead(self.histories, histories, begun)
        found: np.ndarray = self.histories.scores[histories] + ahead
        return found

    def context(self, history: int) -> int:
        """Number of the words that still tell what the next ones cost."""
        number = self._contexts.get(history)
        if number is None:
            heard = self.histories.heard[history]
            phrases = heard and tuple((start.words, start.found) for start in heard.starts)
            last = (self.histories.words(history, self.fusion.context_words), phrases)
            number = self._contexts[history] = self._numbers.setdefault(last, len(self._numbers))
        return number
