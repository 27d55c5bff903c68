"""The evidence lower bound: KL of Gaussians, penalties, the sum per token."""

from __future__ import annotations

import math
from typing import Any, Mapping

import torch

from espnet_bayeslm.utils.errors import InputError

REGULARIZERS = ("l1", "l2", "map")
# exp(-20) = 2e-9 counts as certain; exp(4) is beyond any useful weight.
LOG_STD_MIN, LOG_STD_MAX = -20.0, 4.0
LEAST_START, MOST_START = math.exp(LOG_STD_MIN), math.exp(LOG_STD_MAX)


def clamp_log_std(log_std: torch.Tensor) -> torch.Tensor:
    """Log standard deviations within their range."""
    return log_std.clamp(LOG_STD_MIN, LOG_STD_MAX)


def check_spread(spread: float, location: str) -> None:
    """Check that the standard deviation of a location's weights is one of a trained LM's."""
    if not spread <= math.exp(LOG_STD_MAX):
        raise InputError(
            f"the weights of {location} have a spread of {spread:.3g}: their training diverged",
            remedy="Train again from the start with a lower learning rate (optim_conf lr), or set"
            " grad_clip.",
        )


def start_error(std: Any, location: str) -> InputError:
    """Error of a standard deviation that training starts from, and which would get no gradient."""
    return InputError(
        f"init_std of {location}: expected a start between {LEAST_START:.2g} and"
        f" {MOST_START:.3g}, got {std!r}, which no training would change",
        remedy="For weights that are not random leave the location out.",
    )


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


def kl_per_token(kl: torch.Tensor, *, num_train_tokens: int, weight: float = 1.0) -> torch.Tensor:
    """KL term of the per-token bound, in nats per token (Eq. 19, Xue et al. 2022).

    The negative bound of the whole training text is NLL + KL, the KL summed over weights; divided
    by its number of tokens, `</s>` included, it is NLL per token + KL / num_train_tokens, for any
    batch size. With a `weight` other than 1 it is no bound.
    """
    return kl * (weight / num_train_tokens)


def penalty(
    parameters: Mapping[str, torch.Tensor],
    regularizer: str,
    *,
    prior_means: Mapping[str, torch.Tensor],
    prior_variance: float,
) -> torch.Tensor:
    """Penalty of a regularised point-estimate LM's parameters, in nats, ().

    Args:
        parameters: By name.
        regularizer: `l1`: sum |theta|; `l2`: 1/2 sum theta^2; `map`: minus the log density of
            the Gaussian prior without its constant, sum (theta - mean)^2 / (2 variance).
        prior_means: Means of the prior by the parameters' names (`map`); without any, zero.
        prior_variance: Variance of the prior (`map`).
    """
    costs = []
    for name, parameter in parameters.items():
        if regularizer == "l1":
            cost = parameter.abs().sum()
        elif regularizer == "l2":
            cost = parameter.square().sum() / 2
        else:
            distance = parameter - prior_means[name] if prior_means else parameter
            cost = distance.square().sum() / (2 * prior_variance)
        costs.append(cost)
    return torch.stack(costs).sum()
