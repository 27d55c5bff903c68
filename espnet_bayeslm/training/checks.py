"""Checks of a model's options and of its training loss."""

from __future__ import annotations

import math
from typing import Optional, Sequence

import torch

from espnet_bayeslm.bayes.objective import REGULARIZERS
from espnet_bayeslm.lm import UncertainLM
from espnet_bayeslm.lm.sigma import sigma_ranges
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


def check_rates(**rates: Optional[float]) -> None:
    """Raise an InputError where a learning rate is none."""
    for name, rate in rates.items():
        if rate is not None and not 0 < rate < math.inf:
            raise InputError(f"{name} {rate}: expected a number above 0, or null")


def check_finite(loss: torch.Tensor, lm: UncertainLM, step: int) -> None:
    """Raise an InputError where the training loss is not a finite number."""
    if torch.isfinite(loss):
        return
    broken = {
        piece.location
        for piece in lm.posterior.blocks()
        if not (piece.mean.isfinite().all() and piece.std.isfinite().all())
    }
    ranges = sorted(sigma_ranges(lm).items(), key=lambda item: (item[0] not in broken, -item[1][1]))
    where = "; ".join(
        f"{location} has sigma {low:.3g} to {high:.3g}"
        + (" and weights that are not finite" if location in broken else "")
        for location, (low, high) in ranges
    )
    raise InputError(
        f"the training loss is {loss.item()} at step {step} of this run"
        + (f"; {where}" if where else ""),
        remedy="The last checkpoint is as it was: lower the learning rate (optim_conf lr,"
        " model_conf posterior_lr) or init_std, or set grad_clip, and resume.",
    )
