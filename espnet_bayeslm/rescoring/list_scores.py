"""Scores of the words of N-best lists by the components of a mixture."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, NamedTuple, Sequence

import numpy as np

from espnet_bayeslm.evaluation.counting import ALL_WORDS, Counting, UnknownWords
from espnet_bayeslm.evaluation.word_scores import Component, ContextualScorer, WordScores
from espnet_bayeslm.nbest.types import NBest
from espnet_bayeslm.rescoring.decision import ListScores, distinct_hypotheses
from espnet_bayeslm.scoring.cache import uncached

Recording = Sequence[NBest]
"""The lists of its utterances, in the order of time."""


class BlockScores(NamedTuple):
    """Lists of a block with their scores, and the words that each component does not know."""

    lists: List[ListScores]
    unknown: List[UnknownWords]


def _list_scores(
    nbest: NBest, rows: Sequence[Sequence[WordScores]], counting: Counting
) -> ListScores:
    """A list with the scores of each hypothesis by each component."""
    log_probs = tuple(np.stack([score.log_probs for score in row]) for row in rows)
    unknown = tuple(
        np.array([_count_unknown(hyp.words, score, counting) for score in row])
        for hyp, row in zip(nbest.hypotheses, rows, strict=True)
    )
    return ListScores(nbest, log_probs, unknown=unknown)


def _count_unknown(words: Sequence[str], score: WordScores, counting: Counting) -> int:
    """Words, or characters of words, that a component does not know."""
    if not score.oov.any():
        return 0
    known = zip(words, score.oov[:-1], strict=True)
    return counting.size([word for word, oov in known if oov])


class ListScorer:
    """Scores the words of N-best lists under several components, block by block."""

    def __init__(
        self,
        components: Sequence[Component],
        *,
        max_oov_rate: float,
        counting: Counting = ALL_WORDS,
    ):
        self.components, self.counting = list(components), counting
        self.max_oov_rate = max_oov_rate

    def score(self, block: Sequence[Recording]) -> BlockScores:
        """Lists of a block with their scores; blocks do not depend on each other."""
        unknown = [
            UnknownWords(
                c.name,
                max_oov_rate=self.max_oov_rate,
                counting=self.counting,
                scorer=c.scorer,
            )
            for c in self.components
        ]
        return BlockScores(self._score(block, unknown), unknown)

    def _score(
        self, block: Sequence[Recording], unknown: Sequence[UnknownWords]
    ) -> List[ListScores]:
        """Lists of a block with their scores; equal hypotheses are scored once."""
        items = [item for recording in block for item in recording]
        sentences = distinct_hypotheses(items)
        scores = [component.scorer.word_scores(sentences) for component in self.components]
        _count(unknown, sentences, scores)
        found = dict(zip(sentences, zip(*scores, strict=True), strict=True))
        return [
            _list_scores(item, [found[hyp.words] for hyp in item.hypotheses], self.counting)
            for item in items
        ]


def _count(
    unknown: Sequence[UnknownWords],
    sentences: Sequence[Sequence[str]],
    scores: Sequence[Sequence[WordScores]],
) -> None:
    """Count the words that each component does not know."""
    for count, of_component in zip(unknown, scores, strict=True):
        count.add(sentences, of_component)


Choose = Callable[["ListScores"], Sequence[str]]


class ContextScorer(ListScorer):
    """Scores of lists by LMs that go on from the best hypotheses so far of a recording.

    N-grams begin each utterance anew.
    """

    def __init__(
        self,
        components: Sequence[Component],
        *,
        max_oov_rate: float,
        choose: Choose,
        counting: Counting = ALL_WORDS,
    ):
        super().__init__(components, max_oov_rate=max_oov_rate, counting=counting)
        self.choose = choose
        # what a cache keeps are scores without context
        self.scorers: List[Any] = [uncached(component.scorer) for component in components]

    def _score(
        self, block: Sequence[Recording], unknown: Sequence[UnknownWords]
    ) -> List[ListScores]:
        """Lists of a block with their scores, recording by recording."""
        found: List[List[ListScores]] = [[] for _ in block]
        with_context = [k for k, s in enumerate(self.scorers) if isinstance(s, ContextualScorer)]
        histories: Dict[int, List[Any]] = {k: [None] * len(block) for k in with_context}
        for step in range(max(map(len, block), default=0)):
            active = [r for r, recording in enumerate(block) if step < len(recording)]
            items = [block[r][step] for r in active]
            before = {k: [of_lm[r] for r in active] for k, of_lm in histories.items()}
            lists = self._score_items(items, before, unknown)
            said = [self.choose(item) for item in lists]
            for k, of_lm in before.items():
                extended = self.scorers[k].extended(of_lm, said)
                for r, history in zip(active, extended, strict=True):
                    histories[k][r] = history
            for r, item in zip(active, lists, strict=True):
                found[r].append(item)
        return [item for of_recording in found for item in of_recording]

    def _score_items(
        self,
        items: Sequence[NBest],
        histories: Dict[int, List[Any]],
        unknown: Sequence[UnknownWords],
    ) -> List[ListScores]:
        """Lists of one utterance of each recording with their scores."""
        groups = [[hyp.words for hyp in item.hypotheses] for item in items]
        sentences = [words for group in groups for words in group]
        scores: List[List[WordScores]] = []
        for k, scorer in enumerate(self.scorers):
            if k in histories:
                of_groups = scorer.scores_in_context(groups, histories[k])
                scores.append([score for group in of_groups for score in group])
            else:
                scores.append(scorer.word_scores(sentences))
        _count(unknown, sentences, scores)
        rows = iter(zip(*scores, strict=True))
        return [
            _list_scores(item, [next(rows) for _ in item.hypotheses], self.counting)
            for item in items
        ]
