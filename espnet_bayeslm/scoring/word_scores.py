"""Ln p of each word and of `</s>` of a sentence, by any LM, n-gram or mixture: a component.

A sentencepiece or character LM says that a word has ended only by its next token, which opens the
next word. With e(prefix) = P(the next token opens a word or is `</s>` | prefix), the probability
of a word is

    P(its tokens | prefix) * e(prefix with the word) / e(prefix).

Over all words and `</s>` these probabilities sum to one, as an n-gram's do, so that both can be
interpolated word by word. The factors cancel in a sentence's total. At a sentence's start e is 1:
probability that the LM gives to tokens with which no sentence starts is lost.
"""

from __future__ import annotations

from typing import Any, Iterable, List, NamedTuple, Optional, Sequence, Union

import numpy as np

from espnet_bayeslm.utils.errors import InputError

END = "</s>"
"""The end of a sentence, where a scorer is asked for the word after some others."""

# A sentence: a string, or its words
Text = Union[str, Sequence[str]]


class WordScores(NamedTuple):
    """Natural-log probabilities of a sentence of n words and of its `</s>`.

    Attributes:
        log_probs: (n + 1,) float64, ln P(word | preceding words).
        oov: (n + 1,) bool, True where the LM does not know the word (scored as `<unk>`).
    """

    log_probs: np.ndarray
    oov: np.ndarray


def words_of(text: Text) -> List[str]:
    """Words of a sentence that comes as a string or as words."""
    return text.split() if isinstance(text, str) else list(text)


def sentences_of(texts: Sequence[Text]) -> List[List[str]]:
    """Words of sentences that come as strings or as words."""
    if isinstance(texts, str):
        raise InputError(
            f"the string {texts[:80]!r} where a list of sentences was expected",
            remedy="Give [text], or call `score`.",
        )
    return list(map(words_of, texts))


def unk_size_error(unk_size: float) -> InputError:
    """Error of a size of `<unk>` that is no number of words."""
    return InputError(f"--unk_size {unk_size:g}: expected the number of words, 1 or more")


class WordScorer:
    """Anything that scores sentences word by word: a neural LM, an n-gram, a mixture.

    By default a scorer has one token a word, and reads each sentence by itself.

    Attributes:
        name: Name in tables.
        is_uncertain: True if something in its LM is random.
        reads_in_forms: True if it reads text in one of several forms, as a pretrained LM does.
        is_open: True if sentences choose the form, or tell what its unnamed parts cost.
        chooses: True if sentences choose the form, unless one is known from an earlier choice.
        text_form: The form, a value of `--text_form`; empty for all other scorers.
        weights_stay: True if nobody can change the LM's weights between searches.
    """

    name: str
    is_uncertain: bool = False
    reads_in_forms: bool = False
    is_open: bool = False
    chooses: bool = False
    text_form: str = ""
    weights_stay: bool = False

    def prepare(self, sentences: Any, form: Any = None) -> Any:
        """Choose the form by some sentences, unless it is given or chosen already."""

    def word_scores(self, sentences: Sequence[Sequence[str]]) -> List[WordScores]:
        """Scores of each sentence (words without `<s>`, `</s>`), in order."""
        raise NotImplementedError

    def token_counts(self, words: Sequence[str]) -> np.ndarray:
        """(n + 1,) tokens of each word of a sentence and of `</s>`."""
        return np.ones(len(words) + 1, int)

    def unknown(self, words: Sequence[str]) -> List[bool]:
        """True for each word that the LM does not know, or is not known to know."""
        return [True] * len(words)

    def known_words(self) -> Optional[List[str]]:
        """All words that the LM knows; None: it makes them of tokens, or does not list them."""
        return None

    def check_plain(self, sentences: Sequence[Sequence[str]]) -> None:
        """Raise an InputError if most sentences are in tokens already."""

    def scores_in_context(
        self, groups: Sequence[Sequence[Sequence[str]]], histories: Sequence[Any]
    ) -> List[List[WordScores]]:
        """Scores of the hypotheses of an utterance, in each of some recordings.

        Histories are those of the recordings, as `extended` returned them; None: the beginning.
        By default they change no score, and equal hypotheses are scored once.
        """
        distinct = list(dict.fromkeys(tuple(words) for group in groups for words in group))
        known = dict(zip(distinct, self.word_scores(distinct), strict=True))
        return [[known[tuple(words)] for words in group] for group in groups]

    def extended(self, histories: Sequence[Any], sentences: Sequence[Sequence[str]]) -> List[Any]:
        """Histories after one more sentence of each recording."""
        return list(histories)

    def begin(self, *, anywhere: bool = False, vocabulary: Optional[Iterable[str]] = None) -> Any:
        """State before the first word of a sentence, from which words are scored one by one.

        Args:
            anywhere: True for a state that knows no word before it, and may be in the middle of a
                sentence. LMs that know beginnings only take it for a beginning.
            vocabulary: All words that may be asked for, which saves memory; None: any.
        """
        return ()

    def after(self, state: Any, word: str) -> Any:
        """State after one more word; nothing need be computed yet."""
        return (*state, word)

    def next_words(self, states: Sequence[Any], words: Sequence[str]) -> np.ndarray:
        """Ln p of a word, or of `END`, after each state, (N,).

        Of a sentence they sum to the sums of `word_scores`. Each pair is computed once, or from
        what is kept of its state. By default each prefix is read again.
        """
        pairs = list(zip(states, words, strict=True))
        sentences = [state if word == END else (*state, word) for state, word in pairs]
        scores = self.word_scores(sentences)
        return np.array([s.log_probs[len(pair[0])] for s, pair in zip(scores, pairs, strict=True)])

    def uncertainty(self, sentences: Sequence[Sequence[str]]) -> List[Any]:
        """Uncertainty (`scoring.uncertainty`) of the words and `</s>` of each sentence."""
        raise InputError(f"{self.name}: it is no LM with random weights")


class Component(NamedTuple):
    """One LM or n-gram of a mixture.

    Attributes:
        name: Unique name among the components; weights files identify a component by it.
        kind: "lm", "ngram" or "mixture".
        scorer: Scorer of sentences, word by word.
        fingerprint: A digest of its files: by it weights find their component under any name.
    """

    name: str
    kind: str
    scorer: WordScorer
    fingerprint: str = ""
