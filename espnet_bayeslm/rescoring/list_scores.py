"""ln p of every word of N-best lists under each LM: list by list, or in a recording."""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Sequence, Tuple

import numpy as np

from espnet_bayeslm.evaluation.word_scores import WordScores
from espnet_bayeslm.nbest.types import NBest
from espnet_bayeslm.rescoring.combination import combined
from espnet_bayeslm.rescoring.components import Component, UnknownWords, inner_scorer
from espnet_bayeslm.rescoring.decision import ScoredList, distinct_hypotheses
from espnet_bayeslm.rescoring.recordings import Recording
from espnet_bayeslm.scoring.uncertainty import Uncertainty

# Digits after the point of a written cost. Choices are made with what is written, so that they
# can be made again from the files.
DIGITS = 6
# Words before the unknown ones are counted on.
ENOUGH = 1000


class ListScores(NamedTuple):
    """The N-best list of an utterance with the scores of its words.

    Attributes:
        nbest: The list.
        log_probs: Of each hypothesis ln p under each component, (K, n + 1), the last `</s>`.
        uncertainty: Of each hypothesis how uncertain an LM is of its words, where it is wanted.
        unknown: Of each hypothesis how many words a component does not know, (K,), where the
            components have just scored it.
    """

    nbest: NBest
    log_probs: Tuple[np.ndarray, ...]
    uncertainty: Tuple[Uncertainty, ...] = ()
    unknown: Tuple[np.ndarray, ...] = ()

    def mixed(self, weights: np.ndarray, combine: str) -> Tuple[np.ndarray, ...]:
        """The combination's score of each word and `</s>` of each hypothesis, (n + 1,), in nats."""
        return tuple(combined(values, weights, combine) for values in self.log_probs)

    def scored(self, weights: np.ndarray, combine: str, *, names: Sequence[str] = ()) -> ScoredList:
        """The list with the combination's score of each hypothesis.

        Args:
            weights: The components' weights, (K,).
            combine: How they combine the scores.
            names: The components' names, where each one's own scores are wanted too.
        """
        log_probs = np.array(written_log_probs(self.mixed(weights, combine)))
        return ScoredList(self.nbest, log_probs, self.of_lms(names))

    def of_lms(self, names: Sequence[str]) -> Dict[str, np.ndarray]:
        """Ln P of each hypothesis under single components, (N,) each."""
        rows = [
            written_log_probs(values[k] for values in self.log_probs) for k in range(len(names))
        ]
        return {name: np.array(row) for name, row in zip(names, rows, strict=True)}


def _list_scores(nbest: NBest, rows: Sequence[Sequence[WordScores]]) -> ListScores:
    """A list with the scores of each hypothesis by each component."""
    log_probs = tuple(np.stack([score.log_probs for score in row]) for row in rows)
    unknown = tuple(np.array([score.oov.sum() for score in row]) for row in rows)
    return ListScores(nbest, log_probs, unknown=unknown)


def written_log_probs(words: Iterable[np.ndarray]) -> List[float]:
    """The score of each hypothesis from those of its words, as files have it, in nats."""
    return [-written_cost(-values) for values in words]


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

    def score(self, block: Sequence[Recording]) -> List[ListScores]:
        """Return the lists of a block with their scores; equal hypotheses are scored once.

        Raises:
            InputError: A component knows too few of the words so far.
        """
        items = [item for recording in block for item in recording]
        sentences = distinct_hypotheses(items)
        scores = [component.scorer.word_scores(sentences) for component in self.components]
        self._count(sentences, scores)
        found = dict(zip(sentences, zip(*scores, strict=True), strict=True))
        return [_list_scores(item, [found[hyp.words] for hyp in item.hypotheses]) for item in items]

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


Choose = Callable[["ListScores"], Sequence[str]]


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

    def score(self, block: Sequence[Recording]) -> List[ListScores]:
        """Return the lists of a block with their scores, recording by recording."""
        found: List[List[ListScores]] = [[] for _ in block]
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
    ) -> List[ListScores]:
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
        return [_list_scores(item, [next(rows) for _ in item.hypotheses]) for item in items]
