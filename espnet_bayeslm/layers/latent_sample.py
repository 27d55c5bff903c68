"""Draws of latent outputs and their KL as one autograd function."""

from __future__ import annotations

from typing import Any, Optional, Tuple

import torch
from torch.autograd.function import once_differentiable

from espnet_bayeslm.bayes import kl_gaussians
from espnet_bayeslm.bayes.gaussian import clamp_log_std, pass_inside

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
        """Return z (N, latent_dim) and the KL in nats (N,).

        `packed` is mean and log standard deviation of q, then of p, (N, 4 * latent_dim);
        `noise` (N, latent_dim), zeros for the mean.
        """
        ctx.save_for_backward(packed, noise)
        z, kl = torch.empty_like(noise), packed.new_empty(len(packed))
        for part, eps, z_part, kl_part in _rows(packed, noise, z, kl):
            mean, log_std, prior_mean, prior_log_std = part.chunk(4, dim=1)
            log_std = clamp_log_std(log_std)
            torch.addcmul(mean, log_std.exp(), eps, out=z_part)
            terms = kl_gaussians(mean, log_std, prior_mean, clamp_log_std(prior_log_std))
            torch.sum(terms, 1, out=kl_part)
        return z, kl

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: torch.Tensor) -> Tuple[torch.Tensor, None]:  # type: ignore[override]
        """Return the gradient of `packed`."""
        packed, noise = ctx.saved_tensors
        result = torch.empty_like(packed)
        for part, eps, grad_z, grad_kl, out in _rows(packed, noise, *grads, result):
            mean, log_std, prior_mean, prior_log_std = part.chunk(4, dim=1)
            outs = out.chunk(4, dim=1)
            std, precision = (
                clamp_log_std(log_std).exp_(),
                clamp_log_std(prior_log_std).neg_().exp_(),
            )
            upper = grad_kl.unsqueeze(1)
            # KL = (e^2r + d^2 - 1 - 2r) / 2 with r = log std - log prior std and
            # d = (mean - prior mean) / prior std
            distance = (mean - prior_mean).mul_(precision)
            wide = (std * precision).square_().sub_(1.0)  # e^2r - 1
            slope = torch.mul(distance, precision).mul_(upper)
            torch.add(grad_z, slope, out=outs[0])
            torch.neg(slope, out=outs[2])
            outs[1].copy_(pass_inside((wide * upper).addcmul_(grad_z * eps, std), log_std))
            outs[3].copy_(
                pass_inside(wide.addcmul_(distance, distance).mul_(-upper), prior_log_std)
            )
        return result, None


def _rows(*tensors: torch.Tensor) -> Any:
    """Iterate over chunks of rows of tensors with as many rows."""
    rows = max(1, CHUNK // tensors[0].size(1))
    return zip(*(tensor.split(rows) for tensor in tensors), strict=True)


def sample_with_kl(
    packed: torch.Tensor, noise: Optional[torch.Tensor]
) -> Tuple[torch.Tensor, torch.Tensor]:
    """Return z (..., latent_dim) and the KL of each token in nats (...), in float32 or better.

    Args:
        packed: Mean and log standard deviation of q, then of p, (..., 4 * latent_dim).
        noise: (..., latent_dim), or None for the mean.
    """
    shape, size = packed.shape[:-1], packed.size(-1) // 4
    dtype = torch.promote_types(packed.dtype, torch.float32)
    rows = packed.reshape(-1, 4 * size).to(dtype)
    if noise is None:
        noise = rows.new_zeros(len(rows), size)
    z, kl = LatentSample.apply(rows, noise.reshape(-1, size).to(dtype))
    return z.view(*shape, size), kl.view(shape)
