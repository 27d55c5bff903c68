"""Rescoring of N-best lists and lattices in blocks, which one process or many workers score."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
from collections import Counter
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
    TypeVar,
)

import numpy as np

from espnet_bayeslm.evaluation.agreement import warn_of_spelling
from espnet_bayeslm.evaluation.counting import LOOKED_AT, UnknownWords, mending_lines
from espnet_bayeslm.evaluation.interpolation import combined
from espnet_bayeslm.evaluation.normalization import Normalization
from espnet_bayeslm.evaluation.word_scores import Component, WordScores
from espnet_bayeslm.loading.components import SubtractOptions
from espnet_bayeslm.nbest.formats import normalized
from espnet_bayeslm.nbest.lattice import Lattice, PathScales
from espnet_bayeslm.nbest.segments import Recording, recordings
from espnet_bayeslm.nbest.types import Hypothesis, NBest
from espnet_bayeslm.rescoring.decision import ListScores, rescored_list
from espnet_bayeslm.rescoring.options import RescoreOptions
from espnet_bayeslm.rescoring.scales import Weighting, load_mixture
from espnet_bayeslm.rescoring.tuning import AS_USUAL, Refs, Rescoring
from espnet_bayeslm.scoring.cache import uncached
from espnet_bayeslm.utils.blocks import Blocks
from espnet_bayeslm.utils.cli import device_of
from espnet_bayeslm.utils.engine import Pool
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike
from espnet_bayeslm.utils.options import part_of, with_options
from espnet_bayeslm.utils.subset import Subset

if TYPE_CHECKING:
    from espnet_bayeslm.scoring.lattices import MergeOptions

T = TypeVar("T")

Block = List[Recording]
# Hypotheses of a block: enough for full batches, few enough for the memory of any list.
BLOCK_SIZE = 2000
# Words before the unknown ones are counted on
ENOUGH = 1000
LATTICES = 32
"""Lattices of a block."""

Found = Tuple[List[T], List[UnknownWords]]
"""Results of a block, and the words that each component does not know."""


@with_options(RescoreOptions)
def rescore(
    lists: Iterable[NBest],
    *,
    tune: bool = False,
    refs: Optional[Refs] = None,
    device: str = "cpu",
    **options: Any,
) -> Rescoring:
    """An iterator of rescored lists, as `bayeslm rescore` makes them; nothing is written.

    Args:
        lists: N-best lists, as `read_nbest` yields them; a block of them is kept in memory, with
            `tune` all.
        tune: Find scales on these lists; never worse on them than the first pass.
        refs: Utterance id -> words, to tune on; None: the lists' own references.
        device: Where the weights of LMs go that are loaded.
        **options: Fields of `RescoreOptions`.

    Returns:
        An iterator of `RescoredList`, with the attributes `weighting` and `tuned`.

    Raises:
        InputError: Something does not fit; lists are checked as they come.
    """
    given = RescoreOptions(**options)
    if tune and refs is None:
        lists = list(lists)
        refs = _own_refs(lists)
    refs = refs if tune else None
    normalization = Normalization(given.normalize, kept=given.counting.ignored)
    if normalization:
        lists = normalized(lists, normalization)
        refs = None if refs is None else normalization.text(refs)
    if refs is None:
        given.check_untuned()
    else:
        lists = list(lists)
        firsts = Subset()
        for item in lists:
            firsts.add(item.utt, item.hypotheses[0].words)
        warn_of_spelling(refs, firsts.texts, given.counting, given=normalization.steps)
    components, weighting = _load(given, device, tunes=tune)
    scores = score_lists(lists, components, weighting, given)
    return Rescoring(scores, weighting, given, refs=refs)


def _own_refs(lists: Iterable[NBest]) -> Refs:
    """The references that lists hold, by utterance id."""
    for item in lists:
        if item.ref is None:
            raise InputError(
                f"the list of {item.utt!r} has no reference to tune on",
                remedy="Give references of all lists, or lists that hold them (jsonl's `ref`).",
            )
    return {item.utt: item.ref or () for item in lists}


def _load(
    options: RescoreOptions, device: str, *, tunes: bool
) -> Tuple[List[Component], Weighting]:
    """LMs and n-grams of a rescoring of lists, and how their scores are weighed."""
    components, weighting = load_mixture(
        options,
        device,
        scales=options.scales,
        tunes=tunes,
        self_normalized=options.self_normalized,
        max_context=options.max_context,
    )
    decision = options.decision or weighting.scales.decision
    scales = dataclasses.replace(weighting.scales, decision=decision)
    return components, weighting._replace(scales=scales, confidence=options.confidence)


def score_lists(
    lists: Iterable[NBest],
    components: Sequence[Component],
    weighting: Weighting,
    options: RescoreOptions = AS_USUAL,
) -> Iterator[ListScores]:
    """Yield lists with ln p of their words, in the order of the lists, or of the recordings."""
    first, work = blocks_of(lists, options)
    return checked(map(ListWorker(components, weighting, options, first).score, work))


def blocks_of(lists: Iterable[NBest], options: RescoreOptions) -> Tuple[Block, Iterator[Block]]:
    """First block, where LMs are prepared with it, and all blocks."""
    segments = options.segments
    # without segments each list is a recording by itself
    every = blocks(([x] for x in lists) if segments is None else recordings(lists, segments))
    # taken only where it is needed: lists are read as they are asked for
    first: Block = next(every, []) if options.self_normalized else []
    return first, itertools.chain([first] if first else [], every)


def checked(
    scored: Iterable[Tuple[Iterable[T], List[UnknownWords]]], work: Optional[Blocks] = None
) -> Iterator[T]:
    """Yield the lists or lattices of blocks; the words that components do not know are checked.

    Where workers have the LMs, one of them (`mends`) says how these words differ from known ones.
    """
    total: Sequence[UnknownWords] = []
    for items, unknown in scored:
        for count, more in zip(total, unknown, strict=False):  # none before the first block
            count.join(more)
        if not total:
            total = unknown
            for k, count in enumerate(total):
                if work is not None:
                    count.mends = functools.partial(_mends_of, work, k)
        for count in total:
            if count.num_words >= ENOUGH:
                count.check()
        yield from items
    for count in total:
        count.check(report=True)


def _mends_of(work: Blocks, component: int, words: Counter[str]) -> List[str]:
    """Lines about the most frequent unknown words of a component that a worker has."""
    found: List[str] = work.ask("mends", (component, Counter(dict(words.most_common(LOOKED_AT)))))
    return found


class ListWorker:
    """Scores blocks of lists under several components; blocks do not depend on each other.

    With `context` each LM goes on from the best hypotheses so far of a recording, and n-grams begin
    each utterance anew. The `first` block of all is for LMs that have to see some sentences.
    """

    def __init__(
        self,
        components: Sequence[Component],
        weighting: Weighting,
        options: RescoreOptions,
        first: Block,
    ):
        self._components, self._weighting, self._options = components, weighting, options
        self._in_context = options.context != "none"
        scorers: List[Any] = [c.scorer for c in components]
        # what a cache keeps are scores without context
        self._scorers = [*map(uncached, scorers)] if self._in_context else scorers
        if options.self_normalized:
            items = [item for recording in first for item in recording]
            for scorer in map(uncached, self._scorers):
                if getattr(scorer, "self_normalized", False):
                    scorer.prepare([hyp.words for item in items for hyp in item.hypotheses])
        self._uncertain: Any = None
        if options.uncertainty:
            loaded = map(uncached, self._scorers)
            random = (scorer for scorer in loaded if getattr(scorer, "is_uncertain", False))
            self._uncertain = next(random, None)
            if self._uncertain is None:
                raise InputError(
                    "--uncertainty, and no LM is uncertain", remedy="Give a Bayesian LM by --lm."
                )

    @classmethod
    def load(cls, options: RescoreOptions, ngpu: int, first: Block, tunes: bool) -> ListWorker:
        """Worker of the LMs and n-grams that the options name."""
        return cls(*_load(options, device_of(ngpu), tunes=tunes), options, first)

    def weighting(self, _: None) -> Weighting:
        """Names, weights and digests of the components."""
        return self._weighting

    def mends(self, asked: Tuple[int, Counter[str]]) -> List[str]:
        """Lines that say how unknown words differ from words that a component knows."""
        component, words = asked
        return mending_lines(words, self._components[component].scorer)

    def sent(self, block: Block) -> Found[Tuple[np.ndarray, Tuple[Any, ...]]]:
        """Scores of a block, ln p (K, W) and uncertainty of the words, without its lists."""
        lists, unknown = self.score(block)
        found = [(np.concatenate(item.log_probs, axis=1), item.uncertainty) for item in lists]
        return found, unknown

    def score(self, block: Block) -> Found[ListScores]:
        """Lists of a block with their scores, and the words that each component does not know."""
        options = self._options
        how: Any = {"max_oov_rate": options.max_oov_rate, "counting": options.counting}
        unknown = [UnknownWords(c.name, scorer=c.scorer, **how) for c in self._components]
        if not self._in_context:
            # all at once: each list is a recording by itself
            block = [[item] for recording in block for item in recording]
        lists = self._score_in_order(block, unknown)
        if self._uncertain is not None:
            sentences = [hyp.words for item in lists for hyp in item.nbest.hypotheses]
            found = iter(self._uncertain.uncertainty(sentences))
            lists = [
                item._replace(uncertainty=tuple(next(found) for _ in item.nbest.hypotheses))
                for item in lists
            ]
        return lists, unknown

    def _score_in_order(self, block: Block, unknown: Sequence[UnknownWords]) -> List[ListScores]:
        """Lists of a block with their scores, one utterance of each recording at a time."""
        found: List[List[ListScores]] = [[] for _ in block]
        histories: Dict[int, List[Any]] = {
            k: [None] * len(block)
            for k, scorer in enumerate(self._scorers)
            if self._in_context and hasattr(scorer, "scores_in_context")
        }
        for step in range(max(map(len, block), default=0)):
            active = [r for r, recording in enumerate(block) if step < len(recording)]
            before = {k: [of_lm[r] for r in active] for k, of_lm in histories.items()}
            lists = self._score([block[r][step] for r in active], before, unknown)
            said = [rescored_list(item, self._weighting).words for item in lists if before]
            for k, of_lm in before.items():
                extended = self._scorers[k].extended(of_lm, said)
                for r, history in zip(active, extended, strict=True):
                    histories[k][r] = history
            for r, item in zip(active, lists, strict=True):
                found[r].append(item)
        return [item for of_recording in found for item in of_recording]

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
        lists = []
        for item, found in zip(items, zip(*scores, strict=True), strict=True):
            rows = (np.stack([s.log_probs for s in row]) for row in zip(*found, strict=True))
            lists.append(ListScores(item, tuple(rows)))
        return lists


def blocks(recordings: Iterable[Recording]) -> Iterator[Block]:
    """Yield runs of recordings with at least `BLOCK_SIZE` hypotheses, but the last.

    The blocks do not depend on how many workers share them, and so no score does.
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


