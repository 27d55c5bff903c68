"""A sample and the KL of many Gaussian weights, one pass over them forward and one backward.

Plain autograd would read and write millions of weights some thirty times; here they go by in
chunks that stay in the cache.
"""

from __future__ import annotations

import functools
import math
from itertools import repeat
from typing import Any, Callable, Iterator, Optional, Tuple

import torch
from torch.autograd.function import once_differentiable

from espnet_bayeslm.kernels.fused import fused
from espnet_bayeslm.utils.log_std import LOG_STD_MAX, LOG_STD_MIN

# Elements that are worked on at a time on a CPU.
CHUNK = 1 << 16


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
        value = torch.empty_like(mean, memory_format=torch.contiguous_format)
        total = torch.zeros((), dtype=torch.float64, device=mean.device)
        compute: Callable[..., Any] = functools.partial(sample_and_kl, prior_std)
        if mean.device.type != "cpu":
            compute = fused(sample_and_kl, mean.device, prior_std)
        for *tensors, out in chunks(mean, log_std, noise, prior_mean, value):
            sample, kl = compute(*tensors)
            out.copy_(sample)
            total += 0.0 if kl is None else kl
        return value, total.to(mean.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor, grad_kl: torch.Tensor) -> Tuple[Any, ...]:  # type: ignore[override]
        mean, log_std, noise, prior_mean = ctx.saved_tensors
        grad_log_std = torch.empty_like(log_std, memory_format=torch.contiguous_format)
        grad_mean = grad
        if prior_mean is not None:
            grad_mean = torch.empty_like(mean, memory_format=torch.contiguous_format)
        compute = fused(gradients, grad.device, ctx.prior_std)
        tensors = (grad, mean, log_std, noise, prior_mean)
        for *parts, of_mean, of_log_std in chunks(*tensors, grad_mean, grad_log_std):
            d_mean, d_log_std = compute(*parts, grad_kl)
            of_log_std.copy_(d_log_std)
            if d_mean is not None:
                of_mean.copy_(d_mean)
        return grad_mean, grad_log_std, None, None, None


def chunks(*tensors: Optional[torch.Tensor]) -> Iterator[Tuple[Any, ...]]:
    """Iterate over runs of elements of tensors of one shape, the first of which is not None."""
    first = tensors[0]
    assert first is not None
    size = CHUNK if first.device.type == "cpu" else max(first.numel(), 1)
    count = max(-(-first.numel() // size), 1)  # as torch splits what is empty
    runs = (repeat(None, count) if x is None else x.reshape(-1).split(size) for x in tensors)
    return zip(*runs, strict=True)


def sample_and_kl(
    prior_std: float,
    mean: torch.Tensor,
    log_std: torch.Tensor,
    noise: torch.Tensor,
    prior_mean: Optional[torch.Tensor],
) -> Tuple[torch.Tensor, Optional[torch.Tensor]]:
    """Sample of a chunk and its KL."""
    log_std = log_std.clamp(LOG_STD_MIN, LOG_STD_MAX)
    std = log_std.exp()
    value = torch.addcmul(mean, std, noise)
    if prior_mean is None:
        return value, None
    squares = torch.sub(mean, prior_mean).square_().addcmul_(std, std)
    terms = squares.mul_(prior_std**-2 / 2).sub_(log_std)
    # the constant with each weight's, so that it cancels exactly
    return value, terms.add_(math.log(prior_std) - 0.5).sum(dtype=torch.float64)


def gradients(
    prior_std: float,
    grad: torch.Tensor,
    mean: torch.Tensor,
    log_std: torch.Tensor,
    noise: torch.Tensor,
    prior_mean: Optional[torch.Tensor],
    grad_kl: torch.Tensor,
) -> Tuple[Optional[torch.Tensor], torch.Tensor]:
    """Gradients by the mean (None: `grad`) and by the log standard deviation."""
    clamped = log_std.clamp(LOG_STD_MIN, LOG_STD_MAX)
    std, of_log_std = clamped.exp(), torch.mul(grad, noise)
    inside = log_std == clamped
    if prior_mean is None:
        return None, of_log_std.mul_(std).mul_(inside)
    weight = grad_kl * prior_std**-2
    of_mean = torch.sub(mean, prior_mean).mul_(weight).add_(grad)
    return of_mean, of_log_std.add_(std * weight).mul_(std).sub_(grad_kl).mul_(inside)
