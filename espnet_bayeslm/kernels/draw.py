"""Draw and KL of many Gaussian weights, each one pass over them forward and one backward.

Plain autograd would read and write millions of weights some thirty times; here they go by in
chunks that stay in the cache.
"""

from __future__ import annotations

import math
from itertools import repeat
from typing import Any, Iterator, NamedTuple, Optional, Sequence, Tuple

import torch
from torch.autograd.function import once_differentiable

from espnet_bayeslm.kernels.fused import fused
from espnet_bayeslm.utils.log_std import clamp_log_std

# Elements that are worked on at a time on a CPU.
CHUNK = 1 << 16


def pass_inside(grad: torch.Tensor, log_std: torch.Tensor) -> torch.Tensor:
    """Make a clamped log standard deviation's gradient that of the one before, in place."""
    return grad.mul_(log_std == clamp_log_std(log_std))


def _chunks(*tensors: Optional[torch.Tensor]) -> Iterator[Tuple[Any, ...]]:
    """Iterate over runs of elements of tensors of one shape, the first of which is there."""
    first = tensors[0]
    assert first is not None
    size = CHUNK if first.device.type == "cpu" else max(first.numel(), 1)
    count = max(-(-first.numel() // size), 1)  # as torch splits what is empty
    runs = (repeat(None, count) if x is None else x.reshape(-1).split(size) for x in tensors)
    return zip(*runs, strict=True)


class Draw(NamedTuple):
    """What is drawn of a parameter, and what its KL is to be taken to.

    Attributes:
        first: The first row.
        last: The one after the last.
        log_std: Logarithms of the standard deviations, of the rows' shape; clamped here.
        noise: Standard normal, of that shape.
        prior_mean: Of that shape; None: no KL is wanted.
        prior_std: The prior's standard deviation, one for all these weights.
    """

    first: int
    last: int
    log_std: torch.Tensor
    noise: torch.Tensor
    prior_mean: Optional[torch.Tensor] = None
    prior_std: float = 1.0


class _Draw(torch.autograd.Function):
    """mean + std * noise in some rows, the mean in the others; and KL(q || p) of each draw."""

    @staticmethod
    def forward(
        ctx: Any,
        mean: torch.Tensor,
        rows: Sequence[Tuple[int, int, float]],
        *tensors: Optional[torch.Tensor],
    ) -> Tuple[torch.Tensor, torch.Tensor]:
        ctx.save_for_backward(mean, *tensors)
        ctx.rows = rows
        value = torch.empty_like(mean, memory_format=torch.contiguous_format)
        terms, done = [], 0
        for draw in _draws(rows, tensors):
            value[done : draw.first] = mean[done : draw.first]
            done = draw.last
            terms.append(_write(value[draw.first : done], mean[draw.first : done], draw))
        value[done:] = mean[done:]
        return value, torch.stack(terms).to(mean.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor, grad_kl: torch.Tensor) -> Tuple[Any, ...]:  # type: ignore[override]
        mean, *tensors = ctx.saved_tensors
        grad_mean, grads = grad, []
        if any(prior_mean is not None for prior_mean in tensors[2::3]):
            grad_mean = grad.clone(memory_format=torch.contiguous_format)
        for draw, weight in zip(_draws(ctx.rows, tensors), grad_kl, strict=True):
            rows = slice(draw.first, draw.last)
            out = grad_mean[rows]
            grads += [_gradients(grad[rows], mean[rows], draw, weight, out), None, None]
        return grad_mean, None, *grads


def _draws(rows: Sequence[Tuple[int, int, float]], tensors: Sequence[Any]) -> Iterator[Draw]:
    """Iterate over draws whose tensors autograd was given."""
    found = zip(rows, tensors[::3], tensors[1::3], tensors[2::3], strict=True)
    for (first, last, prior_std), log_std, noise, prior_mean in found:
        yield Draw(first, last, log_std, noise, prior_mean, prior_std)


def _write(value: torch.Tensor, mean: torch.Tensor, draw: Draw) -> torch.Tensor:
    """Write a draw into `value`, and return its KL in nats (0 where none is wanted), ()."""
    write = fused(weight_draw, mean.device, draw.prior_std)
    total = torch.zeros((), dtype=torch.float64, device=mean.device)
    for *tensors, out in _chunks(mean, draw.log_std, draw.noise, draw.prior_mean, value):
        drawn, kl = write(*tensors)
        out.copy_(drawn)
        total += 0.0 if kl is None else kl
    return total


def _gradients(
    grad: torch.Tensor, mean: torch.Tensor, draw: Draw, grad_kl: torch.Tensor, of_mean: torch.Tensor
) -> torch.Tensor:
    """Gradient of `draw.log_std`; that of the KL by the mean is added to `of_mean`."""
    gradients = fused(draw_gradients, grad.device, draw.prior_std)
    grad_log_std = torch.empty_like(draw.log_std, memory_format=torch.contiguous_format)
    tensors = (grad, mean, draw.log_std, draw.noise, draw.prior_mean)
    for *parts, out_mean, out in _chunks(*tensors, of_mean, grad_log_std):
        d_mean, d_log_std = gradients(*parts, grad_kl)
        out.copy_(d_log_std)
        if d_mean is not None:
            out_mean.add_(d_mean)
    return grad_log_std


def weight_draw(
    prior_std: float,
    mean: torch.Tensor,
    log_std: torch.Tensor,
    noise: torch.Tensor,
    prior_mean: Optional[torch.Tensor],
) -> Tuple[torch.Tensor, Optional[torch.Tensor]]:
    """A draw and its KL, for `fused`."""
    log_std = clamp_log_std(log_std)
    std = log_std.exp()
    value = torch.addcmul(mean, std, noise)
    if prior_mean is None:
        return value, None
    squares = torch.sub(mean, prior_mean).square_().addcmul_(std, std)
    terms = squares.mul_(prior_std**-2 / 2).sub_(log_std)
    # the constant with each weight's, so that it cancels exactly
    return value, terms.add_(math.log(prior_std) - 0.5).sum(dtype=torch.float64)


def draw_gradients(
    prior_std: float,
    grad: torch.Tensor,
    mean: torch.Tensor,
    log_std: torch.Tensor,
    noise: torch.Tensor,
    prior_mean: Optional[torch.Tensor],
    grad_kl: torch.Tensor,
) -> Tuple[Optional[torch.Tensor], torch.Tensor]:
    """The KL's gradient by the mean, and all of the log std's, for `fused`."""
    std, of_log_std = clamp_log_std(log_std).exp_(), torch.mul(grad, noise)
    if prior_mean is None:
        return None, pass_inside(of_log_std.mul_(std), log_std)
    weight = grad_kl * prior_std**-2
    of_mean = torch.sub(mean, prior_mean).mul_(weight)
    of_log_std.add_(std * weight).mul_(std).sub_(grad_kl)
    return of_mean, pass_inside(of_log_std, log_std)


def draw_rows(mean: torch.Tensor, draws: Sequence[Draw]) -> Tuple[torch.Tensor, torch.Tensor]:
    """See `bayes.gaussian.draw_rows`."""
    rows = [(draw.first, draw.last, draw.prior_std) for draw in draws]
    tensors = (x for draw in draws for x in (draw.log_std, draw.noise, draw.prior_mean))
    return _Draw.apply(mean, rows, *tensors)


def kl_weights(
    mean: torch.Tensor, log_std: torch.Tensor, prior_mean: torch.Tensor, prior_std: float
) -> torch.Tensor:
    """See `bayes.gaussian.kl_weights`."""
    dtype = torch.promote_types(mean.dtype, torch.float32)
    mean, log_std, prior_mean = (x.to(dtype) for x in (mean, log_std, prior_mean))
    no_noise = log_std.new_zeros(()).expand_as(log_std)
    return draw_rows(mean, [Draw(0, len(mean), log_std, no_noise, prior_mean, prior_std)])[1][0]
