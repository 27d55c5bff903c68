"""N-best lists with the LMs' scores of every word."""

from __future__ import annotations

import logging
from collections import Counter
from typing import List, NamedTuple, Sequence, Tuple

import numpy as np

from espnet_bayeslm.evaluation.word_scores import WordScores
from espnet_bayeslm.rescoring.combine import combined
from espnet_bayeslm.rescoring.components import Component
from espnet_bayeslm.rescoring.nbest import NBest
from espnet_bayeslm.rescoring.recordings import Recording
from espnet_bayeslm.rescoring.rescore import ScoredList, scored_list
from espnet_bayeslm.rescoring.uncertainty import Uncertainty
from espnet_bayeslm.utils.errors import InputError

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
        costs = [written_cost(cost) for cost in self.costs(weights, combine)]
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
        self.max_oov_rate = max_oov_rate
        self.unknown: List[Counter] = [Counter() for _ in components]
        self.num_words = 0

    def score(self, block: Sequence[Recording]) -> List[WordList]:
        """Return the lists of a block with their scores; equal hypotheses are scored once.

        Raises:
            InputError: A component knows too few of the words so far.
        """
        items = [item for recording in block for item in recording]
        sentences = list(dict.fromkeys(hyp.words for item in items for hyp in item.hypotheses))
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
        self.num_words += sum(map(len, sentences))
        for unknown, of_component in zip(self.unknown, scores, strict=True):
            for words, score in zip(sentences, of_component, strict=True):
                if score.oov.any():
                    unknown.update(w for w, oov in zip(words, score.oov, strict=False) if oov)
        if self.num_words >= ENOUGH:
            self.check()

    def check(self, *, report: bool = False) -> None:
        """Raise an InputError where a component knows too few words; `report`: log the rates."""
        for component, unknown in zip(self.components, self.unknown, strict=True):
            rate = unknown.total() / max(self.num_words, 1)
            examples = ", ".join(f"{word!r}" for word, _ in unknown.most_common(5))
            message = (
                f"{component.name} does not know {unknown.total()} of {self.num_words} words"
                f" ({100 * rate:.2f} %, {len(unknown)} distinct{': ' if unknown else ''}{examples})"
            )
            if rate > self.max_oov_rate:
                raise InputError(
                    f"{message}, and --max_oov_rate is {self.max_oov_rate}",
                    remedy="Do text and LM agree in case, spelling and tokens?",
                )
            if report:
                logging.info(message)
