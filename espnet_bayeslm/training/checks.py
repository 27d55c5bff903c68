"""Checks of a model's options, of its standard deviations and of its training loss."""

from __future__ import annotations

import math
from typing import Dict, List, Optional, Sequence, Tuple

import torch

from espnet_bayeslm.bayes.objective import REGULARIZERS
from espnet_bayeslm.lm import UncertainLM
from espnet_bayeslm.utils.errors import InputError


def check_known(valid: Sequence[str], **options: Optional[str]) -> None:
    """Raise an InputError where an option has none of the values that are valid."""
    for name, value in options.items():
        if value not in valid:
            raise InputError(f"{name} {value!r}: valid are {', '.join(valid)}")


def check_least(least: int, **options: Optional[float]) -> None:
    """Raise an InputError where an option, if it is given, is below a number or not finite."""
    for name, value in options.items():
        if value is not None and not least <= value < math.inf:
            raise InputError(f"{name} {value}: expected {least} or more")


def check_regularizer(regularizer: Optional[str], weight: Optional[float], lm: UncertainLM) -> None:
    """Raise an InputError where a regularizer is unknown, or does not fit the LM."""
    if regularizer is None:
        if weight is not None:
            raise InputError("regularizer_weight is given, and no regularizer")
        return
    check_known(REGULARIZERS, regularizer=regularizer)
    check_least(0, regularizer_weight=weight)
    if lm.locations():
        raise InputError(
            f"regularizer {regularizer} is for point-estimate LMs, and this one is uncertain at"
            f" {', '.join(lm.locations())}",
            remedy="Use uncertainty: {}, or no regularizer: the KL is one already.",
        )
    if regularizer == "map" and isinstance(lm.prior_variance, str):
        raise InputError(
            f"regularizer map: expected prior_variance a number above 0, got {lm.prior_variance!r}",
            remedy="A point estimate has no variance that a prior's could be learnt from.",
        )


def typical_sigma(lm: UncertainLM) -> Dict[str, Tuple[float, float]]:
    """Standard deviation of each location at the start and now.

    They are geometric means over its weights; for a latent output over the tokens and units of
    the last forward pass that computed its KL.
    """
    logs: Dict[str, List[Tuple[float, float, int]]] = {}
    for piece in lm.posterior.blocks():
        if not math.isnan(piece.start_std):
            terms = (math.log(piece.start_std), float(piece.std.log().mean()), piece.std.numel())
            logs.setdefault(piece.location, []).append(terms)
    typical = {}
    for location, pieces in logs.items():
        total = sum(count for _, _, count in pieces)
        start, now = (sum(p[k] * p[2] for p in pieces) / total for k in (0, 1))
        typical[location] = (math.exp(start), math.exp(now))
    for location, latent in lm.latents():
        if latent.typical_std is not None:
            typical[location] = (latent.init_std, latent.typical_std)
    return typical


def check_finite(loss: torch.Tensor, lm: UncertainLM, step: int) -> None:
    """Raise an InputError where the training loss is not a finite number.

    The message names the range of each location's standard deviations, of a latent output the
    typical one.
    """
    if torch.isfinite(loss):
        return
    ranges: Dict[str, Tuple[float, float]] = {}
    broken = set()
    for piece in lm.posterior.blocks():
        # minimum and maximum of torch are nan where one of the values is
        ends = float(piece.std.min()), float(piece.std.max())
        low, high = ranges.get(piece.location, ends)
        ranges[piece.location] = (min(ends[0], low), max(ends[1], high))
        if not (piece.mean.isfinite().all() and piece.std.isfinite().all()):
            broken.add(piece.location)
    for location, latent in lm.latents():
        if latent.typical_std is not None:
            ranges[location] = (latent.typical_std, latent.typical_std)
    order = sorted(ranges, key=lambda location: (location not in broken, -ranges[location][1]))
    where = [f"the training loss is {loss.item()} at step {step} of this run"]
    for location in order:
        low, high = ranges[location]
        also = " and weights that are not finite" if location in broken else ""
        where.append(f"{location} has sigma {low:.3g} to {high:.3g}{also}")
    raise InputError(
        "; ".join(where),
        remedy="The last checkpoint is as it was: lower the learning rate (optim_conf lr,"
        " model_conf posterior_lr) or init_std, or set grad_clip, and resume.",
    )
