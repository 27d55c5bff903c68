"""Kullback-Leibler divergences in closed form."""

from __future__ import annotations

import torch


def kl_gaussians(
    mean: torch.Tensor,
    log_std: torch.Tensor,
    prior_mean: torch.Tensor,
    prior_log_std: torch.Tensor,
) -> torch.Tensor:
    """KL(q || p) of each of many univariate Gaussians, in nats (Eq. 32).

    Args:
        mean: Means of q, any shape.
        log_std: Logarithms of q's standard deviations, of that shape.
        prior_mean: Means of p, of that shape.
        prior_log_std: Logarithms of p's standard deviations, of that shape.

    Returns:
        A tensor of that shape, float32 or better.
    """
    dtype = torch.promote_types(mean.dtype, torch.float32)
    mean, log_std, prior_mean, prior_log_std = (
        x.to(dtype) for x in (mean, log_std, prior_mean, prior_log_std)
    )
    ratio = log_std - prior_log_std
    distance = (mean - prior_mean) * torch.exp(-prior_log_std)
    return 0.5 * (torch.exp(2 * ratio) + distance.square() - 1 - 2 * ratio)
