"""The evidence lower bound per token."""

from __future__ import annotations

import torch

KL_SCALES = ("elbo", "release")


def kl_per_token(kl: torch.Tensor, *, num_train_tokens: int, weight: float = 1.0) -> torch.Tensor:
    """Return the KL term of the per-token bound, in nats per token (Eq. 19, Xue et al. 2022).

    The negative bound of the whole training text is NLL + KL; divided by its number of
    tokens it is NLL per token + KL / num_train_tokens, for any batch size.

    Args:
        kl: KL(q || p) summed over weights, in nats, ().
        num_train_tokens: Tokens of the training text, one `</s>` per sentence included.
        weight: A factor on the KL (1: the exact bound).
    """
    return kl * (weight / num_train_tokens)
