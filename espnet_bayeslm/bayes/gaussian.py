"""Draw and KL of many Gaussian weights, each one pass over them forward and one backward.

Plain autograd would read and write millions of weights some thirty times; here they go by in
chunks that stay in the cache.
"""

from __future__ import annotations

import math
from typing import Any, Iterator, Tuple

import torch
from torch.autograd.function import once_differentiable

# exp(-20) = 2e-9 counts as certain; exp(4) is beyond any useful weight.
LOG_STD_MIN, LOG_STD_MAX = -20.0, 4.0
# Elements that are worked on at a time on a CPU.
CHUNK = 1 << 14


def clamp_log_std(log_std: torch.Tensor) -> torch.Tensor:
    """Return log standard deviations within their range."""
    return log_std.clamp(LOG_STD_MIN, LOG_STD_MAX)


def pass_inside(grad: torch.Tensor, log_std: torch.Tensor) -> torch.Tensor:
    """Make a clamped log standard deviation's gradient that of the one before, in place."""
    return grad.mul_(log_std == clamp_log_std(log_std))


def _chunks(*tensors: torch.Tensor) -> Iterator[Tuple[torch.Tensor, ...]]:
    """Iterate over runs of elements of tensors of one shape."""
    first = tensors[0]
    size = CHUNK if first.device.type == "cpu" else max(first.numel(), 1)
    return zip(*(tensor.reshape(-1).split(size) for tensor in tensors), strict=True)


class _Draw(torch.autograd.Function):
    """mean + std * noise."""

    @staticmethod
    def forward(
        ctx: Any, mean: torch.Tensor, log_std: torch.Tensor, noise: torch.Tensor
    ) -> torch.Tensor:
        ctx.save_for_backward(log_std, noise)
        result = torch.empty_like(noise, memory_format=torch.contiguous_format)
        for m, s, eps, out in _chunks(mean, log_std, noise, result):
            torch.addcmul(m, clamp_log_std(s).exp_(), eps, out=out)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor, None]:  # type: ignore[override]
        log_std, noise = ctx.saved_tensors
        grad_log_std = torch.empty_like(log_std, memory_format=torch.contiguous_format)
        for g, s, eps, out in _chunks(grad, log_std, noise, grad_log_std):
            pass_inside(torch.mul(clamp_log_std(s).exp_(), eps, out=out).mul_(g), s)
        return grad, grad_log_std, None


class _KL(torch.autograd.Function):
    """KL(q || p) summed."""

    @staticmethod
    def forward(
        ctx: Any,
        mean: torch.Tensor,
        log_std: torch.Tensor,
        prior_mean: torch.Tensor,
        prior_std: float,
    ) -> torch.Tensor:
        ctx.save_for_backward(mean, log_std, prior_mean)
        ctx.prior_std = prior_std
        total = torch.zeros((), dtype=torch.float64, device=mean.device)
        for m, s, p in _chunks(mean, log_std, prior_mean):
            ratio = clamp_log_std(s).sub_(math.log(prior_std))
            distance = torch.sub(m, p).div_(prior_std)
            terms = torch.mul(ratio, -2.0).addcmul_(distance, distance)
            total += terms.add_(ratio.mul_(2.0).exp_()).sub_(1.0).sum()
        return (total / 2).to(mean.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> Tuple[Any, ...]:  # type: ignore[override]
        mean, log_std, prior_mean = ctx.saved_tensors
        grads = tuple(
            torch.empty_like(x, memory_format=torch.contiguous_format) for x in (mean, log_std)
        )
        for m, s, p, grad_m, grad_s in _chunks(mean, log_std, prior_mean, *grads):
            torch.sub(m, p, out=grad_m).mul_(grad / ctx.prior_std**2)
            wide = clamp_log_std(s).sub_(math.log(ctx.prior_std)).mul_(2.0).exp_().sub_(1.0)
            pass_inside(torch.mul(wide, grad, out=grad_s), s)
        return (*grads, None, None)


class _DrawAndKL(torch.autograd.Function):
    """Both of the above in one pass."""

    @staticmethod
    def forward(
        ctx: Any,
        mean: torch.Tensor,
        log_std: torch.Tensor,
        noise: torch.Tensor,
        prior_mean: torch.Tensor,
        prior_std: float,
    ) -> Tuple[torch.Tensor, torch.Tensor]:
        ctx.save_for_backward(mean, log_std, noise, prior_mean)
        ctx.prior_std = prior_std
        result = torch.empty_like(noise, memory_format=torch.contiguous_format)
        total = torch.zeros((), dtype=torch.float64, device=mean.device)
        for m, s, eps, p, out in _chunks(mean, log_std, noise, prior_mean, result):
            std = (ratio := clamp_log_std(s)).exp()
            torch.addcmul(m, std, eps, out=out)
            terms = torch.sub(m, p).div_(prior_std).square_()
            terms.addcmul_(std, std, value=prior_std**-2)
            total += terms.sub_(ratio.sub_(math.log(prior_std)), alpha=2.0).sub_(1.0).sum()
        return result, (total / 2).to(mean.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor, grad_kl: torch.Tensor) -> Tuple[Any, ...]:  # type: ignore[override]
        mean, log_std, *_ = ctx.saved_tensors
        precision = ctx.prior_std**-2
        grads = tuple(
            torch.empty_like(x, memory_format=torch.contiguous_format) for x in (mean, log_std)
        )
        for g, m, s, eps, p, grad_m, grad_s in _chunks(grad, *ctx.saved_tensors, *grads):
            std = clamp_log_std(s).exp_()
            torch.sub(m, p, out=grad_m).mul_(grad_kl * precision).add_(g)
            torch.mul(g, std, out=grad_s).mul_(eps)
            grad_s.add_(std.square_().mul_(precision).sub_(1.0).mul_(grad_kl))
            pass_inside(grad_s, s)
        return (*grads, None, None, None)


def draw_weights(mean: torch.Tensor, log_std: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """Return mean + std * noise (Eq. 22, Xue et al. 2022), shaped as they are.

    Args:
        mean: Means, any shape.
        log_std: Logarithms of the standard deviations, of that shape; clamped here.
        noise: Standard normal, of that shape.
    """
    return _Draw.apply(mean, log_std, noise)


def kl_weights(
    mean: torch.Tensor, log_std: torch.Tensor, prior_mean: torch.Tensor, prior_std: float
) -> torch.Tensor:
    """Return KL(q || p) summed over all weights, in nats, () (Eq. 23), float32 or better.

    Args:
        mean: Posterior means, any shape.
        log_std: Logarithms of the posterior standard deviations, of that shape; clamped here.
        prior_mean: Prior means, of that shape.
        prior_std: The prior's standard deviation, one for all weights.
    """
    dtype = torch.promote_types(mean.dtype, torch.float32)
    return _KL.apply(*(x.to(dtype) for x in (mean, log_std, prior_mean)), prior_std)


def draw_and_kl(
    mean: torch.Tensor,
    log_std: torch.Tensor,
    noise: torch.Tensor,
    prior_mean: torch.Tensor,
    prior_std: float,
) -> Tuple[torch.Tensor, torch.Tensor]:
    """Return `draw_weights` and `kl_weights` of the same weights, float32 or better."""
    return _DrawAndKL.apply(mean, log_std, noise, prior_mean, prior_std)
