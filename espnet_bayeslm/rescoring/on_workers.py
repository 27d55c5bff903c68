"""Rescoring by workers: blocks of lists out, their scores back, rescored lists in their order."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple

from espnet_bayeslm.evaluation.counting import UnknownWords
from espnet_bayeslm.nbest.types import NBest
from espnet_bayeslm.rescoring.decision import ListScores, Weighting
from espnet_bayeslm.rescoring.in_memory import check_tuning, load_mixture
from espnet_bayeslm.rescoring.list_blocks import (
    Block,
    BlockScorer,
    blocks_of_job,
    checked_lists,
)
from espnet_bayeslm.rescoring.list_scores import BlockScores
from espnet_bayeslm.rescoring.options import RescoreOptions
from espnet_bayeslm.rescoring.pipeline import Rescoring
from espnet_bayeslm.utils.blocks import Blocks
from espnet_bayeslm.utils.cli import device_of
from espnet_bayeslm.utils.engine import Pool
from espnet_bayeslm.utils.files import PathLike
from espnet_bayeslm.utils.options import part_of


class RescoreWorker:
    """LMs and n-grams of a rescoring, loaded by a worker, which scores blocks of lists."""

    def __init__(self, options: RescoreOptions, ngpu: int, first: Block, tunes: bool):
        components, self._weighting = load_mixture(options, device_of(ngpu), tunes=tunes)
        self._scorer = BlockScorer(components, self._weighting, options, first)

    def weighting(self, _: None) -> Weighting:
        """Names, weights and digests of the components."""
        return self._weighting

    def score(self, block: Block) -> Tuple[List[Any], List[UnknownWords]]:
        """Scores of a block: fields of `ListScores` without the lists, and the unknown words."""
        lists, unknown = self._scorer.score(block)
        return [item[1:] for item in lists], unknown


def light(block: Block) -> Block:
    """A block with nothing but words and scores."""
    return [[light_list(item) for item in recording] for recording in block]


def light_list(item: NBest) -> NBest:
    """A list with nothing but words and scores."""
    hyps = item.hypotheses
    if any(hyp.extra for hyp in hyps):
        hyps = tuple(dataclasses.replace(hyp, extra={}) for hyp in hyps)
    return NBest(item.utt, hyps)


@contextlib.contextmanager
def rescored_on(
    pool: Pool,
    lists: Iterable[NBest],
    options: RescoreOptions,
    *,
    refs: Optional[Mapping[str, Sequence[str]]],
    ngpu: int,
    output: PathLike,
    total: int,
) -> Iterator[Rescoring]:
    """An iterator of rescored lists, as `rescore_lists` makes it; to be read within the block."""
    shares = pool.workers > 1 or options.num_jobs > 1
    check_tuning(options, tunes=refs is not None, shares=shares)
    plain = part_of(RescoreOptions, options)
    first, todo = blocks_of_job(lists, plain)
    seen = light(first)
    work = Blocks(pool, RescoreWorker, plain, ngpu, seen, refs is not None)
    weighting: Weighting = work.ask("weighting")
    same = dataclasses.replace(plain, job=1, num_jobs=1, cache=None)
    with work.kept(output, f"{same} {weighting.fingerprints} {seen}"):
        total = -(-total // options.num_jobs)
        found = work.map("score", todo, desc="rescoring", unit="list", total=total, sent=light)
        yield Rescoring(checked_lists(map(_joined, found)), weighting, options, refs=refs)


def _joined(found: Tuple[Block, Tuple[List[Any], List[UnknownWords]]]) -> BlockScores:
    """Scores of a block with their lists."""
    block, (rows, unknown) = found
    items = [item for recording in block for item in recording]
    pairs = zip(items, rows, strict=True)
    return BlockScores([ListScores(item, *row) for item, row in pairs], unknown)
