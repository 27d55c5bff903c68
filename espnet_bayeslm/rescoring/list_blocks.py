"""Blocks of N-best lists and their scores; one process and many workers score the same blocks."""

from __future__ import annotations

import itertools
import os
from typing import (
    TYPE_CHECKING,
    Any,
    Dict,
    Iterable,
    Iterator,
    List,
    Mapping,
    Optional,
    Sequence,
    Tuple,
    Union,
)

from espnet_bayeslm.evaluation.counting import UnknownWords, joined
from espnet_bayeslm.evaluation.word_scores import Component
from espnet_bayeslm.nbest.segments import Segment, known_segments
from espnet_bayeslm.nbest.types import NBest
from espnet_bayeslm.rescoring.decision import ListScores, Weighting
from espnet_bayeslm.rescoring.list_scores import (
    BlockScores,
    ContextScorer,
    ListScorer,
    Recording,
)
from espnet_bayeslm.rescoring.options import RescoreOptions
from espnet_bayeslm.rescoring.pipeline import rescored_list
from espnet_bayeslm.rescoring.tuning import AS_USUAL
from espnet_bayeslm.scoring.cache import uncached
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike

if TYPE_CHECKING:
    from espnet_bayeslm.pretrained.scorer import PretrainedScorer
    from espnet_bayeslm.scoring.neural import NeuralScorer

    UncertainScorer = Union[NeuralScorer, PretrainedScorer]

Block = List[Recording]
# Hypotheses of a block: enough for full batches, few enough for the memory of any list.
BLOCK_SIZE = 2000
# Lists whose uncertainty is computed at a time
LISTS = 50
# Words before the unknown ones are counted on
ENOUGH = 1000


def score_lists(
    lists: Iterable[NBest],
    components: Sequence[Component],
    weighting: Weighting,
    options: RescoreOptions = AS_USUAL,
) -> Iterator[ListScores]:
    """Yield lists with ln p of their words, in the order of the lists, or of the recordings."""
    first, work = blocks_of_job(lists, options)
    scorer = BlockScorer(components, weighting, options, first)
    return checked_lists(map(scorer.score, work))


def blocks_of_job(lists: Iterable[NBest], options: RescoreOptions) -> Tuple[Block, Iterator[Block]]:
    """First block of all jobs, where LMs are prepared with it, and the blocks of this job."""
    segments = options.segments
    path = segments if isinstance(segments, (str, os.PathLike)) else ""
    every = blocks(by_recording(lists, known_segments(segments), path=path))
    # taken only where it is needed: lists are read as they are asked for
    first: Block = next(every, []) if options.self_normalized else []
    work = itertools.chain([first] if first else [], every)
    return first, itertools.islice(work, options.job - 1, None, options.num_jobs)


def checked_lists(scored: Iterable[BlockScores]) -> Iterator[ListScores]:
    """Yield the lists of blocks; at the end the unknown words are reported."""
    total: Sequence[UnknownWords] = []
    for lists, unknown in scored:
        total = joined(total, unknown)
        for count in total:
            if count.num_words >= ENOUGH:
                count.check()
        yield from lists
    for count in total:
        count.check(report=True)


class BlockScorer:
    """Scores blocks of lists under several components."""

    def __init__(
        self,
        components: Sequence[Component],
        weighting: Weighting,
        options: RescoreOptions,
        first: Block,
    ):
        if options.self_normalized:
            prepare(components, first)
        unknown: Dict[str, Any] = {
            "max_oov_rate": options.max_oov_rate,
            "counting": options.counting,
        }
        self._scorer = ListScorer(components, **unknown)
        if options.context != "none":

            def choose(item: ListScores) -> Sequence[str]:
                return rescored_list(item, weighting).words

            self._scorer = ContextScorer(components, choose=choose, **unknown)
        self._uncertain = uncertain_scorer(components) if options.uncertainty else None

    def score(self, block: Block) -> BlockScores:
        """Lists of a block with their scores."""
        scored = self._scorer.score(block)
        if self._uncertain is None:
            return scored
        return scored._replace(lists=[*with_uncertainty(scored.lists, self._uncertain)])


def by_recording(
    nbests: Iterable[NBest], segments: Optional[Mapping[str, Segment]], *, path: PathLike = ""
) -> Iterator[Recording]:
    """Yield the lists of each recording in the order of time, recordings as they come first.

    Args:
        nbests: The lists.
        segments: Where they are; None: each is a recording by itself, and is yielded at once.
        path: The file of the segments, for messages.
    """
    if segments is None:
        for item in nbests:
            yield [item]
        return
    recordings: Dict[str, List[NBest]] = {}
    for item in nbests:
        if item.utt not in segments:
            raise InputError(
                f"has no line for the utterance {item.utt!r}",
                path=path,
                remedy="Give the segments of all utterances.",
            )
        recordings.setdefault(segments[item.utt].recording, []).append(item)
    for items in recordings.values():
        yield sorted(items, key=lambda item: (segments[item.utt].start, item.utt))


def blocks(recordings: Iterable[Recording]) -> Iterator[Block]:
    """Yield runs of recordings with at least `BLOCK_SIZE` hypotheses, but the last.

    The blocks do not depend on how many jobs share them, and so no score does.
    """
    block: Block = []
    count = 0
    for recording in recordings:
        block.append(recording)
        count += sum(len(item.hypotheses) for item in recording)
        if count >= BLOCK_SIZE:
            yield block
            block, count = [], 0
    if block:
        yield block


def prepare(components: Sequence[Component], block: Block) -> None:
    """Show the first block to the LMs that have to see some sentences."""
    from espnet_bayeslm.scoring.neural import NeuralScorer  # imports torch

    for component in components:
        scorer = uncached(component.scorer)
        if isinstance(scorer, NeuralScorer) and scorer.self_normalized:
            items = (item for recording in block for item in recording)
            scorer.prepare([hyp.words for item in items for hyp in item.hypotheses])


def uncertain_scorer(components: Sequence[Component]) -> UncertainScorer:
    """The scorer of the first LM that is uncertain."""
    for component in components:
        scorer: Any = uncached(component.scorer)
        if getattr(scorer, "is_uncertain", False):
            return scorer
    raise InputError("--uncertainty, and no LM is uncertain", remedy="Give a Bayesian LM by --lm.")


def with_uncertainty(lists: Sequence[ListScores], scorer: UncertainScorer) -> Iterator[ListScores]:
    """Yield the lists with how uncertain an LM is of their words."""
    remaining = iter(lists)
    while batch := list(itertools.islice(remaining, LISTS)):
        sentences = [hyp.words for item in batch for hyp in item.nbest.hypotheses]
        found = iter(scorer.uncertainty(sentences))
        for item in batch:
            yield item._replace(uncertainty=tuple(next(found) for _ in item.nbest.hypotheses))
