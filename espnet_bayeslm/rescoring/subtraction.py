"""LMs and n-grams of a rescoring from their files; the weights of LMs that are subtracted.

A recogniser has learnt an LM of its training text. Where it recognises another domain, the density
ratio subtracts an LM of that text (McDermott et al. 2019, "A density ratio approach to language
model fusion in end-to-end automatic speech recognition").
"""

from __future__ import annotations

import dataclasses
from typing import Any, List, Sequence, Tuple, Union

from espnet_bayeslm.evaluation.word_scores import Component
from espnet_bayeslm.loading.components import SubtractOptions
from espnet_bayeslm.loading.weights_file import NamedWeight, check_subtracted, match_weights
from espnet_bayeslm.rescoring.decision import Scales, Weighting
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike


def load_mixture(
    options: SubtractOptions,
    device: str,
    *,
    scales: Union[PathLike, Scales, None] = None,
    tunes: bool = False,
    tunes_later: bool = False,
    **reading: Any,
) -> Tuple[List[Component], Weighting]:
    """LMs and n-grams from their files, subtracted ones last, and how their scores are weighed.

    Args:
        options: The files, and the weights that are given.
        device: Where the weights of LMs go.
        scales: The scales, or a file of them; None: the defaults.
        tunes: True if the weights of subtracted LMs are yet to be tuned.
        tunes_later: True if they may be tuned where jobs are merged.
        **reading: How LMs read, as `ComponentOptions.load` takes it.
    """
    components = options.components(device, **reading)
    subtracted = options.subtracted([c.name for c in components], device, **reading)
    weighting = Weighting.of(components, options.weights, scales)
    weights = subtracted_weights(
        [NamedWeight(c.name, 0.0, c.fingerprint) for c in subtracted],
        weighting.scales.subtracted,
        options.subtract_weights,
        tunes=tunes,
        tunes_later=tunes_later,
    )
    found = dataclasses.replace(weighting.scales, subtracted=weights)
    return [*components, *subtracted], weighting._replace(scales=found)


def subtracted_weights(
    lms: Sequence[NamedWeight],
    known: Sequence[NamedWeight],
    given: Sequence[float],
    *,
    tunes: bool = False,
    tunes_later: bool = False,
) -> Tuple[NamedWeight, ...]:
    """Weight of each subtracted LM: as given, or as tuned before.

    Args:
        lms: The subtracted LMs; their weights are not read.
        known: Weights of a tuning.
        given: Weights in the order of the LMs; none: the tuned ones.
        tunes: True if the weights are yet to be tuned; the LMs are returned as they are.
        tunes_later: True if the LMs are returned as they are where no weights are known.
    """
    used = [row.name for row in known if row.weight]
    problem = remedy = ""
    if tunes and given:
        problem = "--subtract_weight where scales are tuned"
        remedy = "Leave it out to tune the weight, or give --lmwt or --scales."
    elif given and len(given) != len(lms):
        problem = f"{len(given)} --subtract_weight for {len(lms)} --subtract_lm"
        remedy = "Give a weight at or below zero for each --subtract_lm."
    elif used and not lms and not tunes:
        problem = f"--scales were tuned with the subtracted LM {used[0]}, and there is none"
        remedy = "Give it by --subtract_lm."
    elif lms and not (given or known or tunes or tunes_later):
        problem = f"no weight of the subtracted LM {lms[0].name}"
        remedy = "Tune it (`bayeslm rescore --tune_ref`), and give its --scales or"
        remedy += " --subtract_weight."
    if problem:
        raise InputError(problem, remedy=remedy)
    if not lms or not (given or known) or tunes:
        return tuple(lms)
    names, digests = [row.name for row in lms], [row.fingerprint for row in lms]
    try:
        values = given or match_weights(known, names, digests)
    except InputError as error:
        raise InputError(f"--scales, subtracted LMs: {error}") from None
    found = tuple(map(NamedWeight, names, values, digests))
    check_subtracted(found)
    return found