def _bare(block: Block) -> Block:
    """A block without what its lists hold besides words and scores."""

    def bare(hyp: Hypothesis) -> Hypothesis:
        return Hypothesis(hyp.words, hyp.am_score, hyp.lm_score, hyp.graph_score)

    return [[NBest(i.utt, tuple(map(bare, i.hypotheses))) for i in items] for items in block]


@contextlib.contextmanager
def rescored_on(
    pool: Pool,
    lists: Iterable[NBest],
    options: RescoreOptions,
    *,
    refs: Optional[Refs],
    ngpu: int,
    output: PathLike,
    total: int,
) -> Iterator[Rescoring]:
    """An iterator of rescored lists, as `rescore` makes it; to be read within the block.

    The lists come normalised. Scores of finished blocks are kept beside the output.
    """
    if pool.workers > 1:
        options.check_form()
    plain = part_of(RescoreOptions, options)
    first, todo = blocks_of(lists, plain)
    seen = _bare(first)
    work = Blocks(pool, ListWorker.load, plain, ngpu, seen, refs is not None)
    # the first lists are read while the workers load the LMs
    todo = itertools.chain(list(itertools.islice(todo, 1)), todo)
    weighting: Weighting = work.ask("weighting")
    same = dataclasses.replace(plain, cache=None)

    def whole(block: Block, rows: Iterable[Tuple[np.ndarray, Any]]) -> Iterator[ListScores]:
        """Yield the lists of a block with their scores."""
        for item, (log_probs, uncertainty) in zip(itertools.chain(*block), rows, strict=True):
            ends = np.cumsum([len(hyp.words) + 1 for hyp in item.hypotheses])
            yield ListScores(item, tuple(np.split(log_probs, ends[:-1], axis=1)), uncertainty)

    with work.kept(output, f"{same} {weighting.digests} {seen}"):
        found = work.map("sent", todo, desc="rescoring", unit="list", total=total, sent=_bare)
        scores = ((whole(block, rows), unknown) for block, (rows, unknown) in found)
        yield Rescoring(checked(scores, work), weighting, options, refs=refs)


