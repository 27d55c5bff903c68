"""Scores of words in a search: LMs, a vocabulary and a bias list, with their weights.

A word is paid when it is complete: lm_weight ln P(word | words before it) + word_bonus, as
pyctcdecode does. Until then a vocabulary and the bias list tell which letters lead anywhere.
"""

from __future__ import annotations

import bisect
import dataclasses
import math
import unicodedata
from typing import Any, Dict, Iterable, List, Optional, Sequence, Tuple

import numpy as np

from espnet_bayeslm.decoding.bias_search import BiasTree, HeardPhrases
from espnet_bayeslm.decoding.token_words import TokenWords
from espnet_bayeslm.mixture.word_mixture import Mixture
from espnet_bayeslm.scoring.word_scores import END

LN_10 = math.log(10.0)
LONG = 6
"""Letters above which an unknown beginning of a word costs more, in proportion."""
LETTER_COST = 2.0
"""Cost of a letter until the word is complete, in nats, where no vocabulary rules letters out.

It is above the -ln P per letter of most words, so that no hypothesis gains by a word without end.
"""


class Vocabulary:
    """Words that a search knows, as the tokens write them.

    Attributes:
        is_listed: True if letters tell whether a word begins with them.
    """

    is_listed = True

    def __init__(self, words: Iterable[str]):
        self.words = frozenset(words)
        self._sorted = sorted(self.words)

    def __contains__(self, word: str) -> bool:
        return word in self.words

    def begins(self, letters: str) -> bool:
        """True if a word begins with these letters."""
        place = bisect.bisect_left(self._sorted, letters)
        return place < len(self._sorted) and self._sorted[place].startswith(letters)


class UnlistedWords(Vocabulary):
    """Words of n-grams that do not list them: each is known when it is complete."""

    is_listed = False

    def __init__(self, mixture: Mixture, tokens: TokenWords):
        super().__init__(())
        self._mixture, self._tokens = mixture, tokens

    def __contains__(self, word: str) -> bool:
        written = self._tokens.word(word)
        forms = [unicodedata.normalize(form, written) for form in ("NFC", "NFD")]
        return not all(self._mixture.unknown([written, *forms]))


@dataclasses.dataclass(frozen=True, kw_only=True)
class CTCFusion:
    """LMs, a vocabulary and a bias list, with their weights.

    Attributes:
        mixture: The LMs; None: there is none.
        lm_weight: Weight of the LM's ln P.
        word_bonus: Score of each word, where there is an LM.
        vocabulary: Known words; None: all words are known. Where none is listed, each letter costs
            `LETTER_COST` with `lm_weight` until the word is complete.
        unk_score_offset: Score of an unknown word, as log10 P where it is complete (weighted by
            `lm_weight`), and in nats before.
        bias: Hotwords, or the bias list of an utterance; None: there is none.
        bias_weight: Weight of each phrase that a text holds.
        boundary: True if a sentence starts before the first word and ends after the last one.
        context_words: Number of words by which the LMs score the next one, at most.
    """

    mixture: Optional[Mixture] = None
    lm_weight: float = 0.5
    word_bonus: float = 1.5
    vocabulary: Optional[Vocabulary] = None
    unk_score_offset: float = -10.0
    bias: Optional[BiasTree] = None
    bias_weight: float = 1.0
    boundary: bool = True
    context_words: float = math.inf

    def begin(self) -> Any:
        """State of the LMs before the first word."""
        return self.mixture.begin(anywhere=not self.boundary) if self.mixture else ()

    def ahead(self, letters: str) -> float:
        """Score of the first letters of a word that no phrase begins with, until it is complete."""
        if self.vocabulary is None or not self.vocabulary.is_listed:
            return -self.lm_weight * LETTER_COST * len(letters) if self.mixture else 0.0
        if self.vocabulary.begins(letters):
            return 0.0
        return self.unk_score_offset * max(1.0, len(letters) / LONG)

    def complete(self, word: str) -> float:
        """Score of a complete word without the LM's ln P and phrases."""
        score = self.word_bonus if self.mixture else 0.0
        if self.vocabulary is not None and word not in self.vocabulary:
            score += self.lm_weight * LN_10 * self.unk_score_offset
        return score

    @property
    def keeps_prefixes(self) -> bool:
        """True if an LM keeps its states at the nodes of a prefix tree."""
        return bool(self.mixture and any(c.kind != "ngram" for c in self.mixture.components))

    @property
    def most(self) -> float:
        """The most that phrases add to a word that has begun."""
        return self.bias_weight * self.bias.most if self.bias else 0.0


