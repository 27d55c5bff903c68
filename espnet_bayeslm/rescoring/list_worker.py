"""Rescoring of N-best lists in blocks, which one process or many workers score."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import os
import sys
import weakref
from collections import Counter
from typing import (
    Any,
    ContextManager,
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

from espnet_bayeslm.engine.blocks import Blocks
from espnet_bayeslm.engine.pool import Pool
from espnet_bayeslm.evaluation.agreement import warn_of_spelling
from espnet_bayeslm.evaluation.normalization import Normalization
from espnet_bayeslm.loading.components import PRELOAD, Sentences, read_as
from espnet_bayeslm.nbest.formats import normalized
from espnet_bayeslm.nbest.segments import Recording, recordings
from espnet_bayeslm.nbest.types import Hypothesis, NBest
from espnet_bayeslm.pretrained.text_forms import best_first
from espnet_bayeslm.rescoring.decision import ListScores, rescored_list
from espnet_bayeslm.rescoring.options import RescoreOptions, SharedRescoreOptions
from espnet_bayeslm.rescoring.scales import Weighting, load_mixture
from espnet_bayeslm.rescoring.tuning import Refs, Rescoring
from espnet_bayeslm.scoring.cache import uncached
from espnet_bayeslm.scoring.oov_rate import LOOKED_AT, UnknownWords, mending_lines
from espnet_bayeslm.scoring.word_scores import Component, WordScores
from espnet_bayeslm.utils.cli import device_of
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike
from espnet_bayeslm.utils.options import part_of, with_options
from espnet_bayeslm.utils.subset import Subset

T = TypeVar("T")

Block = List[Recording]
# Hypotheses of a block: enough for full batches, few enough for the memory of any list.
BLOCK_SIZE = 2000
# Words before the unknown ones are counted on
ENOUGH = 1000

Found = Tuple[List[T], List[UnknownWords]]
"""Results of a block, and the words that each component does not know."""
InForms = Tuple[Mapping[str, str], List[T]]
"""Forms of the text of pretrained LMs, by name, and a block that they read."""


@with_options(SharedRescoreOptions)
def rescore(
    lists: Iterable[NBest],
    *,
    tune: bool = False,
    refs: Optional[Refs] = None,
    device: Optional[str] = None,
    **options: Any,
) -> Rescoring:
    """An iterator of rescored lists, as `bayeslm rescore` makes them; nothing is written.

    Workers end with the iterator.

    Args:
        lists: N-best lists, as `read_nbest` yields them; some blocks of them are kept in memory,
            with `tune` all.
        tune: Find scales on these lists; never worse on them than the first pass.
        refs: Utterance id -> words, to tune on; None: the lists' own references.
        device: Where the weights of LMs go that are loaded; None: as `ngpu` says.
        **options: Fields of `SharedRescoreOptions`.

    Returns:
        An iterator of `RescoredList`, with the attributes `weighting` and `tuned`.

    Raises:
        InputError: Something does not fit; lists are checked as they come.
    """
    given = SharedRescoreOptions(**options)
    given = given.with_scales(given.given_scales(*["tune=True"] * tune))
    if tune and refs is None:
        lists = list(lists)
        refs = _own_refs(lists)
    refs = refs if tune else None
    normalization = Normalization(given.normalize, kept=given.counting.ignored)
    if normalization:
        lists = normalized(lists, normalization)
        refs = None if refs is None else normalization.text(refs)
    if refs is not None:
        lists = list(lists)
        firsts = Subset()
        for item in lists:
            firsts.add(item.utt, item.hypotheses[0].words)
        warn_of_spelling(refs, firsts.texts, given.counting, given=normalization.steps)
    with contextlib.ExitStack() as stack:
        pool = stack.enter_context(given.pool(preload=PRELOAD, in_program=True))
        if not pool.is_here:
            _check_on_workers(given, device)
        work = ListsOnWorkers(pool, lists, given, tunes=tune, ngpu=given.ngpu, device=device)
        held = stack.pop_all()
    rescoring = Rescoring(_within(held, work.scores()), work.weighting, given, refs=refs)
    # where it is never read to its end
    weakref.finalize(rescoring, held.__exit__, GeneratorExit, None, None)
    return rescoring


def _check_on_workers(options: SharedRescoreOptions, device: Optional[str]) -> None:
    """Raise an InputError where workers cannot have the LMs of this process, or its GPU."""
    lms = [*options.lms, *options.subtract_lms]
    if not all(isinstance(lm, (str, os.PathLike)) for lm in lms):
        raise InputError(
            "workers cannot share an LM that is loaded here",
            remedy="Give the LM's folder or file, or workers=1.",
        )
    on_gpu = options.ngpu or (device or "cpu") != "cpu"
    torch = sys.modules.get("torch")
    if on_gpu and options.engine == "local" and torch and torch.cuda.is_initialized():
        raise InputError(
            "processes of this machine cannot use a GPU that this program uses already",
            remedy="Give workers=1, or rescore before anything else is on the GPU.",
        )


def _within(stack: contextlib.ExitStack, items: Iterable[T]) -> Iterator[T]:
    """Yield items, and leave the contexts of a stack at their end or at an error."""
    with stack:
        yield from items


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


def blocks_of(
    lists: Iterable[NBest], options: RescoreOptions, *, chooses: bool
) -> Tuple[Block, Iterator[Block]]:
    """First block, where LMs see it before they score, and all blocks.

    With `chooses` an LM may choose the form of its text.
    """
    segments = options.segments
    # without segments each list is a recording by itself
    every = blocks(([x] for x in lists) if segments is None else recordings(lists, segments))
    # taken only where it is needed: lists are read as they are asked for
    first: Block = next(every, []) if options.self_normalized or chooses else []
    return first, itertools.chain([first] if first else [], every)


def _best_of(block: Block) -> Sentences:
    """First sentences of a block by which pretrained LMs choose the form of the text."""
    items = itertools.chain.from_iterable(block)
    return best_first([hyp.words for hyp in item.hypotheses] for item in items)


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


class ComponentWorker:
    """LMs and n-grams with their weights, which a worker holds."""

    def __init__(self, components: Sequence[Component], weighting: Weighting):
        self._components, self._weighting = components, weighting

    def weighting(self, sentences: Sentences) -> Weighting:
        """Names, weights, digests and text forms of the components, which sentences may choose."""
        return self._weighting.with_forms(self._components, sentences)

    def mends(self, asked: Tuple[int, Counter[str]]) -> List[str]:
        """Lines that say how unknown words differ from words that a component knows."""
        component, words = asked
        return mending_lines(words, self._components[component].scorer)


class ListWorker(ComponentWorker):
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
        super().__init__(components, weighting)
        self._options = options
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
    def load(
        cls, options: RescoreOptions, ngpu: int, device: Optional[str], first: Block, tunes: bool
    ) -> ListWorker:
        """Worker of the LMs and n-grams that the options name."""
        return cls(*_load(options, device or device_of(ngpu), tunes=tunes), options, first)

    def sent(self, given: InForms) -> Found[Tuple[np.ndarray, Tuple[Any, ...]]]:
        """Scores of a block, ln p (K, W) and uncertainty of the words, without its lists."""
        forms, block = given
        read_as(self._components, forms)
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


class ListsOnWorkers:
    """N-best lists whose words workers score.

    Attributes:
        weighting: How the scores are weighed.
    """

    def __init__(
        self,
        pool: Pool,
        lists: Iterable[NBest],
        options: RescoreOptions,
        *,
        tunes: bool,
        ngpu: int,
        device: Optional[str] = None,
    ):
        if not tunes:
            options.check_untuned()
        plain = part_of(RescoreOptions, options)
        first, todo = blocks_of(lists, plain, chooses=plain.chooses_form())
        seen = _bare(first) if plain.self_normalized else []
        self._work = Blocks(pool, ListWorker.load, plain, ngpu, device, seen, tunes)
        # the first lists are read while the workers load the LMs
        ready = [] if pool.is_here else list(itertools.islice(todo, 1))
        self._todo = itertools.chain(ready, todo)
        # one worker chooses the forms of the text, and all read it in these
        self.weighting: Weighting = self._work.ask("weighting", _best_of(first))
        self.weighting.warn_of_other_forms()
        self._forms = self.weighting.text_forms
        same = dataclasses.replace(plain, cache=None)
        self._identity = f"{same} {self.weighting.digests} {seen} {self._forms}"

    def kept(self, output: PathLike) -> ContextManager[None]:
        """Keep the scores of finished blocks beside the output within a block of code."""
        return self._work.kept(output, self._identity)

    def scores(self, *, total: Optional[int] = None) -> Iterator[ListScores]:
        """Yield the lists with ln p of their words, `total` of them."""
        what: Any = {"desc": "rescoring", "unit": "list", "total": total}
        found = self._work.map(
            "sent", self._todo, sent=lambda block: (self._forms, _bare(block)), **what
        )
        scores = ((_whole(block, rows), unknown) for block, (rows, unknown) in found)
        return checked(scores, self._work)


def _whole(block: Block, rows: Iterable[Tuple[np.ndarray, Any]]) -> Iterator[ListScores]:
    """Yield the lists of a block with their scores."""
    for item, (log_probs, uncertainty) in zip(itertools.chain(*block), rows, strict=True):
        ends = np.cumsum([len(hyp.words) + 1 for hyp in item.hypotheses])
        yield ListScores(item, tuple(np.split(log_probs, ends[:-1], axis=1)), uncertainty)


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
    work = ListsOnWorkers(pool, lists, options, tunes=refs is not None, ngpu=ngpu)
    with work.kept(output):
        yield Rescoring(work.scores(total=total), work.weighting, options, refs=refs)
