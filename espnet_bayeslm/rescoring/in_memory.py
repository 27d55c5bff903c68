"""Rescoring in memory: N-best lists in, rescored lists out, by LMs and n-grams from their files."""

from __future__ import annotations

from typing import Any, Iterable, List, Mapping, Optional, Sequence, Tuple

from espnet_bayeslm.evaluation.normalization import Normalization
from espnet_bayeslm.evaluation.word_scores import Component
from espnet_bayeslm.loading.weights_file import NamedWeight
from espnet_bayeslm.nbest.normalized_lists import normalized
from espnet_bayeslm.nbest.types import NBest
from espnet_bayeslm.rescoring.decision import Weighting
from espnet_bayeslm.rescoring.list_blocks import score_lists
from espnet_bayeslm.rescoring.options import RescoreOptions
from espnet_bayeslm.rescoring.pipeline import Rescoring, own_refs
from espnet_bayeslm.rescoring.subtraction import subtracted_weights
from espnet_bayeslm.utils.options import with_options

Refs = Mapping[str, Sequence[str]]


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
    if tune and refs is None:
        lists = list(lists)
        refs = own_refs(lists)
    return rescore_lists(
        lists, RescoreOptions(**options), refs=refs if tune else None, device=device
    )


def rescore_lists(
    lists: Iterable[NBest], options: RescoreOptions, *, refs: Optional[Refs], device: str
) -> Rescoring:
    """An iterator of rescored lists.

    Args:
        lists: The lists; a block of them is kept in memory, with `refs` all.
        options: The options.
        refs: Utterance id -> words: tune the scales on them.
        device: Where the weights of LMs go that are loaded.
    """
    normalization = Normalization(options.normalize, kept=options.counting.ignored)
    if normalization:
        lists = normalized(lists, normalization)
        refs = None if refs is None else normalization.text(refs)
    check_tuning(options, tunes=refs is not None, shares=options.num_jobs > 1)
    components, weighting = load_mixture(options, device, tunes=refs is not None)
    scores = score_lists(lists, components, weighting, options)
    return Rescoring(scores, weighting, options, refs=refs)


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
    return [*components, *subtracted], weighting.subtracting(weights)
