"""The evidence lower bound per token."""

from __future__ import annotations

from typing import Mapping

import torch

KL_SCALES = ("elbo", "release")
REGULARIZERS = ("l1", "l2", "map")


def kl_per_token(kl: torch.Tensor, *, num_train_tokens: int, weight: float = 1.0) -> torch.Tensor:
    """KL term of the per-token bound, in nats per token (Eq. 19, Xue et al. 2022).

    The negative bound of the whole training text is NLL + KL; divided by its number of
    tokens it is NLL per token + KL / num_train_tokens, for any batch size.

    Args:
        kl: KL(q || p) summed over weights, in nats, ().
        num_train_tokens: Tokens of the training text, one `</s>` per sentence included.
        weight: A factor on the KL (1: the exact bound).
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
