"""Perplexity: sums that add, from which each normalisation is derived.

`</s>` is counted in every normalisation, `<s>` in none.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence

import numpy as np

from espnet_bayeslm.evaluation.wer import Addable
from espnet_bayeslm.scoring.interpolation import mixed_scores
from espnet_bayeslm.scoring.unknown_words import UnknownWords, mending_lines
from espnet_bayeslm.scoring.word_scores import Component, WordScorer, WordScores

UNITS = {"word": "words", "token": "tokens", "character": "characters"}
Sentences = Mapping[str, Sequence[str]]
# Sentences that are scored at once: by one process, or by each of several workers.
BLOCK_SIZE = 2000
# A larger perplexity tells only that a word has a probability near zero.
MAX_SENSIBLE = 1e6
BEYOND_SENSE = (
    "A perplexity above 1e6 comes from words or </s> with a probability near zero: check for a"
    " closed vocabulary (an n-gram without <unk>), another tokenisation or another form of text."
)


def perplexity_text(perplexity: Optional[float], digits: int = 2) -> str:
    """Perplexity as tables show it: above 1e6 in scientific form, a dash where there is none."""
    if perplexity is None:
        return "–"
    if math.isinf(perplexity):
        return "∞"
    return f"{perplexity:.1e}" if perplexity > MAX_SENSIBLE else f"{perplexity:.{digits}f}"


@dataclasses.dataclass(frozen=True)
class Tally(Addable):
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

    def perplexity(self, per: str = "words") -> float:
        """Perplexity exp(-log_prob / count), nan where nothing is counted."""
        count = getattr(self, per)
        return math.exp(min(-self.log_prob / count, 700.0)) if count else math.nan


@dataclasses.dataclass(frozen=True)
class Perplexity(Addable):
    """The perplexity of a text, kept as sums that add over texts.

    Attributes:
        known: Words that count in both figures, and every `</s>`.
        oov: Words left out of the figure "without OOVs".
    """

    known: Tally = Tally()
    oov: Tally = Tally()
    sentences: int = 0

    @property
    def all(self) -> Tally:
        """Tally of all words, OOVs included."""
        return self.known + self.oov


def sentence_perplexity(
    words: Sequence[str], log_probs: np.ndarray, *, tokens: np.ndarray, excluded: np.ndarray
) -> Perplexity:
    """Perplexity of one sentence of n words, and `</s>`.

    Args:
        words: The words.
        log_probs: (n + 1,) ln p of each, in nats.
        tokens: (n + 1,) LM tokens of each.
        excluded: (n + 1,) bool, the words that are left out of the figure "without OOVs"; several
            LMs must share it to be comparable.
    """
    # the space before a word is the word's, as a character LM counts it
    characters = np.array([len(w) + (i > 0) for i, w in enumerate(words)] + [1])
    tallies = []
    for mask in (~excluded, excluded):
        counts = (mask, tokens[mask], characters[mask])
        tallies.append(Tally(float(log_probs[mask].sum()), *(int(c.sum()) for c in counts)))
    known, oov = tallies
    return Perplexity(known, oov, 1)


def text_blocks(
    sentences: Sequence[Sequence[str]], *, context: int
) -> Iterator[Sequence[Sequence[str]]]:
    """Yield the runs of sentences that are scored at once; one run where an LM has context."""
    size = max(len(sentences), 1) if context else BLOCK_SIZE
    for begin in range(0, len(sentences), size):
        yield sentences[begin : begin + size]


def score_components(
    components: Sequence[Component],
    sentences: Sequence[Sequence[str]],
    *,
    max_oov_rate: float,
    context: int = 0,
) -> List[List[WordScores]]:
    """Scores of each sentence by each component."""
    found = []
    for component in components:
        scores = component_scores(component, sentences, context=context)
        count = UnknownWords(component.name, max_oov_rate)
        count.add(sentences, scores)
        count.check(functools.partial(mending_lines, scorer=component.scorer), report=True)
        found.append(scores)
    return found


def component_scores(
    component: Component, sentences: Sequence[Sequence[str]], *, context: int = 0
) -> List[WordScores]:
    """Scores of each sentence by one component.

    Repeated ones are the scorer's own affair: an LM with context needs them where they stand.
    """
    blocks = text_blocks(sentences, context=context)
    return [scores for block in blocks for scores in component.scorer.word_scores(block)]


class TextPerplexity(NamedTuple):
    """Perplexity of a text under a component, or under a mixture, whose tokens are words.

    Attributes:
        name: Name of the component; "mixture" for the mixture.
        kind: Kind of the component; "mixture" for the mixture.
        sentences: Perplexity of each sentence.
        oovs: Number of words that the component does not know.
    """

    name: str
    kind: str
    sentences: List[Perplexity]
    oovs: int

    def summary(self) -> Dict[str, Any]:
        """Figures of the whole text.

        The word after an unknown one counts, and its score depends on how an LM reads <unk>. Known
        sentences are the sentences without excluded words.
        """
        total = sum(self.sentences, Perplexity())
        known = sum((part for part in self.sentences if not part.oov.words), Perplexity())
        everything, of_known = total.all, known.all
        num_words = everything.words - total.sentences
        return {
            "name": self.name,
            "kind": self.kind,
            "log_prob": everything.log_prob,
            "words": num_words,
            "sentences": total.sentences,
            "tokens": everything.tokens,
            "characters": everything.characters,
            "oovs": self.oovs,
            "oov_rate": self.oovs / num_words if num_words else 0.0,
            "excluded": total.oov.words,
            "perplexity": {u: everything.perplexity(n) for u, n in UNITS.items()},
            "perplexity_without_oov": {u: total.known.perplexity(n) for u, n in UNITS.items()},
            "known_sentences": known.sentences,
            "perplexity_of_known_sentences": {u: of_known.perplexity(n) for u, n in UNITS.items()},
        }


def text_perplexities(
    components: Sequence[Component],
    lines: Sequence[Sequence[str]],
    scores: Sequence[Sequence[WordScores]],
    weights: Optional[np.ndarray] = None,
) -> List[TextPerplexity]:
    """Perplexity of a text under each component and, if there are weights, under their mixture.

    "Without OOVs" leaves out the words that any of the components does not know: the same words for
    all components.
    """
    rows = [(c.name, c.kind, c.scorer, s) for c, s in zip(components, scores, strict=True)]
    excluded = [np.logical_or.reduce([s.oov for s in row]) for row in zip(*scores, strict=True)]
    if weights is not None and len(components) > 1:
        rows.append(("mixture", "mixture", WordScorer(), mixed_scores(scores, weights)))
    texts = []
    for name, kind, scorer, of_lines in rows:
        sentences = []
        for words, score, out in zip(lines, of_lines, excluded, strict=True):
            tokens = scorer.token_counts(words)
            sentences.append(
                sentence_perplexity(words, score.log_probs, tokens=tokens, excluded=out)
            )
        oovs = int(sum(score.oov.sum() for score in of_lines))
        texts.append(TextPerplexity(name, kind, sentences, oovs))
    return texts
