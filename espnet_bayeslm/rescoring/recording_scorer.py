"""N-best lists scored with what was said before them in their recording."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Sequence

import numpy as np

from espnet_bayeslm.evaluation.word_scores import WordScores
from espnet_bayeslm.nbest.types import NBest
from espnet_bayeslm.rescoring.components import Component, inner_scorer
from espnet_bayeslm.rescoring.list_scorer import ListScorer, WordList
from espnet_bayeslm.rescoring.recordings import Recording

Choose = Callable[[WordList], Sequence[str]]


class ContextScorer(ListScorer):
    """As `ListScorer`, but each LM goes on from the best hypotheses so far of a recording.

    N-grams begin each utterance anew.

    Args:
        components: The LMs and n-grams.
        max_oov_rate: The largest part of the words that a component may not know.
        choose: Returns the words that count as said, of a list with its scores.
    """

    def __init__(self, components: Sequence[Component], *, max_oov_rate: float, choose: Choose):
        super().__init__(components, max_oov_rate=max_oov_rate)
        self.choose = choose
        # what a cache keeps are scores without context
        self.scorers: List[Any] = [inner_scorer(component) for component in components]

    def score(self, block: Sequence[Recording]) -> List[WordList]:
        """Return the lists of a block with their scores, recording by recording."""
        found: List[List[WordList]] = [[] for _ in block]
        histories: Dict[int, List[Any]] = {k: [None] * len(block) for k in self._with_context()}
        for step in range(max(map(len, block), default=0)):
            active = [r for r, recording in enumerate(block) if step < len(recording)]
            items = [block[r][step] for r in active]
            before = {k: [of_lm[r] for r in active] for k, of_lm in histories.items()}
            lists = self._score_items(items, before)
            said = [self.choose(item) for item in lists]
            for k, of_lm in before.items():
                extended = self.scorers[k].extended(of_lm, said)
                for r, history in zip(active, extended, strict=True):
                    histories[k][r] = history
            for r, item in zip(active, lists, strict=True):
                found[r].append(item)
        return [item for of_recording in found for item in of_recording]

    def _with_context(self) -> List[int]:
        """Return the components that know a context."""
        return [k for k, s in enumerate(self.scorers) if hasattr(s, "scores_in_context")]

    def _score_items(
        self, items: Sequence[NBest], histories: Dict[int, List[Any]]
    ) -> List[WordList]:
        """Return the lists of one utterance of each recording with their scores."""
        groups = [[hyp.words for hyp in item.hypotheses] for item in items]
        sentences = [words for group in groups for words in group]
        scores: List[List[WordScores]] = []
        for k, scorer in enumerate(self.scorers):
            if k in histories:
                of_groups = scorer.scores_in_context(groups, histories[k])
                scores.append([score for group in of_groups for score in group])
            else:
                scores.append(scorer.word_scores(sentences))
        self._count(sentences, scores)
        rows = iter(zip(*scores, strict=True))
        return [
            WordList(
                item,
                tuple(np.stack([s.log_probs for s in next(rows)]) for _ in item.hypotheses),
            )
            for item in items
        ]
