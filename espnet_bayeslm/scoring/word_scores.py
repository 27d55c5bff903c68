"""Ln p of each word and of `</s>` of a sentence, by any LM, n-gram or mixture: a component."""

from __future__ import annotations

import math
from typing import Any, List, NamedTuple, Optional, Protocol, Sequence, Union

import numpy as np

from espnet_bayeslm.utils.errors import InputError

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


def log_unk_size(unk_size: float) -> float:
    """Natural log of the number of words that share the probability of `<unk>`."""
    if not 1 <= unk_size < math.inf:
        raise InputError(f"--unk_size {unk_size:g}: expected the number of words, 1 or more")
    return math.log(unk_size)


class WordScorer(Protocol):
    """Anything that scores sentences word by word: a neural LM, an n-gram, a mixture.

    A scorer whose LM may read a word as several tokens also has `token_counts(words)`: (n + 1,)
    tokens of each word and of `</s>`. One that reads the earlier sentences of a recording has
    `scores_in_context(groups, histories)`, the scores of each group's sentences after its history,
    and `extended(histories, sentences)`, the histories after one more sentence of each recording.
    """

    name: str

    def word_scores(self, sentences: Sequence[Sequence[str]]) -> List[WordScores]:
        """Scores of each sentence (words without `<s>`, `</s>`), in order."""


class Component(NamedTuple):
    """One LM or n-gram of a mixture.

    Attributes:
        name: Unique name among the components; weights files identify a component by it.
        kind: "lm", "ngram" or "mixture".
        scorer: Scorer of sentences, word by word.
        fingerprint: A digest of its files: by it weights find their component under any name.
        pretrained: Scorer of a pretrained LM, which reads text in a form of its own, also where a
            cache stands before it; None: another LM, or an n-gram.
    """

    name: str
    kind: str
    scorer: WordScorer
    fingerprint: str = ""
    pretrained: Optional[Any] = None
