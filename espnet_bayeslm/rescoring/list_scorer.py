"""N-best lists with the LMs' scores of every word."""

from __future__ import annotations

from typing import List, NamedTuple, Sequence, Tuple

import numpy as np

from espnet_bayeslm.evaluation.word_scores import WordScores
from espnet_bayeslm.nbest.types import NBest
from espnet_bayeslm.rescoring.combination import combined
from espnet_bayeslm.rescoring.components import Component, UnknownWords
from espnet_bayeslm.rescoring.decision import ScoredList, distinct_hypotheses, scored_list
from espnet_bayeslm.rescoring.recordings import Recording
from espnet_bayeslm.scoring.uncertainty import Uncertainty

# Digits after the point of a written cost. Choices are made with what is written, so that they
# can be made again from the files.
DIGITS = 6
# Words before the unknown ones are counted on.
ENOUGH = 1000


class WordList(NamedTuple):
    """The N-best list of an utterance with the scores of its words.

    Attributes:
        nbest: The list.
        log_probs: Of each hypothesis ln p under each component, (K, n + 1), the last `</s>`.
        uncertainty: Of each hypothesis how uncertain an LM is of its words, where it is wanted.
    """

    nbest: NBest
    log_probs: Tuple[np.ndarray, ...]
    uncertainty: Tuple[Uncertainty, ...] = ()

    def costs(self, weights: np.ndarray, combine: str) -> List[np.ndarray]:
        """Return -ln p of each word and `</s>` of each hypothesis, (n + 1,)."""
        return [-combined(values, weights, combine) for values in self.log_probs]

    def scored(self, weights: np.ndarray, combine: str) -> ScoredList:
        """Return the list with the combination's score in place of the first pass's."""
        return self.with_costs(self.costs(weights, combine))

    def with_costs(self, word_costs: Sequence[np.ndarray]) -> ScoredList:
        """Return the list with what `costs` returned in place of the first pass's scores."""
        costs = [written_cost(cost) for cost in word_costs]
        words = [hyp.words for hyp in self.nbest.hypotheses]
        return scored_list(self.nbest, {w: -cost for w, cost in zip(words, costs, strict=True)})


def written_cost(costs: np.ndarray) -> float:
    """Return the sum of costs as files have them, so that it is that of the words' file too."""
    return round(float(costs.round(DIGITS).sum()), DIGITS)


class ListScorer:
    """Scores the words of N-best lists under several components, block by block.

    Args:
        components: The LMs and n-grams.
        max_oov_rate: The largest part of the words that a component may not know.
    """

    def __init__(self, components: Sequence[Component], *, max_oov_rate: float):
        self.components = list(components)
        self.unknown = [UnknownWords(c.name, max_oov_rate=max_oov_rate) for c in components]

    def score(self, block: Sequence[Recording]) -> List[WordList]:
        """Return the lists of a block with their scores; equal hypotheses are scored once.

        Raises:
            InputError: A component knows too few of the words so far.
        """
        items = [item for recording in block for item in recording]
        sentences = distinct_hypotheses(items)
        scores = [component.scorer.word_scores(sentences) for component in self.components]
        self._count(sentences, scores)
        found = {
            words: np.stack([score.log_probs for score in row])
            for words, row in zip(sentences, zip(*scores, strict=True), strict=True)
        }
        return [WordList(item, tuple(found[h.words] for h in item.hypotheses)) for item in items]

    def _count(
        self, sentences: Sequence[Sequence[str]], scores: Sequence[Sequence[WordScores]]
    ) -> None:
        for unknown, of_component in zip(self.unknown, scores, strict=True):
            unknown.add(sentences, of_component)
            if unknown.num_words >= ENOUGH:
                unknown.check()

    def check(self, *, report: bool = False) -> None:
        """Raise an InputError where a component knows too few words; `report`: log the rates."""
        for unknown in self.unknown:
            unknown.check(report=report)