class LatticeWorker:
    """LMs and n-grams, loaded by a worker, which rescores blocks of lattices."""

    def __init__(
        self,
        options: SubtractOptions,
        merging: MergeOptions,
        scales: Optional[PathScales],
        ngpu: int,
    ):
        self._components, self._weighting = load_mixture(options, device_of(ngpu))
        self._merging, self._scales = merging, scales
        self._max_oov_rate = options.max_oov_rate

    def weighting(self, _: None) -> Weighting:
        """Names, weights and digests of the components."""
        return self._weighting

    def mends(self, asked: Tuple[int, Counter[str]]) -> List[str]:
        """Lines that say how unknown words differ from words that a component knows."""
        component, words = asked
        return mending_lines(words, self._components[component].scorer)

    def rescore(self, block: List[Lattice]) -> Found[Lattice]:
        """Lattices with the scores of the components, and the words that these do not know."""
        from espnet_bayeslm.scoring.lattices import rescore_lattices  # imports torch

        scorers = [uncached(component.scorer) for component in self._components]
        how: Any = {"scales": self._scales, "options": self._merging}
        unknown = []
        for component, scorer in zip(self._components, scorers, strict=True):
            count = UnknownWords(component.name, max_oov_rate=self._max_oov_rate, scorer=scorer)
            for item in block:  # each word once a lattice
                words = list(dict.fromkeys(arc.label for arc in item.arcs if arc.word is not None))
                oov = np.array([*scorer.unknown(words), False])
                count.add([words], [WordScores(np.zeros(len(oov)), oov)])
            unknown.append(count)
        return rescore_lattices(block, scorers, self._mixed, **how), unknown

    def _mixed(self, log_probs: np.ndarray) -> np.ndarray:
        """Ln p of the mixture less that of the subtracted LMs, from that of all components."""
        weighting = self._weighting
        count = len(weighting.names)
        mixed = combined(log_probs[:count], weighting.weights)
        rows = zip(weighting.scales.subtracted, log_probs[count:], strict=True)
        return mixed + sum(row.weight * values for row, values in rows if row.weight)


@contextlib.contextmanager
def rescored_lattices(
    pool: Pool,
    lattices: Iterable[Lattice],
    options: SubtractOptions,
    *how: Any,
    output: Optional[PathLike],
    total: int,
) -> Iterator[Iterator[Lattice]]:
    """An iterator of lattices with the scores of LMs and n-grams, to be read within the block."""
    if pool.workers > 1:
        options.check_form()
    work = Blocks(pool, LatticeWorker, options, *how)
    weighting: Weighting = work.ask("weighting")
    remaining = iter(lattices)
    todo = iter(lambda: list(itertools.islice(remaining, LATTICES)), [])
    identity = f"{options!r} {how!r} {weighting.digests}"
    with work.kept(output, identity):
        found = work.map("rescore", todo, desc="rescoring", unit="lattice", total=total)
        yield checked((result for _, result in found), work)
