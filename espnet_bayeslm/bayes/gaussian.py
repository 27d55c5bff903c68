"""Gaussians: samples of weights (Eq. 22) and their KL (Eq. 23, 32, Xue et al. 2022)."""

from __future__ import annotations

import math
from typing import Optional, Tuple

import torch

from espnet_bayeslm.kernels import draw, has_kernel
from espnet_bayeslm.utils.log_std import clamp_log_std


def kl_gaussians(
    mean: torch.Tensor, log_std: torch.Tensor, prior_mean: torch.Tensor, prior_log_std: torch.Tensor
) -> torch.Tensor:
    """KL(q || p) of each of many univariate Gaussians, in nats, float32 or better (Eq. 32).

    All arguments, and the result, have one shape; `prior_log_std` may be ().
    """
    dtype = torch.promote_types(mean.dtype, torch.float32)
    mean, log_std, prior_mean, prior_log_std = (
        x.to(dtype) for x in (mean, log_std, prior_mean, prior_log_std)
    )
    ratio = log_std - prior_log_std
    distance = (mean - prior_mean) * torch.exp(-prior_log_std)
    return 0.5 * (torch.exp(2 * ratio) + distance.square() - 1 - 2 * ratio)


def kl_weights(
    mean: torch.Tensor, log_std: torch.Tensor, prior_mean: torch.Tensor, prior_std: float
) -> torch.Tensor:
    """KL(q || p) summed over all weights, in nats, () (Eq. 23), float32 or better.

    The log standard deviations are clamped here; the prior has one standard deviation.
    """
    prior_log_std = torch.tensor(math.log(prior_std), dtype=torch.float64)
    return kl_gaussians(mean, clamp_log_std(log_std), prior_mean, prior_log_std).sum()


def prior_variances(
    mean: torch.Tensor, variance: torch.Tensor, prior_mean: torch.Tensor, *, by_row: bool
) -> torch.Tensor:
    """The prior variances that make KL(q || p) least: the mean of (mean - prior mean)^2 + variance.

    One for each row of a matrix (N, ...) with `by_row`, (N,) (automatic relevance determination,
    MacKay 1994); else, and for vectors, one for all, ().
    """
    squares = (mean - prior_mean).square() + variance
    return squares.flatten(1).mean(1) if by_row and mean.dim() > 1 else squares.mean()


def kl_learned_prior(
    mean: torch.Tensor, log_std: torch.Tensor, prior_mean: torch.Tensor, *, by_row: bool
) -> torch.Tensor:
    """KL(q || p) summed over all weights where p has the variances that make it least, ().

    The gradient equals the gradient of `kl_weights` with these variances held: the KL is at its
    least there. Arguments have the shapes that `kl_weights` and `prior_variances` take; the result
    is in nats, float32 or better.
    """
    dtype = torch.promote_types(mean.dtype, torch.float32)
    mean, log_std, prior_mean = (x.to(dtype) for x in (mean, clamp_log_std(log_std), prior_mean))
    optimum = prior_variances(mean, (2 * log_std).exp(), prior_mean, by_row=by_row)
    of_each = mean.numel() // max(optimum.numel(), 1)  # weights that share a variance
    return of_each / 2 * optimum.log().sum() - log_std.sum()


@has_kernel(draw.draw_weights)
def draw_weights(
    mean: torch.Tensor,
    log_std: torch.Tensor,
    noise: torch.Tensor,
    prior_mean: Optional[torch.Tensor] = None,
    prior_std: float = 1.0,
) -> Tuple[torch.Tensor, torch.Tensor]:
    """Sample of Gaussian weights, mean + std * noise (Eq. 22), and their KL(q || p) (Eq. 23).

    All tensors have one shape. The log standard deviations are clamped here; `prior_std` is one for
    all weights. The KL is summed, in nats, (), and 0 without a `prior_mean`.
    """
    value = mean + clamp_log_std(log_std).exp() * noise
    if prior_mean is None:
        return value, mean.new_zeros(())
    return value, kl_weights(mean, log_std, prior_mean, prior_std)
