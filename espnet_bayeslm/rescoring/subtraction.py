"""Subtracted LMs: each one's log-linear weight is at or below zero.

A recogniser has learnt an LM of its training text. Where it recognises another domain, the density
ratio subtracts an LM of that text (McDermott et al. 2019, "A density ratio approach to language
model fusion in end-to-end automatic speech recognition").
"""

from __future__ import annotations

from typing import Sequence, Tuple

import numpy as np

from espnet_bayeslm.loading.weights_file import NamedWeight, check_subtracted, match_weights
from espnet_bayeslm.utils.errors import InputError


def subtracted_weights(
    lms: Sequence[NamedWeight],
    known: Sequence[NamedWeight],
    given: Sequence[float] = (),
    *,
    tuned: bool = False,
) -> Tuple[NamedWeight, ...]:
    """Weight of each subtracted LM: as given, or as tuned before.

    Args:
        lms: The subtracted LMs; their weights are not read.
        known: Weights of a tuning.
        given: Weights in the order of the LMs; none: the tuned ones.
        tuned: True if the weights are yet to be tuned; the LMs are returned as they are.
    """
    if tuned and given:
        raise InputError(
            "--subtract_weight where scales are tuned",
            remedy="Leave it out to tune the weight, or give --lmwt or --scales.",
        )
    if tuned:
        return tuple(lms)
    names = [row.name for row in lms]
    digests = [row.fingerprint for row in lms]
    if given and len(given) != len(names):
        raise InputError(
            f"{len(given)} --subtract_weight for {len(names)} --subtract_lm",
            remedy="Give a weight at or below zero for each --subtract_lm.",
        )
    used = [row for row in known if row.weight]
    if given:
        values = list(given)
    elif not names and used:
        raise InputError(
            f"--scales were tuned with the subtracted LM {used[0].name}, and there is none",
            remedy="Give it by --subtract_lm.",
        )
    elif not names:
        return ()
    elif not known:
        raise InputError(
            f"no weight of the subtracted LM {names[0]}",
            remedy="Tune it (`bayeslm rescore --tune_ref`), and give its --scales or"
            " --subtract_weight.",
        )
    else:
        try:
            values = match_weights(known, names, digests)
        except InputError as error:
            raise InputError(f"--scales, subtracted LMs: {error}") from None
    found = tuple(map(NamedWeight, names, values, digests))
    check_subtracted(found)
    return found


def subtracted_sum(log_probs: np.ndarray, weights: Sequence[NamedWeight]) -> np.ndarray:
    """Sum of the weighted ln p of subtracted LMs, (n,), of (S, n); those of weight 0 are left out.

    Args:
        log_probs: ln p under each subtracted LM, (S, n).
        weights: Their weights.
    """
    used = [(row.weight, values) for row, values in zip(weights, log_probs, strict=True)]
    return np.sum([w * values for w, values in used if w], axis=0, initial=0.0)
