"""Samples of latent outputs and their KL as one autograd function."""

from __future__ import annotations

from typing import Any, Optional, Tuple

import torch
from torch.autograd.function import once_differentiable

from espnet_bayeslm.utils.log_std import LOG_STD_MAX, LOG_STD_MIN

ATEN = torch.ops.aten
# Elements of `packed` that are worked on at a time.
CHUNK = 1 << 17


class LatentSample(torch.autograd.Function):
    """z = mean + std * noise (Eq. 22) and KL(q(z) || p(z)) (Eq. 32), N tokens at a time.

    Plain autograd would read and write all of them some thirty times.
    """

    @staticmethod
    def forward(
        ctx: Any, packed: torch.Tensor, noise: torch.Tensor
    ) -> Tuple[torch.Tensor, torch.Tensor]:
        """Samples z (N, latent_dim), and the KL in nats (N,).

        `packed` is mean and log standard deviation of q, then of p, (N, 4 * latent_dim);
        `noise` (N, latent_dim), zeros for the mean.
        """
        ctx.save_for_backward(packed, noise)
        z, kl = torch.empty_like(noise), packed.new_empty(len(packed))
        for part, eps, z_part, kl_part in _rows(packed, noise, z, kl):
            mean, log_std, prior_mean, prior_log_std = part.chunk(4, dim=1)
            log_std, prior_log_std = _clamped(log_std), _clamped(prior_log_std)
            torch.addcmul(mean, log_std.exp(), eps, out=z_part)
            log_ratio = log_std.sub_(prior_log_std)
            distance = torch.sub(mean, prior_mean).mul_(prior_log_std.neg_().exp_())
            terms = (2 * log_ratio).exp_().sub_(1.0).addcmul_(distance, distance)
            torch.sum(terms.mul_(0.5).sub_(log_ratio), 1, out=kl_part)
        return z, kl

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: torch.Tensor) -> Tuple[torch.Tensor, None]:  # type: ignore[override]
        """Gradient of `packed`."""
        packed, noise = ctx.saved_tensors
        result = torch.empty_like(packed)
        for part, eps, grad_z, grad_kl, out in _rows(packed, noise, *grads, result):
            mean, log_std, prior_mean, prior_log_std = part.chunk(4, dim=1)
            d_mean, d_log_std, d_prior_mean, d_prior_log_std = out.chunk(4, dim=1)
            std, precision = _clamped(log_std).exp_(), _clamped(prior_log_std).neg_().exp_()
            upper = grad_kl.unsqueeze(1)
            # KL = (e^2r + d^2 - 1 - 2r) / 2 with r = log std - log prior std and
            # d = (mean - prior mean) / prior std
            distance = torch.sub(mean, prior_mean).mul_(precision)
            wide = torch.mul(std, precision).square_().sub_(1.0).mul_(upper)  # e^2r - 1
            slope = precision.mul_(distance).mul_(upper)
            torch.add(grad_z, slope, out=d_mean)
            torch.neg(slope, out=d_prior_mean)
            # of z's standard deviation, then of the KL's
            _pass_inside(std.mul_(eps).mul_(grad_z).add_(wide), log_std, out=d_log_std)
            of_prior = distance.square_().mul_(upper).add_(wide).neg_()
            _pass_inside(of_prior, prior_log_std, out=d_prior_log_std)
        return result, None


def _clamped(log_std: torch.Tensor) -> torch.Tensor:
    return log_std.clamp(LOG_STD_MIN, LOG_STD_MAX)


def _pass_inside(grad: torch.Tensor, log_std: torch.Tensor, *, out: torch.Tensor) -> None:
    """Write a clamped log standard deviation's gradient, 0 where it is out of range."""
    ATEN.hardtanh_backward.grad_input(grad, log_std, LOG_STD_MIN, LOG_STD_MAX, grad_input=out)


def _rows(*tensors: torch.Tensor) -> Any:
    """Iterate over chunks of rows of tensors with as many rows; on a CPU, else all rows."""
    first = tensors[0]
    on_cpu = first.device.type == "cpu"
    rows = max(1, CHUNK // first.size(1) if on_cpu else len(first))
    return zip(*(tensor.split(rows) for tensor in tensors), strict=True)


def sample_with_kl(
    packed: torch.Tensor, noise: Optional[torch.Tensor]
) -> Tuple[torch.Tensor, torch.Tensor]:
    """Fast twin of `layers.latent.sample_with_kl`."""
    shape, size = packed.shape[:-1], packed.size(-1) // 4
    dtype = torch.promote_types(packed.dtype, torch.float32)
    rows = packed.reshape(-1, 4 * size).to(dtype)
    if noise is None:
        noise = rows.new_zeros(len(rows), size)
    z, kl = LatentSample.apply(rows, noise.reshape(-1, size).to(dtype))
    return z.view(*shape, size), kl.view(shape)
