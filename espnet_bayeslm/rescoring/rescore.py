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
from typing import (
    Any,
    Collection,
    Dict,
    Iterable,
    List,
    Mapping,
    Optional,
    Sequence,
    Tuple,
    TypeVar,
    Union,
)

import numpy as np

from espnet_bayeslm.engine.pool import Pool
from espnet_bayeslm.engine.work import EngineOptions
from espnet_bayeslm.evaluation.bias_lists import BiasLists, warn_of_text
from espnet_bayeslm.evaluation.normalization import Normalization
from espnet_bayeslm.evaluation.text_checks import Subset, warn_of_spelling
from espnet_bayeslm.loading.component_options import PRELOAD, SubtractOptions
from espnet_bayeslm.mixture.facts import MixtureFacts
from espnet_bayeslm.nbest.fields import SCORES
from espnet_bayeslm.nbest.formats import normalized
from espnet_bayeslm.nbest.types import NBest, whole_units
from espnet_bayeslm.rescoring.bias import bias_lists
from espnet_bayeslm.rescoring.decision import RescoredList, ScoredList, choose
from espnet_bayeslm.rescoring.list_worker import Histories, scored_lists
from espnet_bayeslm.rescoring.near_odds import NearWords
from espnet_bayeslm.rescoring.near_words import OddsTuning, with_near_words
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


@dataclasses.dataclass(eq=False)
class RescoredLists(Iterator[RescoredList]):
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


class Rescoring:
    """One rescoring, behind `bayeslm rescore` and `espnet_bayeslm.rescore`.

    `prepare` finds whatever can be wrong before the long work. Within `run` lists are scored, then
    scales tuned where there are references, then the best hypotheses chosen.

    Args:
        job: The options; those that `adapted` brings are added.
        *tunes: Names of arguments that ask for a tuning, for messages.

    Attributes:
        options: What scores and choices depend on.
        normalization: Normalisation of hypotheses, references and bias lists.
        scales: Scales that are given; None: they are tuned, or the defaults.
    """

    def __init__(self, job: SharedRescoreOptions, *tunes: str):
        options = job.rescoring
        if job.adapted is not None:
            from espnet_bayeslm.rescoring.adapted_folder import with_adapted

            options = with_adapted(options, job.adapted, *tunes)
        self.options = options
        self.scales = options.given_scales(*tunes)
        self.normalization = Normalization(options.normalize, kept=options.errors.counting.ignored)

    def prepare(
        self,
        lists: Iterable[NBest],
        refs: Optional[Refs],
        *,
        utts: Collection[str],
        firsts: Mapping[str, Sequence[str]],
        known: Optional[Refs] = None,
    ) -> None:
        """Take lists and references, which are normalised already.

        Args:
            lists: The lists.
            refs: References to tune on; None: nothing is tuned.
            utts: Utterances of the lists, as far as they are known: they have bias lists.
            firsts: First hypotheses of some lists, which show the spelling.
            known: References to count errors with; None: those to tune on.
        """
        options, self.lists, self.refs = self.options, lists, refs
        counting = options.errors.counting
        if refs is None:
            options.check_untuned()
        elif options.bias_weight is not None:
            remedy = "Leave it out to tune the weight, or give --lmwt or --scales."
            raise InputError("--bias_weight where scales are tuned", remedy=remedy)
        spelled = refs if known is None else known
        warn_of_spelling(spelled or {}, firsts, counting, given=self.normalization.steps)
        # the lists come normalised, and there is one source of scales
        own: Any = dict(scales=self.scales, lmwt=None, word_penalty=None, normalize="")
        if options.bias is not None:
            bias = own["bias"] = bias_lists(options.bias, self.normalization, utts)
            warn_of_text(bias, (spelled or firsts).values())
            own["near_words"] = self._with_near_words(bias)
        ignored = tuple(sorted(counting.ignored))
        own["errors"] = dataclasses.replace(options.errors, ignore_words=ignored)
        self.options = dataclasses.replace(options, **own)

    def _with_near_words(self, bias: BiasLists) -> Union[bool, NearWords]:
        """Odds of near words, whose hypotheses the lists have; False: nothing tells the odds."""
        lists, refs = self.lists, self.refs
        known = None if self.scales is None else self.scales.near_words
        if not self.options.near_words:
            return False
        if refs is None:
            if known is not None:
                self.lists = (with_near_words(x, bias.of(x.utt), known) for x in lists)
            return known or False
        lists = list(lists)
        odds = OddsTuning(lists, refs, bias, self.options.errors.counting).odds()
        said = [bias.of(x.utt).said(refs[x.utt]) for x in lists]
        how: Any = dict(odds=odds, is_counted=True)
        pairs = zip(lists, said, strict=True)
        self.lists = [with_near_words(x, bias.of(x.utt), saids=((), s), **how) for x, s in pairs]
        return odds

    @contextlib.contextmanager
    def run(self, pool: Optional[Pool], **where: Any) -> Iterator[RescoredLists]:
        """Lists with their new best hypotheses, to be read within the block."""
        lists, options, refs, histories = self.lists, self.options, self.refs, None
        if refs is not None and options.recordings.context != "none":
            options, histories = with_tuned_histories(pool, lists, options, refs=refs, **where)
        where.update(tunes=refs is not None, histories=histories)
        with scored_lists(pool, lists, options, **where) as (scored, mixture):
            yield tune_and_choose(scored, mixture, options, refs=refs)


