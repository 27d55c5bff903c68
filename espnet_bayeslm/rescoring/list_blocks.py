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
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
    Union,
)

import numpy as np

from espnet_bayeslm.evaluation.counting import Counting, UnknownWords, joined
from espnet_bayeslm.evaluation.word_scores import Component, ContextualScorer, WordScores
from espnet_bayeslm.nbest.segments import Segment, known_segments
from espnet_bayeslm.nbest.types import NBest
from espnet_bayeslm.rescoring.decision import ListScores, Weighting
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

Recording = Sequence[NBest]
"""The lists of its utterances, in the order of time."""

Block = List[Recording]
# Hypotheses of a block: enough for full batches, few enough for the memory of any list.
BLOCK_SIZE = 2000
# Lists whose uncertainty is computed at a time
LISTS = 50
# Words before the unknown ones are counted on
ENOUGH = 1000


class BlockScores(NamedTuple):
    """Lists of a block with their scores, and the words that each component does not know."""

    lists: List[ListScores]
    unknown: List[UnknownWords]


def score_lists(
    lists: Iterable[NBest],
    components: Sequence[Component],
    weighting: Weighting,
    options: RescoreOptions = AS_USUAL,
) -> Iterator[ListScores]:
    """Yield lists with ln p of their words, in the order of the lists, or of the recordings."""
    first, work = blocks_of_job(lists, options)
    return checked_lists(map(BlockScorer(components, weighting, options, first).score, work))


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
    """Scores blocks of lists under several components; blocks do not depend on each other.

    With `context` each LM goes on from the best hypotheses so far of a recording, and n-grams begin
    each utterance anew.
    """

    def __init__(
        self,
        components: Sequence[Component],
        weighting: Weighting,
        options: RescoreOptions,
        first: Block,
    ):
        if options.self_normalized:
            prepare(components, first)
        self._components, self._weighting, self._options = components, weighting, options
        self._uncertain = uncertain_scorer(components) if options.uncertainty else None
        self._in_context = options.context != "none"
        self._scorers: List[Any] = [component.scorer for component in components]
        if self._in_context:
            # what a cache keeps are scores without context
            self._scorers = [*map(uncached, self._scorers)]

    def score(self, block: Block) -> BlockScores:
        """Lists of a block with their scores."""
        how: Dict[str, Any] = {
            "max_oov_rate": self._options.max_oov_rate,
            "counting": self._options.counting,
        }
        unknown = [UnknownWords(c.name, scorer=c.scorer, **how) for c in self._components]
        if self._in_context:
            lists = self._score_in_context(block, unknown)
        else:
            lists = self._score([item for recording in block for item in recording], {}, unknown)
        if self._uncertain is not None:
            lists = [*with_uncertainty(lists, self._uncertain)]
        return BlockScores(lists, unknown)

    def _score(
        self,
        items: Sequence[NBest],
        histories: Mapping[int, Sequence[Any]],
        unknown: Sequence[UnknownWords],
    ) -> List[ListScores]:
        """Lists with their scores: of some components in context, of others each words once."""
        groups = [[hyp.words for hyp in item.hypotheses] for item in items]
        every = [words for group in groups for words in group]
        distinct = list(dict.fromkeys(every))
        scores: List[List[List[WordScores]]] = []
        for k, (scorer, count) in enumerate(zip(self._scorers, unknown, strict=True)):
            if k in histories:
                found = scorer.scores_in_context(groups, histories[k])
            else:
                known = dict(zip(distinct, scorer.word_scores(distinct), strict=True))
                found = [[known[words] for words in group] for group in groups]
            if self._in_context:
                count.add(every, [score for group in found for score in group])
            else:
                count.add(distinct, [known[words] for words in distinct])
            scores.append(found)
        rows = zip(items, zip(*scores, strict=True), strict=True)
        return [_list_scores(item, found, self._options.counting) for item, found in rows]

    def _score_in_context(self, block: Block, unknown: Sequence[UnknownWords]) -> List[ListScores]:
        """Lists of a block with their scores, one utterance of each recording at a time."""
        found: List[List[ListScores]] = [[] for _ in block]
        histories: Dict[int, List[Any]] = {
            k: [None] * len(block)
            for k, scorer in enumerate(self._scorers)
            if isinstance(scorer, ContextualScorer)
        }
        for step in range(max(map(len, block), default=0)):
            active = [r for r, recording in enumerate(block) if step < len(recording)]
            before = {k: [of_lm[r] for r in active] for k, of_lm in histories.items()}
            lists = self._score([block[r][step] for r in active], before, unknown)
            said = [rescored_list(item, self._weighting).words for item in lists]
            for k, of_lm in before.items():
                extended = self._scorers[k].extended(of_lm, said)
                for r, history in zip(active, extended, strict=True):
                    histories[k][r] = history
            for r, item in zip(active, lists, strict=True):
                found[r].append(item)
        return [item for of_recording in found for item in of_recording]


def _list_scores(
    nbest: NBest, scores: Sequence[Sequence[WordScores]], counting: Counting
) -> ListScores:
    """A list with the scores of its hypotheses by each component."""
    rows = list(zip(*scores, strict=True))
    unknown = tuple(
        np.array([_count_unknown(hyp.words, score, counting) for score in row])
        for hyp, row in zip(nbest.hypotheses, rows, strict=True)
    )
    log_probs = tuple(np.stack([score.log_probs for score in row]) for row in rows)
    return ListScores(nbest, log_probs, unknown=unknown)


def _count_unknown(words: Sequence[str], score: WordScores, counting: Counting) -> int:
    """Words, or characters of words, that a component does not know."""
    if not score.oov.any():
        return 0
    return counting.size(list(itertools.compress(words, score.oov)))


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
