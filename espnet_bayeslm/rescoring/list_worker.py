"""Rescoring of N-best lists, in this process or by workers: blocks of lists out, scores back."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from espnet_bayeslm.evaluation.counting import UnknownWords
from espnet_bayeslm.evaluation.normalization import Normalization
from espnet_bayeslm.evaluation.word_scores import Component
from espnet_bayeslm.loading.weights_file import NamedWeight
from espnet_bayeslm.nbest.normalized_lists import normalized
from espnet_bayeslm.nbest.types import Hypothesis, NBest
from espnet_bayeslm.rescoring.decision import ListScores, Weighting
from espnet_bayeslm.rescoring.list_blocks import (
    Block,
    BlockScorer,
    BlockScores,
    blocks_of_job,
    checked_lists,
    score_lists,
)
from espnet_bayeslm.rescoring.options import RescoreOptions
from espnet_bayeslm.rescoring.pipeline import Rescoring, own_refs
from espnet_bayeslm.rescoring.subtraction import subtracted_weights
from espnet_bayeslm.utils.blocks import Blocks
from espnet_bayeslm.utils.cli import device_of
from espnet_bayeslm.utils.engine import Pool
from espnet_bayeslm.utils.files import PathLike
from espnet_bayeslm.utils.options import part_of, with_options

Refs = Mapping[str, Sequence[str]]

Score = Optional[float]
PackedList = Tuple[str, str, List[Tuple[Score, Score, Score]]]
"""Utterance, hypotheses as lines, and their scores."""

PackedBlock = List[List[PackedList]]
PackedScores = Tuple[np.ndarray, Tuple[Any, ...], np.ndarray]
"""ln p of the words of all hypotheses, (K, W); uncertainty; unknown words, (N, K)."""


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
        refs = own_refs(lists)
    refs = refs if tune else None
    normalization = Normalization(given.normalize, kept=given.counting.ignored)
    if normalization:
        lists = normalized(lists, normalization)
        refs = None if refs is None else normalization.text(refs)
    check_tuning(given, tunes=tune, shares=given.num_jobs > 1)
    components, weighting = load_mixture(given, device, tunes=tune)
    scores = score_lists(lists, components, weighting, given)
    return Rescoring(scores, weighting, given, refs=refs)


def check_tuning(options: RescoreOptions, *, tunes: bool, shares: bool) -> None:
    """Check that scales, and the form of the text, can be found as the options say."""
    if not tunes:
        options.check_untuned()
    if shares:
        options.check_form()


def load_mixture(
    options: RescoreOptions, device: str, *, tunes: bool
) -> Tuple[List[Component], Weighting]:
    """LMs and n-grams from their files, subtracted ones last, and how their scores are weighed."""
    more = {"self_normalized": options.self_normalized, "max_context": options.max_context}
    components = options.components(device, **more)
    subtracted = options.subtracted([c.name for c in components], device, **more)
    weighting = Weighting.of(
        components,
        options.weights,
        options.scales,
        combine=options.combine,
        decision=options.decision,
        confidence=options.confidence,
    )
    lms = [NamedWeight(c.name, 0.0, c.fingerprint) for c in subtracted]
    known, given = weighting.scales.subtracted, options.subtract_weights
    if options.num_jobs > 1 and not known:
        known = tuple(lms)  # the weights may be tuned where the jobs are merged
    weights = subtracted_weights(lms, known, given, tuned=tunes)
    scales = dataclasses.replace(weighting.scales, subtracted=weights)
    return [*components, *subtracted], weighting._replace(scales=scales)


class ListWorker:
    """LMs and n-grams of a rescoring, loaded by a worker, which scores blocks of lists.

    Args:
        options: The options.
        ngpu: Number of GPUs of a worker.
        first: The first block of all, packed, for LMs that have to see some sentences.
        tunes: True if scales are tuned with the scores.
    """

    def __init__(self, options: RescoreOptions, ngpu: int, first: PackedBlock, tunes: bool):
        components, self._weighting = load_mixture(options, device_of(ngpu), tunes=tunes)
        self._scorer = BlockScorer(components, self._weighting, options, unpacked(first))

    def weighting(self, _: None) -> Weighting:
        """Names, weights and digests of the components."""
        return self._weighting

    def score(self, block: PackedBlock) -> Tuple[List[PackedScores], List[UnknownWords]]:
        """Scores of a packed block, and the unknown words."""
        lists, unknown = self._scorer.score(unpacked(block))
        return [packed_scores(item) for item in lists], unknown


def packed(block: Block) -> PackedBlock:
    """Words and scores of a block as few plain values, which are pickled several times faster."""

    def packed_list(item: NBest) -> PackedList:
        hyps = item.hypotheses
        words = "\n".join(" ".join(hyp.words) for hyp in hyps)
        return item.utt, words, [(hyp.am_score, hyp.lm_score, hyp.graph_score) for hyp in hyps]

    return [[packed_list(item) for item in recording] for recording in block]


def unpacked(block: PackedBlock) -> Block:
    """A block without what its lists hold besides words and scores."""

    def whole_list(item: PackedList) -> NBest:
        utt, lines, scores = item
        words = (tuple(line.split(" ")) if line else () for line in lines.split("\n"))
        pairs = zip(words, scores, strict=True)
        return NBest(utt, tuple(Hypothesis(of_hyp, *rest) for of_hyp, rest in pairs))

    return [[whole_list(item) for item in recording] for recording in block]


def packed_scores(item: ListScores) -> PackedScores:
    """Scores of a list, of all hypotheses in one array."""
    return np.concatenate(item.log_probs, axis=1), item.uncertainty, np.stack(item.unknown)


def unpacked_scores(item: NBest, scores: PackedScores) -> ListScores:
    """A list with its scores."""
    log_probs, uncertainty, unknown = scores
    ends = np.cumsum([len(hyp.words) + 1 for hyp in item.hypotheses])
    of_hyps = tuple(np.split(log_probs, ends[:-1], axis=1))
    return ListScores(item, of_hyps, uncertainty, tuple(unknown))


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
    shares = pool.workers > 1 or options.num_jobs > 1
    check_tuning(options, tunes=refs is not None, shares=shares)
    plain = part_of(RescoreOptions, options)
    first, todo = blocks_of_job(lists, plain)
    seen = packed(first)
    work = Blocks(pool, ListWorker, plain, ngpu, seen, refs is not None)
    weighting: Weighting = work.ask("weighting")
    same = dataclasses.replace(plain, job=1, num_jobs=1, cache=None)
    with work.kept(output, f"{same} {weighting.fingerprints} {seen}"):
        total = -(-total // options.num_jobs)
        found = work.map("score", todo, desc="rescoring", unit="list", total=total, sent=packed)
        yield Rescoring(checked_lists(map(_joined, found)), weighting, options, refs=refs)


def _joined(found: Tuple[Block, Tuple[List[PackedScores], List[UnknownWords]]]) -> BlockScores:
    """Scores of a block with their lists."""
    block, (rows, unknown) = found
    items = (item for recording in block for item in recording)
    return BlockScores(list(map(unpacked_scores, items, rows)), unknown)