@with_options(SharedRescoreOptions)
def rescore(
    lists: Iterable[NBest],
    *,
    tune: bool = False,
    refs: Optional[Refs] = None,
    device: Optional[str] = None,
    **options: Any,
) -> RescoredLists:
    """An iterator of rescored lists, as `bayeslm rescore` makes them; nothing is written.

    Workers end with the iterator.

    Args:
        lists: N-best lists, as `read_nbest` yields them; some blocks of them are kept in memory,
            with `tune` or `bias` all.
        tune: Find scales on these lists; never worse on them than the first pass.
        refs: Utterance id -> words, to tune on; None: the lists' own references.
        device: Where the weights of LMs go that are loaded; None: as `ngpu` says.
        **options: Fields of `SharedRescoreOptions`.

    Returns:
        An iterator of `RescoredList`, with the attributes `mixture`, `scales` and `tuned`.

    Raises:
        InputError: Something does not fit; lists are checked as they come.
    """
    given = SharedRescoreOptions.of(**options)
    job = Rescoring(given, *["tune=True"] * tune)
    normalization, has_bias = job.normalization, job.options.bias is not None
    if tune or has_bias:
        lists = list(lists)
        refs = _own_refs(lists) if tune and refs is None else refs
    utts = [item.utt for item in lists] if isinstance(lists, list) else ()
    refs = normalization.text(refs) if tune and refs is not None else None
    lists = normalized(lists, normalization) if normalization.steps else lists
    firsts = Subset()
    if refs is not None or has_bias:
        lists = list(lists)
        for item in lists:
            firsts.add(item.utt, item.hypotheses[0].words)
    job.prepare(lists, refs, utts=utts, firsts=firsts.texts)
    with contextlib.ExitStack() as stack:
        pool = stack.enter_context(given.work.pool(preload=PRELOAD, in_program=True))
        if pool is not None:
            on_gpu = bool(given.ngpu) or (device or "cpu") != "cpu"
            _check_on_workers(job.options.mixture, given.work, on_gpu=on_gpu)
        where: Any = dict(ngpu=given.ngpu, device=device)
        found = stack.enter_context(job.run(pool, **where))
        held = stack.pop_all()
    found.lists = _within(held, found.lists)
    # where it is never read to its end
    weakref.finalize(found, held.__exit__, GeneratorExit, None, None)
    return found


def with_tuned_histories(
    pool: Optional[Pool],
    lists: Iterable[NBest],
    options: RescoreOptions,
    *,
    refs: Refs,
    output: Optional[PathLike] = None,
    **where: Any,
) -> Tuple[RescoreOptions, Optional[Histories]]:
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
    by_itself = dataclasses.replace(options.recordings, context="none")
    apart = dataclasses.replace(options, recordings=by_itself)
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
) -> RescoredLists:
    """An iterator of rescored lists, from an iterator of scored ones.

    With references scales are tuned on the lists first, which then are all kept in memory.
    """
    given = options.scales_for(mixture)
    # where mbr is wanted, also if max decides in the end
    how: Any = dict(confidence=options.confidence or given.decision == "mbr")
    if refs is None:
        given.warn_untuned(mixture, **how)
        if options.scales is None and options.bias is not None and not mixture.components:
            scored = map(_with_one_score, scored)
        chosen = (choose(item, mixture, given, **how) for item in scored)
        return RescoredLists(chosen, mixture, given)
    lists = list(scored)
    groups = whole_units([item.nbest for item in lists], options.recordings.place_of).of
    if all(item.nbest.scores(name) is None for item in lists for name in SCORES):
        LOG.info("the lists have no scores: the rank stands in for them")
    tuned = tune(lists, refs, mixture, options, groups=groups)
    scales = tuned.scales
    if tuned.unused:
        LOG.warning(tuned.unused)
    if options.folds is None:
        chosen = (choose(item, mixture, scales, **how) for item in lists)
        return RescoredLists(chosen, mixture, scales, tuned)
    folds, rescored = rescored_in_folds(lists, refs, mixture, options, groups, **how)
    return RescoredLists(iter(rescored), mixture, scales, tuned._replace(folds=folds))


def _with_one_score(item: ScoredList) -> ScoredList:
    """List that is rescored without an LM and without weights; of two scores none is known."""
    names = [name for name in SCORES if item.nbest.scores(name) is not None]
    if len(names) > 1:
        raise InputError(
            f"the list of {item.nbest.utt!r} has {' and '.join(names)}, whose weights are not"
            " known",
            remedy="Tune them (--tune_ref), or give --lmwt or --scales.",
        )
    return item


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
    errors = hypothesis_errors(nbests, refs, options.errors.counting)
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


def _check_on_workers(mixture: SubtractOptions, work: EngineOptions, *, on_gpu: bool) -> None:
    """Raise an InputError where workers cannot have the LMs of this process, or its GPU."""
    lms = [*mixture.lms, *mixture.subtract_lms]
    if not all(isinstance(lm, (str, os.PathLike)) for lm in lms):
        raise InputError(
            "workers cannot share an LM that is loaded here",
            remedy="Give the LM's folder or file, or workers=1.",
        )
    torch = sys.modules.get("torch")
    if on_gpu and work.engine == "local" and torch and torch.cuda.is_initialized():
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
