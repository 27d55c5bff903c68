"""Scores of sentences under an n-gram, read by KenLM: the border where log10 becomes ln."""

from __future__ import annotations

import math
from typing import Iterable, List, Optional, Sequence

import kenlm
import numpy as np

from espnet_bayeslm.ngram.ngram_files import arpa_order, arpa_words, load_kenlm, ngram_name
from espnet_bayeslm.scoring.word_scores import WordScorer, WordScores, unk_size_error
from espnet_bayeslm.utils.files import PathLike
from espnet_bayeslm.utils.log import LOG

_LN_10 = math.log(10.0)


class NgramScorer(WordScorer):
    """A `WordScorer` of an ARPA file or a KenLM binary.

    So many words as `unk_size` share the probability of `<unk>`: 1 where it is one word's, as
    lmplz and `bayeslm ngram` estimate it.
    """

    def __init__(self, path: PathLike, *, unk_size: float = 1.0):
        if not 1 <= unk_size < math.inf:
            raise unk_size_error(unk_size)
        self._log_unk_size = math.log(unk_size)
        self._path, self._model = path, load_kenlm(path)
        self.name = ngram_name(path)
        self.order = arpa_order(path) or self._model.order
        LOG.info("Loaded %s: %d-gram", path, self.order)

    def word_scores(self, sentences: Sequence[Sequence[str]]) -> List[WordScores]:
        """Ln P(word | words before it) of each word and of `</s>`, per sentence."""
        found = []
        for words in sentences:
            state, after = self.begin(), kenlm.State()
            log10_probs, oov = [], []
            for word in (*words, "</s>"):
                score = self._model.BaseFullScore(state, word, after)
                log10_probs.append(score.log_prob)
                oov.append(score.oov)
                state, after = after, state
            unknown = np.array(oov)
            log_probs = np.array(log10_probs) * _LN_10 - self._log_unk_size * unknown
            found.append(WordScores(log_probs, unknown))
        return found

    def unknown(self, words: Sequence[str]) -> List[bool]:
        """True for each word that the n-gram does not know."""
        return [word not in self._model for word in words]

    def known_words(self) -> Optional[List[str]]:
        """Words of an ARPA file; None: a KenLM binary does not list them."""
        return arpa_words(self._path) if arpa_order(self._path) else None

    def begin(
        self, *, anywhere: bool = False, vocabulary: Optional[Iterable[str]] = None
    ) -> kenlm.State:
        """State before the first word of a sentence, or one that knows of no word before it."""
        state = kenlm.State()
        write = self._model.NullContextWrite if anywhere else self._model.BeginSentenceWrite
        write(state)
        return state

    def after(self, state: kenlm.State, word: str) -> kenlm.State:
        """State after one more word."""
        after = kenlm.State()
        self._model.BaseScore(state, word, after)
        return after

    def next_words(self, states: Sequence[kenlm.State], words: Sequence[str]) -> np.ndarray:
        """Ln p of a word, or of `END`, after each state, (N,)."""
        after, score = kenlm.State(), self._model.BaseScore
        log10_probs = [score(state, word, after) for state, word in zip(states, words, strict=True)]
        found = np.array(log10_probs) * _LN_10
        if self._log_unk_size:
            found -= self._log_unk_size * np.array(self.unknown(words))
        return found
