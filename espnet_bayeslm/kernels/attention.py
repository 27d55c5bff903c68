"""Attention by torch's kernels, which keep no matrix of weights."""

from __future__ import annotations

from typing import Optional

import torch
import torch.nn.functional as F


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: Optional[torch.Tensor] = None,
    *,
    is_causal: bool = False,
    dropout_rate: float = 0.0,
) -> torch.Tensor:
    """What queries find, (..., L, D); see `layers.attention.attention`."""
    return F.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, dropout_p=dropout_rate, is_causal=is_causal
    )
