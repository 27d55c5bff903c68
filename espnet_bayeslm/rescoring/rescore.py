"""Rescoring of N-best lists in three steps: score their words, tune scales, choose the best.

`scored_lists` (`list_worker`) scores the words of lists by LMs and n-grams, `tune` (`tuning`) finds
the weights of the scores, and `choose` (`decision`) takes the best hypothesis of each list.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
import weakref
from collections.abc import Iterator
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple, TypeVar

import numpy as np

from espnet_bayeslm.engine.pool import Pool
from espnet_bayeslm.evaluation.normalization import Normalization
from espnet_bayeslm.evaluation.text_checks import Subset, warn_of_spelling
from espnet_bayeslm.loading.component_options import PRELOAD
from espnet_bayeslm.mixture.facts import MixtureFacts
from espnet_bayeslm.nbest.fields import SCORES
from espnet_bayeslm.nbest.formats import normalized
from espnet_bayeslm.nbest.types import NBest, whole_units
from espnet_bayeslm.rescoring.bias import bias_lists
from espnet_bayeslm.rescoring.decision import RescoredList, ScoredList, choose
from espnet_bayeslm.rescoring.list_worker import Histories, scored_lists
from espnet_bayeslm.rescoring.rescore_options import RescoreOptions, SharedRescoreOptions
from espnet_bayeslm.rescoring.scales import Scales
from espnet_bayeslm.rescoring.tuning import (
    AS_USUAL,
    Fold,
    Refs,
    Tuned,
    fold_lists,
    hypothesis_errors,
    tune,
)
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike
from espnet_bayeslm.utils.log import LOG
from espnet_bayeslm.utils.options import with_options

T = TypeVar("T")
Options = TypeVar("Options", bound=RescoreOptions)


@dataclasses.dataclass(eq=False)
class Rescoring(Iterator):
    """An iterator of rescored lists.

    Attributes:
        lists: The lists.
        mixture: Names, weights, digests and text forms of the LMs and n-grams.
        scales: Weights of the scores, as tuned.
        tuned: Result of the tuning, where there was one.
    """

    lists: Iterator[RescoredList]
    mixture: MixtureFacts
    scales: Scales
    tuned: Optional[Tuned] = None

    def __next__(self) -> RescoredList:
        return next(self.lists)


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
        An iterator of `RescoredList`, with the attributes `mixture`, `scales` and `tuned`.

    Raises:
        InputError: Something does not fit; lists are checked as they come.
    """
    given = SharedRescoreOptions(**options)
    if given.adapted is not None:
        from espnet_bayeslm.rescoring.adapted_folder import with_adapted

        given = with_adapted(given)
    scales = given.given_scales(*["tune=True"] * tune)
    given = dataclasses.replace(given, scales=scales, lmwt=None, word_penalty=None)
    if tune and refs is None:
        lists = list(lists)
        refs = _own_refs(lists)
    refs = refs if tune else None
    normalization = Normalization(given.normalize, kept=given.counting.ignored)
    if given.bias is not None:
        lists = list(lists)
        bias = bias_lists(given.bias, normalization, [item.utt for item in lists])
        given = dataclasses.replace(given, bias=bias)
    if normalization.steps:
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
        if pool is not None:
            _check_on_workers(given, device)
        where: Any = dict(ngpu=given.ngpu, device=device)
        rescoring = stack.enter_context(rescored(pool, lists, given, refs=refs, **where))
        held = stack.pop_all()
    rescoring.lists = _within(held, rescoring.lists)
    # where it is never read to its end
    weakref.finalize(rescoring, held.__exit__, GeneratorExit, None, None)
    return rescoring


@contextlib.contextmanager
def rescored(
    pool: Optional[Pool],
    lists: Iterable[NBest],
    options: RescoreOptions,
    *,
    refs: Optional[Refs],
    **where: Any,
) -> Iterator[Rescoring]:
    """Lists that are scored, tuned on references where there are some, and chosen from.

    The lists are to be read within the block.
    """
    histories = None
    if refs is not None and options.context != "none":
        options, histories = with_tuned_histories(pool, lists, options, refs=refs, **where)
    where.update(tunes=refs is not None, histories=histories)
    with scored_lists(pool, lists, options, **where) as (scored, mixture):
        yield tune_and_choose(scored, mixture, options, refs=refs)


