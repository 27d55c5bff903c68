"""N-best lists as a stream: scored block by block, written as they come."""

from __future__ import annotations

import itertools
from typing import Any, Iterable, Iterator, List, NamedTuple, Optional, Sequence

import numpy as np

from espnet_bayeslm.nbest.types import NBest
from espnet_bayeslm.rescoring.components import Component, inner_scorer
from espnet_bayeslm.rescoring.decision import Scales, best_hypotheses
from espnet_bayeslm.rescoring.list_scorer import ListScorer, WordList
from espnet_bayeslm.rescoring.output_files import RescoredFiles
from espnet_bayeslm.rescoring.recording_scorer import ContextScorer
from espnet_bayeslm.rescoring.recordings import Recording
from espnet_bayeslm.rescoring.tuning import ErrorTally
from espnet_bayeslm.utils.errors import InputError

Block = List[Recording]
# Lists whose uncertainty is computed at a time
LISTS = 50


class Mixture(NamedTuple):
    """How scores are weighed.

    Attributes:
        names: The components' names.
        weights: Their weights, (K,).
        combine: How the weights combine their scores.
        scales: Those of acoustic scores and words.
    """

    names: Sequence[str]
    weights: np.ndarray
    combine: str
    scales: Scales


def make_scorer(
    components: Sequence[Component], mixture: Mixture, context: str, max_oov_rate: float
) -> ListScorer:
    """Return what scores the blocks, with the context that is asked for."""
    if context == "none":
        return ListScorer(components, max_oov_rate=max_oov_rate)

    def choose(item: WordList) -> Sequence[str]:
        scored = item.scored(mixture.weights, mixture.combine)
        return best_hypotheses([scored], mixture.scales)[item.nbest.utt]

    return ContextScorer(components, max_oov_rate=max_oov_rate, choose=choose)


def prepared(work: Iterable[Block], components: Sequence[Component]) -> Iterator[Block]:
    """Yield the blocks, once the LMs have seen the first: all jobs have it in common."""
    for number, block in enumerate(work):
        for component in components if number == 0 else ():
            scorer: Any = inner_scorer(component)
            if getattr(scorer, "self_normalized", False):
                items = (item for recording in block for item in recording)
                scorer.prepare([hyp.words for item in items for hyp in item.hypotheses])
        yield block


def uncertain_scorer(components: Sequence[Component]) -> Any:
    """Return the scorer of the first LM that is uncertain.

    Raises:
        InputError: None is.
    """
    for component in components:
        scorer: Any = inner_scorer(component)
        lm: Any = getattr(getattr(scorer, "trained", None), "lm", None)
        if hasattr(lm, "locations") and lm.locations():
            return scorer
    raise InputError("--uncertainty, and no LM is uncertain", remedy="Give a Bayesian LM by --lm.")


def with_uncertainty(lists: Iterable[WordList], scorer: Any) -> Iterator[WordList]:
    """Yield the lists with how uncertain an LM is of their words."""
    while batch := list(itertools.islice(lists, LISTS)):
        sentences = [hyp.words for item in batch for hyp in item.nbest.hypotheses]
        found = iter(scorer.uncertainty(sentences))
        for item in batch:
            yield item._replace(uncertainty=tuple(next(found) for _ in item.nbest.hypotheses))


def score_blocks(scorer: ListScorer, work: Iterable[Block]) -> Iterator[WordList]:
    """Yield the lists of all blocks with their scores."""
    for block in work:
        yield from scorer.score(block)
    scorer.check(report=True)


def rescored(
    lists: Iterable[WordList],
    mixture: Mixture,
    files: RescoredFiles,
    tally: Optional[ErrorTally],
) -> Iterator[NBest]:
    """Yield the lists while their costs and their best hypotheses are written."""
    for item in lists:
        costs = item.costs(mixture.weights, mixture.combine)
        best = best_hypotheses([item.with_costs(costs)], mixture.scales)[item.nbest.utt]
        files.add(item, costs, best)
        if tally is not None:
            tally.add(item.nbest, best)
        yield item.nbest
