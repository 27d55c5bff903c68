"""Checks of a model's options and of its training loss."""

from __future__ import annotations

import math
from typing import Optional

import torch

from espnet_bayeslm.bayes.objective import KL_SCALES, REGULARIZERS
from espnet_bayeslm.lm import UncertainLM
from espnet_bayeslm.lm.sigma import sigma_ranges
from espnet_bayeslm.utils.errors import InputError


def check_objective(kl_scale: str, num_samples: int, kl_warmup_epochs: int = 0) -> None:
    """Raise an InputError where the KL's scale or warm-up, or the number of draws is none."""
    if kl_warmup_epochs < 0:
        raise InputError(f"kl_warmup_epochs {kl_warmup_epochs}: expected 0 or more")
    if kl_scale not in KL_SCALES:
        raise InputError(f"kl_scale {kl_scale!r}: valid are {', '.join(KL_SCALES)}")
    if num_samples < 1:
        raise InputError(f"num_samples {num_samples}: expected 1 or more")


def check_regularizer(regularizer: Optional[str], weight: Optional[float], lm: UncertainLM) -> None:
    """Raise an InputError where a regularizer is unknown, or does not fit the LM."""
    if regularizer is None:
        if weight is not None:
            raise InputError("regularizer_weight is given, and no regularizer")
        return
    if regularizer not in REGULARIZERS:
        raise InputError(f"regularizer {regularizer!r}: valid are {', '.join(REGULARIZERS)}")
    if weight is not None and not 0 <= weight < math.inf:
        raise InputError(f"regularizer_weight {weight}: expected 0 or more")
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


def check_weight(**weights: float) -> None:
    """Raise an InputError where the weight of a term of the loss is none."""
    for name, weight in weights.items():
        if not 0 <= weight < math.inf:
            raise InputError(f"{name} {weight}: expected 0 or more")


def check_finite(loss: torch.Tensor, lm: UncertainLM, step: int) -> None:
    """Raise an InputError where the training loss is not a finite number.

    Args:
        loss: The loss, ().
        lm: Where it comes from.
        step: Training steps of this run so far.
    """
    if torch.isfinite(loss):
        return
    broken = {piece.location for piece in lm.posteriors() if not _is_finite(piece.mean, piece.std)}
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


def _is_finite(*tensors: torch.Tensor) -> bool:
    return all(bool(torch.isfinite(tensor).all()) for tensor in tensors)