def with_tuned_histories(
    pool: Optional[Pool],
    lists: Iterable[NBest],
    options: Options,
    *,
    refs: Refs,
    output: Optional[PathLike] = None,
    **where: Any,
) -> Tuple[Options, Optional[Histories]]:
    """Options whose scales, tuned in a first pass over the lists, choose the histories of a second.

    The first pass reads each list by itself, whose scores a cache may have. With folds it chooses
    the histories itself, which are returned too, each by weights that were tuned on other
    recordings. Its finished blocks are kept beside `output` under a name of their own.
    """
    LOG.info(
        "--context: the lists are scored twice; weights that were tuned without context choose the"
        " histories"
    )
    kept = None if output is None else f"{os.fspath(output)}.untuned"
    apart = dataclasses.replace(options, context="none")
    with scored_lists(pool, lists, apart, tunes=True, output=kept, **where) as (scored, mixture):
        first = tune_and_choose(scored, mixture, apart, refs=refs)
        scales, histories = first.scales, None
        if options.folds is not None:
            histories = {item.nbest.utt: item.words for item in first.lists}
    LOG.info("--context: after the first time the scales are %s", scales)
    # what was asked for may have been refused by the tuning
    confidence = options.confidence or options.decision == "mbr"
    own: Any = dict(scales=scales, decision=scales.decision, confidence=confidence)
    return dataclasses.replace(options, **own), histories


def tune_and_choose(
    scored: Iterable[ScoredList],
    mixture: MixtureFacts,
    options: RescoreOptions = AS_USUAL,
    *,
    refs: Optional[Refs] = None,
) -> Rescoring:
    """An iterator of rescored lists, from an iterator of scored ones.

    With references scales are tuned on the lists first, which then are all kept in memory.
    """
    given = options.scales_for(mixture)
    # where mbr is wanted, also if max decides in the end
    how: Any = dict(confidence=options.confidence or given.decision == "mbr")
    if refs is None:
        given.warn_untuned(mixture, **how)
        return Rescoring((choose(item, mixture, given, **how) for item in scored), mixture, given)
    lists = list(scored)
    groups = whole_units([item.nbest for item in lists], options.place_of).of
    if all(item.nbest.scores(name) is None for item in lists for name in SCORES):
        LOG.info("the lists have no scores: the rank stands in for them")
    tuned = tune(lists, refs, mixture, options, groups=groups)
    scales = tuned.scales
    if tuned.unused:
        LOG.warning(tuned.unused)
    if options.folds is None:
        chosen = (choose(item, mixture, scales, **how) for item in lists)
        return Rescoring(chosen, mixture, scales, tuned)
    folds, rescored = rescored_in_folds(lists, refs, mixture, options, groups, **how)
    return Rescoring(iter(rescored), mixture, scales, tuned._replace(folds=folds))


def rescored_in_folds(
    lists: Sequence[ScoredList],
    refs: Refs,
    mixture: MixtureFacts,
    options: RescoreOptions,
    groups: Mapping[str, str],
    **how: Any,
) -> Tuple[Tuple[Fold, ...], List[RescoredList]]:
    """Errors of the folds, and the lists, each rescored with scales tuned on the other folds."""
    nbests = [item.nbest for item in lists]
    errors = hypothesis_errors(nbests, refs, options.counting)
    rescored: Dict[int, RescoredList] = {}
    folds = []
    for places in map(np.ndarray.tolist, fold_lists(nbests, options.folds or 0, groups)):
        rest = [lists[k] for k in np.setdiff1d(np.arange(len(lists)), places)]
        refs_of_rest = {item.nbest.utt: refs[item.nbest.utt] for item in rest}
        tuned = tune(rest, refs_of_rest, mixture, options, groups=groups)
        rescored.update((k, choose(lists[k], mixture, tuned.scales, **how)) for k in places)
        pairs = [(errors[k], rescored[k]) for k in places]
        own = [counts[r.control] for counts, r in pairs if r.control is not None]
        folds.append(
            Fold(
                tuned.scales,
                len(places),
                sum(int(counts[0]) for counts, _ in pairs),
                sum(int(counts[r.best]) for counts, r in pairs),
                int(sum(own)) if len(own) == len(places) else None,
            )
        )
    return tuple(folds), [rescored[k] for k in range(len(lists))]


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
