"""Perplexity: sums that add, from which each normalisation is derived.

`</s>` is counted in every normalisation, `<s>` in none.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from espnet_bayeslm.scoring.interpolation import mixed_scores
from espnet_bayeslm.scoring.oov_rate import UnknownWords, mending_lines
from espnet_bayeslm.scoring.word_scores import Component, WordScorer, WordScores
from espnet_bayeslm.utils.sums import Addable

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

    def tally(mask: np.ndarray) -> Tally:
        sums = (int(sizes[mask].sum()) for sizes in (tokens, characters))
        return Tally(float(log_probs[mask].sum()), int(mask.sum()), *sums)

    return Perplexity(tally(~excluded), tally(excluded), 1)


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


class TextScores:
    """The scores of a text under components and, if there are weights, under their mixture.

    "Without OOVs" leaves out the words that any of the components does not know: the same words for
    all components. The word after an unknown one counts, and its score depends on how an LM reads
    <unk>. Known sentences are the sentences without unknown words. The tokens of a mixture are
    words.
    """

    def __init__(
        self,
        components: Sequence[Component],
        sentences: Sentences,
        scores: Sequence[Sequence[WordScores]],
        weights: Optional[np.ndarray] = None,
    ):
        self.sentences = sentences
        self.rows: List[Tuple[str, str, WordScorer, Sequence[WordScores]]] = [
            (c.name, c.kind, c.scorer, found) for c, found in zip(components, scores, strict=True)
        ]
        """Name, kind, scorer and scores of each component, and of the mixture."""
        self._excluded = [
            np.logical_or.reduce([s.oov for s in row]) for row in zip(*scores, strict=True)
        ]
        if weights is not None and len(components) > 1:
            self.rows.append(("mixture", "mixture", WordScorer(), mixed_scores(scores, weights)))

    def perplexities(self, index: int) -> List[Perplexity]:
        """Perplexity of each sentence under a component (the mixture comes last)."""
        _, _, scorer, scores = self.rows[index]
        found = []
        for words, score, out in zip(self.sentences.values(), scores, self._excluded, strict=True):
            tokens = scorer.token_counts(words)
            found.append(sentence_perplexity(words, score.log_probs, tokens=tokens, excluded=out))
        return found

    def summary(self, index: int) -> Dict[str, Any]:
        """Figures of a component over the whole text."""
        (name, kind, _, scores), found = self.rows[index], self.perplexities(index)
        total = sum(found, Perplexity())
        known = sum((sentence for sentence in found if not sentence.oov.words), Perplexity())
        num_words = total.all.words - total.sentences
        num_oovs = int(sum(score.oov.sum() for score in scores))
        return {
            "name": name,
            "kind": kind,
            "log_prob": total.all.log_prob,
            "words": num_words,
            "sentences": total.sentences,
            "tokens": total.all.tokens,
            "characters": total.all.characters,
            "oovs": num_oovs,
            "oov_rate": num_oovs / num_words if num_words else 0.0,
            "excluded": total.oov.words,
            "perplexity": {u: total.all.perplexity(n) for u, n in UNITS.items()},
            "perplexity_without_oov": {u: total.known.perplexity(n) for u, n in UNITS.items()},
            "known_sentences": known.sentences,
            "perplexity_of_known_sentences": {u: known.all.perplexity(n) for u, n in UNITS.items()},
        }

    def summaries(self) -> List[Dict[str, Any]]:
        """Figures of every component, the mixture last."""
        return [self.summary(index) for index in range(len(self.rows))]
