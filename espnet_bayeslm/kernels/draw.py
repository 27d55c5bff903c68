"""A sample and the KL of many Gaussian weights, a few passes over them forward and backward.

Plain autograd would read and write millions of weights some thirty times.
"""

from __future__ import annotations

import math
from typing import Any, Optional, Tuple

import torch
from torch.autograd.function import once_differentiable

from espnet_bayeslm.utils.log_std import LOG_STD_MAX, LOG_STD_MIN


def draw_weights(
    mean: torch.Tensor,
    log_std: torch.Tensor,
    noise: torch.Tensor,
    prior_mean: Optional[torch.Tensor] = None,
    prior_std: float = 1.0,
) -> Tuple[torch.Tensor, torch.Tensor]:
    """Sample and KL of weights; the plain twin is `bayes.gaussian.draw_weights`."""
    value, kl = _Draw.apply(mean, log_std, noise, prior_mean, prior_std)
    return value, kl


class _Draw(torch.autograd.Function):
    """mean + std * noise, and KL(q || p) where the prior's mean is given."""

    @staticmethod
    def forward(
        ctx: Any,
        mean: torch.Tensor,
        log_std: torch.Tensor,
        noise: torch.Tensor,
        prior_mean: Optional[torch.Tensor],
        prior_std: float,
    ) -> Tuple[torch.Tensor, torch.Tensor]:
        ctx.save_for_backward(mean, log_std, noise, prior_mean)
        ctx.prior_std = prior_std
        log_std = log_std.clamp(LOG_STD_MIN, LOG_STD_MAX)
        std = log_std.exp()
        value = torch.addcmul(mean, std, noise)
        if prior_mean is None:
            return value, mean.new_zeros(())
        squares = torch.sub(mean, prior_mean).square_().addcmul_(std, std)
        terms = squares.mul_(prior_std**-2 / 2).sub_(log_std)
        # the constant with each weight's, so that it cancels exactly
        kl = terms.add_(math.log(prior_std) - 0.5).sum(dtype=torch.float64)
        return value, kl.to(mean.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor, grad_kl: torch.Tensor) -> Tuple[Any, ...]:  # type: ignore[override]
        mean, log_std, noise, prior_mean = ctx.saved_tensors
        clamped = log_std.clamp(LOG_STD_MIN, LOG_STD_MAX)
        std, inside = clamped.exp(), log_std == clamped
        grad_mean, grad_log_std = grad, torch.mul(grad, noise)
        if prior_mean is None:
            grad_log_std.mul_(std)
        else:
            weight = grad_kl * ctx.prior_std**-2
            grad_mean = torch.sub(mean, prior_mean).mul_(weight).add_(grad)
            grad_log_std.add_(std * weight).mul_(std).sub_(grad_kl)
        return grad_mean, grad_log_std.mul_(inside), None, None, None
