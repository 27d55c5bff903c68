"""Scores of N-best lists under LMs and n-grams: blocks that one process or many workers score."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from typing import (
    Any,
    Iterable,
    Iterator,
    List,
    Optional,
    Sequence,
    Tuple,
)

import numpy as np

from espnet_bayeslm.engine.pool import Blocks, Pool
from espnet_bayeslm.loading.components import (
    ComponentWorker,
    scored_blocks,
    with_words_checked,
)
from espnet_bayeslm.nbest.segments import Recording, recordings
from espnet_bayeslm.nbest.types import Hypothesis, NBest
from espnet_bayeslm.pretrained.text_forms import best_first
from espnet_bayeslm.rescoring.decision import ScoredList, choose
from espnet_bayeslm.rescoring.rescore_options import RescoreOptions
from espnet_bayeslm.rescoring.scales import Weighting, load_mixture
from espnet_bayeslm.scoring.cache import uncached
from espnet_bayeslm.scoring.perplexity import UnknownWords
from espnet_bayeslm.scoring.word_scores import WordScores
from espnet_bayeslm.utils.cli import device_of
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike
from espnet_bayeslm.utils.options import part_of

Block = List[Recording]
# Hypotheses of a block: enough for full batches, few enough for the memory of any list.
BLOCK_SIZE = 2000

Rows = Tuple[np.ndarray, Tuple[Any, ...]]
"""Ln p of all words of a list, (K, W), and their uncertainty."""


class ListWorker(ComponentWorker):
    """Scores blocks of lists under several components; blocks do not depend on each other.

    With `context` each LM goes on from the best hypotheses so far of a recording, and n-grams begin
    each utterance anew. The `first` block of all is for LMs that have to see some sentences.
    """

    def __init__(
        self, options: RescoreOptions, ngpu: int, device: Optional[str], first: Block, tunes: bool
    ):
        components, weighting, kept = load_mixture(
            options,
            device or device_of(ngpu),
            scales=options.scales,
            tunes=tunes,
            self_normalized=options.self_normalized,
            max_context=options.max_context,
        )
        decision = options.decision or weighting.scales.decision
        scales = dataclasses.replace(weighting.scales, decision=decision)
        weighting = weighting._replace(scales=scales, confidence=options.confidence)
        super().__init__(components, weighting, kept)
        self._weighting, self._options = weighting, options
        scorers: List[Any] = [c.scorer for c in components]
        # what a cache keeps are scores without context
        self._in_context = options.context != "none"
        self._scorers = [*map(uncached, scorers)] if self._in_context else scorers
        if options.self_normalized:
            items = [item for recording in first for item in recording]
            for scorer in map(uncached, self._scorers):
                if scorer.self_normalized:
                    scorer.prepare([hyp.words for item in items for hyp in item.hypotheses])
        self._uncertain: Any = None
        if options.uncertainty:
            loaded = map(uncached, self._scorers)
            random = (scorer for scorer in loaded if scorer.is_uncertain)
            self._uncertain = next(random, None)
            if self._uncertain is None:
                raise InputError(
                    "--uncertainty, and no LM is uncertain", remedy="Give a Bayesian LM by --lm."
                )

    def score(self, block: Block) -> Tuple[List[Rows], List[UnknownWords]]:
        """Scores of the lists of a block, and the words that each component does not know."""
        rate, counting = self._options.max_oov_rate, self._options.counting
        unknown = [UnknownWords(c.name, rate, counting) for c in self.components]
        if not self._in_context:
            # all at once: each list is a recording by itself
            block = [[item] for recording in block for item in recording]
        scored: List[List[ScoredList]] = [[] for _ in block]
        histories: List[List[Any]] = [[None] * len(block) for _ in self._scorers]
        # one utterance of each recording at a time
        for step in range(max(map(len, block), default=0)):
            active = [r for r, recording in enumerate(block) if step < len(recording)]
            before = [[of_lm[r] for r in active] for of_lm in histories]
            now = self._at_once([block[r][step] for r in active], before, unknown)
            for r, item in zip(active, now, strict=True):
                scored[r].append(item)
            if not self._in_context:
                break
            said = [choose(item, self._weighting).words for item in now]
            for scorer, of_lm, old in zip(self._scorers, histories, before, strict=True):
                for r, history in zip(active, scorer.extended(old, said), strict=True):
                    of_lm[r] = history
        lists = [item for of_recording in scored for item in of_recording]
        uncertainty: List[Tuple[Any, ...]] = [()] * len(lists)
        if self._uncertain is not None:
            sentences = [hyp.words for item in lists for hyp in item.nbest.hypotheses]
            of_words = iter(self._uncertain.uncertainty(sentences))
            uncertainty = [tuple(next(of_words) for _ in item.nbest.hypotheses) for item in lists]
        rows = [np.concatenate(item.log_probs, axis=1) for item in lists]
        return list(zip(rows, uncertainty, strict=True)), unknown

    def _at_once(
        self,
        items: Sequence[NBest],
        histories: Sequence[Sequence[Any]],
        unknown: Sequence[UnknownWords],
    ) -> List[ScoredList]:
        """Lists with their scores: in context, or of each words once."""
        groups = [[hyp.words for hyp in item.hypotheses] for item in items]
        every = [words for group in groups for words in group]
        distinct = list(dict.fromkeys(every))
        scores: List[List[List[WordScores]]] = []
        for scorer, before, count in zip(self._scorers, histories, unknown, strict=True):
            if self._in_context:
                of_groups = scorer.scores_in_context(groups, before)
                count.add(every, [score for group in of_groups for score in group])
            else:
                known = dict(zip(distinct, scorer.word_scores(distinct), strict=True))
                of_groups = [[known[words] for words in group] for group in groups]
                count.add(distinct, [known[words] for words in distinct])
            scores.append(of_groups)
        lists = []
        for item, of_components in zip(items, zip(*scores, strict=True), strict=True):
            pairs = zip(*of_components, strict=True)
            lists.append(
                ScoredList(item, tuple(np.stack([s.log_probs for s in row]) for row in pairs))
            )
        return lists


def blocks(lists: Iterable[NBest], segments: Any = None) -> Iterator[Block]:
    """Yield runs of recordings with at least `BLOCK_SIZE` hypotheses, but the last.

    Without segments each list is a recording by itself. The blocks do not depend on how many
    workers share them, and so no score does.
    """
    block: Block = []
    count = 0
    for recording in ([x] for x in lists) if segments is None else recordings(lists, segments):
        block.append(recording)
        count += sum(len(item.hypotheses) for item in recording)
        if count >= BLOCK_SIZE:
            yield block
            block, count = [], 0
    if block:
        yield block


def sent_part(block: Block) -> Block:
    """Part of a block that workers get: the words and scores of its lists."""
    return [
        [
            NBest(
                item.utt,
                tuple(
                    Hypothesis(hyp.words, hyp.am_score, hyp.lm_score, hyp.graph_score)
                    for hyp in item.hypotheses
                ),
            )
            for item in recording
        ]
        for recording in block
    ]


@contextlib.contextmanager
def scored_lists(
    pool: Optional[Pool],
    lists: Iterable[NBest],
    options: RescoreOptions,
    *,
    tunes: bool,
    ngpu: int,
    device: Optional[str] = None,
    output: Optional[PathLike] = None,
    total: Optional[int] = None,
) -> Iterator[Tuple[Iterator[ScoredList], Weighting]]:
    """An iterator of lists with the scores of their words, and how these are weighed.

    It is to be read within the block. Scores of finished blocks are kept beside the output.
    """
    if not tunes:
        options.check_untuned()
    own = part_of(RescoreOptions, options)
    todo = blocks(lists, own.segments)
    # taken only where an LM sees it before it scores: lists are read as they are asked for
    ready = list(itertools.islice(todo, int(own.self_normalized)))
    seen = sent_part(ready[0]) if ready else []
    workers = Blocks(pool, ListWorker, own, ngpu, device, seen, tunes)
    # the next lists are read while the workers load the LMs
    ready += itertools.islice(todo, int(pool is not None and not ready))

    def first_hypotheses() -> List[Sequence[str]]:
        ready.extend(itertools.islice(todo, int(not ready)))
        lists = (item for block in ready for recording in block for item in recording)
        return best_first([hyp.words for hyp in item.hypotheses] for item in lists)

    with scored_blocks(
        workers,
        itertools.chain(ready, todo),
        sentences=first_hypotheses,
        identity=f"{dataclasses.replace(own, cache=None)} {seen}",
        output=output,
        sent=sent_part,
        desc="rescoring",
        unit="list",
        total=total,
    ) as (facts, scored):
        weighting = facts.of_worker._replace(text_forms=facts.text_forms)
        yield _whole(with_words_checked(scored, workers)), weighting


def _whole(scored: Iterable[Tuple[Block, List[Rows]]]) -> Iterator[ScoredList]:
    """Yield the lists of blocks with their scores."""
    for block, rows in scored:
        items = itertools.chain.from_iterable(block)
        for item, (log_probs, uncertainty) in zip(items, rows, strict=True):
            ends = np.cumsum([len(hyp.words) + 1 for hyp in item.hypotheses])
            yield ScoredList(item, tuple(np.split(log_probs, ends[:-1], axis=1)), uncertainty)