class BegunWords:
    """First letters of words, each once. Number 0 has no letters.

    Args:
        fusion: The vocabulary.
        texts: The letters that each token adds, (V,).

    Attributes:
        moves: {letters times the number of tokens, plus a token: letters after it}.
        letters: The letters.
        ahead: Score of the letters, until the word is complete, where no phrase begins with them.
        complete: Score of the word that they are, without the LM's ln P and phrases.
    """

    def __init__(self, fusion: CTCFusion, texts: Sequence[str]):
        self._fusion, self._texts = fusion, texts
        self._numbers: Dict[str, int] = {}
        self.moves: Dict[int, int] = {}
        self.letters: List[str] = []
        self.ahead, self.complete = np.empty(0), np.empty(0)
        self._add([""])

    def after(self, begun: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        """Letters after one more token each, (N,); -1: not known yet."""
        get = self.moves.get
        keys = (begun * len(self._texts) + tokens).tolist()
        return np.array([get(key, -1) for key in keys], np.int64)

    def move(self, begun: int, token: int) -> int:
        """Letters after one more token, which are made where they are new."""
        key = begun * len(self._texts) + token
        if key not in self.moves:
            self.add_after(np.array([begun]), np.array([token]))
        return self.moves[key]

    def add_after(self, begun: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        """Letters after one more token each, (N,), which are made where they are new."""
        pairs = zip(begun.tolist(), tokens.tolist(), strict=True)
        found = [self.letters[number] + self._texts[token] for number, token in pairs]
        self._add([letters for letters in dict.fromkeys(found) if letters not in self._numbers])
        numbers = [self._numbers[letters] for letters in found]
        keys = (begun * len(self._texts) + tokens).tolist()
        self.moves.update(zip(keys, numbers, strict=True))
        return np.array(numbers, np.int64)

    def number(self, letters: str) -> Optional[int]:
        """Number of some letters; None: they are not known yet."""
        return self._numbers.get(letters)

    def _add(self, new: Sequence[str]) -> None:
        """Keep new letters and their scores."""
        start = len(self.letters)
        self.letters += new
        self._numbers.update(zip(new, range(start, len(self.letters)), strict=True))
        fusion = self._fusion
        self.ahead = with_values(self.ahead, start, [*map(fusion.ahead, new)])
        complete = [fusion.complete(word) if word else 0.0 for word in new]
        self.complete = with_values(self.complete, start, complete)


class BegunPhrases:
    """Gains of first letters of words by a bias list, of one utterance or of several.

    Args:
        bias: The bias list.
        weight: Its weight.
        begun: First letters of words.
    """

    def __init__(self, bias: BiasTree, weight: float, begun: BegunWords):
        self.bias, self.begun = bias, begun
        self._weight, self._known = weight, len(begun.letters)
        # where no phrase has been found or has begun
        self._plain = np.zeros(len(begun.ahead))
        self._marks = np.zeros(len(begun.ahead), np.int64)
        self._hears = np.zeros(len(begun.ahead), bool)
        for letters in bias.openings:
            number = begun.number(letters)
            if number is not None:
                self._add(number, letters)

    def ahead(self, known: WordHistories, histories: np.ndarray, begun: np.ndarray) -> np.ndarray:
        """Scores of first letters, which have their gain where phrases begin with them, (N,).

        Args:
            known: Word sequences of the utterance.
            histories: Word sequences before them, (N,).
            begun: The letters, (N,).
        """
        self._grow()
        gains = self._plain[begun]
        # a phrase that has been found gains no more, and one that has begun goes on
        found = known.marks[histories] & self._marks[begun]
        others = np.flatnonzero(found.astype(bool) | known.has_begun[histories])
        for n in others.tolist():
            state = known.heard[histories[n]]
            gains[n] = self._weight * state.ahead(self.begun.letters[begun[n]]) if state else 0.0
        return np.where(gains > 0, gains, self.begun.ahead[begun])

    def score(self, known: WordHistories, history: int, begun: int) -> float:
        """Score of some first letters after a word sequence."""
        if begun >= self._known:
            self._grow()
        gain: float = self._plain.item(begun)
        found = known.marks.item(history) & self._marks.item(begun)
        if found or known.has_begun.item(history):
            state = known.heard[history]
            gain = self._weight * state.ahead(self.begun.letters[begun]) if state else 0.0
        return gain if gain > 0 else self.begun.ahead.item(begun)

    def lead_on(self, known: WordHistories, histories: np.ndarray, begun: np.ndarray) -> np.ndarray:
        """True where a complete word may be a phrase, or the first of one, (N,)."""
        self._grow()
        return known.has_begun[histories] | self._hears[begun]

    def _grow(self) -> None:
        """Keep the gains of letters that are new."""
        if more := len(self.begun.ahead) - len(self._plain):
            self._plain = np.concatenate([self._plain, np.zeros(more)])
            self._marks = np.concatenate([self._marks, np.zeros(more, np.int64)])
            self._hears = np.concatenate([self._hears, np.zeros(more, bool)])
        for number in range(self._known, len(self.begun.letters)):
            if (letters := self.begun.letters[number]) in self.bias.openings:
                self._add(number, letters)
        self._known = len(self.begun.letters)

    def _add(self, number: int, letters: str) -> None:
        """Keep the gain of letters with which a phrase begins."""
        opening = self.bias.openings[letters]
        self._plain[number] = self._weight * opening.share
        self._marks[number], self._hears[number] = opening.mark, opening.is_word


def with_values(array: np.ndarray, start: int, values: Sequence[float]) -> np.ndarray:
    """Array, or a longer copy of it, with values from a place on."""
    end = start + len(values)
    if end > len(array):
        array = np.concatenate([array, np.zeros(end + 1000, array.dtype)])
    array[start:end] = values
    return array


class WordHistories:
    """Word sequences of one search, each once, with their scores. Number 0 has no words.

    Args:
        fusion: The LMs, vocabulary and bias list.
        tokens: How the recogniser's tokens make words of letters.
        start: State of the LMs before the first word; None: a sentence's start.

    Attributes:
        scores: Score of each sequence: LM, bonus, unknown words and phrases, all weighted.
        log_probs: Ln P of each sequence by the LM, without the end.
        heard: The phrases of each sequence; None without a bias list.
        marks: Marks of the phrases that have been found.
        has_begun: True for each sequence in which a phrase has begun.
    """

    def __init__(self, fusion: CTCFusion, tokens: TokenWords, start: Optional[Any] = None):
        self.fusion, self._tokens = fusion, tokens
        self.scores, self.has_begun = np.zeros(1), np.zeros(1, bool)
        self.marks = np.zeros(1, np.int64)
        self.log_probs = [0.0]
        self.heard: List[Optional[HeardPhrases]] = [fusion.bias.begin() if fusion.bias else None]
        self._last: List[Tuple[int, str]] = [(0, "")]
        self._numbers: Dict[Tuple[int, str], int] = {}
        self._states: List[Any] = [fusion.begin() if start is None else start]

    def words(self, history: int, most: float = math.inf) -> Tuple[str, ...]:
        """Words of a sequence, or its last ones."""
        found: List[str] = []
        while history and len(found) < most:
            history, word = self._last[history]
            found.append(word)
        return tuple(reversed(found))

    def add(self, pairs: Sequence[Tuple[int, str]]) -> List[int]:
        """Sequences, each a sequence and the letters of one more word, paid in one call."""
        fusion, start = self.fusion, len(self._last)
        words = [(history, self._written(letters)) for history, letters in pairs]
        # other letters may write the same word
        new = {
            word: letters
            for word, (_, letters) in zip(words, pairs, strict=True)
            if word not in self._numbers
        }
        log_probs = self._ln_p(list(new))
        scores = []
        for ((history, _), letters), log_prob in zip(new.items(), log_probs, strict=True):
            heard = self.heard_after(history, letters)
            gain = fusion.complete(letters) + self.phrase_gain(history, heard)
            scores.append(self.scores[history] + gain + fusion.lm_weight * log_prob)
            self.log_probs.append(self.log_probs[history] + log_prob)
            self.heard.append(heard)
        self._last += new
        self._numbers.update(zip(new, range(start, len(self._last)), strict=True))
        self._states += [None] * len(new)
        self.scores = with_values(self.scores, start, scores)
        added = self.heard[start:]
        begun = [state is not None and state.has_begun for state in added]
        self.has_begun = with_values(self.has_begun, start, begun)
        marks = [0 if state is None else state.marks for state in added]
        self.marks = with_values(self.marks, start, marks)
        return [self._numbers[word] for word in words]

    def heard_after(self, history: int, letters: str) -> Optional[HeardPhrases]:
        """Phrases of a sequence and one more word; None without a bias list."""
        state = self.heard[history]
        return state.after(self._tokens.word(letters)) if state and letters else state

    def phrase_gain(self, history: int, heard: Optional[HeardPhrases]) -> float:
        """Gain of phrases that are heard after one more word, weighted."""
        before = self.heard[history]
        return self.fusion.bias_weight * (heard.total - before.total) if heard and before else 0.0

    def phrase_score(self, history: int) -> float:
        """Weight of the phrases of a sequence."""
        state = self.heard[history]
        return self.fusion.bias_weight * state.total if state else 0.0

    def _written(self, letters: str) -> str:
        """Word of some letters, its accents as an LM knows it."""
        word = self._tokens.word(letters)
        if word.isascii():
            return word
        forms = [unicodedata.normalize("NFC", word), word, unicodedata.normalize("NFD", word)]
        if forms[0] == forms[2] or not self.fusion.mixture:
            return word
        unknown = self.fusion.mixture.unknown(forms)
        return next((form for form, none in zip(forms, unknown, strict=True) if not none), forms[0])

    def ends(self, histories: Sequence[int]) -> List[float]:
        """Ln P of the sentence's end after each sequence; 0 without an LM, or without ends."""
        if not self.fusion.boundary:
            return [0.0] * len(histories)
        return self._ln_p([(history, END) for history in histories])

    def _ln_p(self, pairs: Sequence[Tuple[int, str]]) -> List[float]:
        """Ln P of a word or of the end after each sequence, by the mixture."""
        mixture = self.fusion.mixture
        if not pairs or mixture is None:
            return [0.0] * len(pairs)
        states = [self.state(history) for history, _ in pairs]
        found: List[float] = mixture.next_words(states, [word for _, word in pairs]).tolist()
        return found

    def state(self, history: int) -> Any:
        """State of the LMs after a sequence, computed when the next word is paid."""
        if self._states[history] is None and self.fusion.mixture:
            before, word = self._last[history]
            self._states[history] = self.fusion.mixture.after(self.state(before), word)
        return self._states[history]
