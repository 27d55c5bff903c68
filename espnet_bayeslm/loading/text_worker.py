"""Scores of a text by workers: blocks of sentences out, scores of their words back."""

from __future__ import annotations

from typing import Dict, List, Optional, Sequence, Tuple

import numpy as np

from espnet_bayeslm.evaluation.perplexity import text_blocks, token_counts
from espnet_bayeslm.evaluation.word_scores import Component, WordScores
from espnet_bayeslm.loading.components import ComponentOptions
from espnet_bayeslm.utils.blocks import Blocks
from espnet_bayeslm.utils.cli import device_of
from espnet_bayeslm.utils.engine import Pool
from espnet_bayeslm.utils.files import PathLike

Sentences = Sequence[Sequence[str]]
Scored = Tuple[List[WordScores], List[np.ndarray]]
"""Scores of each sentence by one component, and the tokens of each of its words, (n + 1,)."""


class TextWorker:
    """LMs and n-grams, loaded by a worker on its GPUs, which scores blocks of sentences.

    LMs read `context` sentences of the text before each one first.
    """

    def __init__(self, options: ComponentOptions, ngpu: int, context: int):
        self._components = options.components(device_of(ngpu), context=context)

    def components(self, _: None) -> List[Tuple[str, str, str]]:
        """Name, kind and digest of each component."""
        return [(c.name, c.kind, c.fingerprint) for c in self._components]

    def score(self, block: Sentences) -> List[Scored]:
        """Scores of a block by each component, and the tokens of its words."""
        return [
            (c.scorer.word_scores(block), [token_counts(c.scorer, words) for words in block])
            for c in self._components
        ]


class ScoredText:
    """Scores of one text by a component `name`, added in order: a `WordScorer` of its sentences."""

    def __init__(self, name: str):
        self.name = name
        self.scores: List[WordScores] = []
        self._known: Dict[Tuple[str, ...], Tuple[WordScores, np.ndarray]] = {}

    def add(self, block: Sentences, found: Scored) -> None:
        """Add the scores of the text's next sentences."""
        self.scores += found[0]
        for words, scores, counts in zip(block, found[0], found[1], strict=True):
            self._known[tuple(words)] = scores, counts

    def word_scores(self, sentences: Sentences) -> List[WordScores]:
        """Scores of sentences of the text."""
        return [self._known[tuple(words)][0] for words in sentences]

    def token_counts(self, words: Sequence[str]) -> np.ndarray:
        """(n + 1,) tokens of each word of a sentence of the text and of `</s>`."""
        return self._known[tuple(words)][1]


class TextOnWorkers:
    """LMs and n-grams on workers; the scorers of its `components` get the scores by `score`."""

    def __init__(self, pool: Pool, options: ComponentOptions, *, ngpu: int, context: int):
        if pool.workers > 1:
            options.check_form()
        self._work = Blocks(pool, TextWorker, options, ngpu, context)
        known: List[Tuple[str, str, str]] = self._work.ask("components")
        self._identity, self._context = f"{options!r} {context} {known}", context
        self._texts = [ScoredText(name) for name, _, _ in known]
        self.components = [
            Component(name, kind, text, digest)
            for (name, kind, digest), text in zip(known, self._texts, strict=True)
        ]

    def score(self, sentences: Sentences, *, output: Optional[PathLike]) -> List[List[WordScores]]:
        """Scores of each sentence by each component; finished blocks are kept by `output`."""
        blocks = text_blocks(sentences, context=self._context)
        total = len(sentences)
        with self._work.kept(output, self._identity):
            found = self._work.map("score", blocks, desc="scoring", unit="sentence", total=total)
            for block, of_components in found:
                for text, of_block in zip(self._texts, of_components, strict=True):
                    text.add(block, of_block)
        return [text.scores for text in self._texts]
