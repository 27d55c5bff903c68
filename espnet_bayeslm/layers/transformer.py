"""Transformer block (Eq. 11-16, Xue et al. 2022)."""

from __future__ import annotations

import math
from typing import Callable, List, Optional, Tuple

import torch
import torch.nn.functional as F
from torch import nn

from espnet_bayeslm.kernels import feed_forward as kernels
from espnet_bayeslm.kernels import has_kernel
from espnet_bayeslm.layers.gp import GPActivation
from espnet_bayeslm.layers.linear import Linear


@has_kernel(kernels.feed_forward)
def feed_forward(
    x: torch.Tensor,
    weight1: torch.Tensor,
    bias1: torch.Tensor,
    weight2: torch.Tensor,
    bias2: torch.Tensor,
    *,
    dropout_rate: float,
) -> torch.Tensor:
    """Theta_2 dropout(GELU(Theta_1 x)) (Eq. 15), (..., M) -> (..., M).

    The weights are (D, M) and (M, D).
    """
    hidden = F.gelu(F.linear(x, weight1, bias1))  # (..., D)
    return F.linear(F.dropout(hidden, dropout_rate), weight2, bias2)


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    heads: int,
    mask: Optional[torch.Tensor] = None,
    dropout_rate: float = 0.0,
) -> torch.Tensor:
    """softmax(q k^T / sqrt(M / heads)) v of each head (Eq. 12), (B, L, M).

    A token sees itself and all tokens before it, or the tokens that `mask` has, (B, 1, L, L); where
    the mask has none the result is 0.
    """
    # (B, L, M) -> (B, heads, L, M / heads)
    q, k, v = (x.unflatten(-1, (heads, -1)).transpose(1, 2) for x in (query, key, value))
    if mask is None:
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout_rate, is_causal=True)
    else:
        # a row without a key would be 0 / 0
        blind = ~mask.any(-1, keepdim=True)
        y = F.scaled_dot_product_attention(q, k, v, mask | blind, dropout_p=dropout_rate)
        y = y.masked_fill(blind, 0.0)
    return y.transpose(1, 2).flatten(2)


def sinusoids(positions: torch.Tensor, dim: int) -> torch.Tensor:
    """Sinusoidal encodings of positions (...), double, (..., dim) (Vaswani et al. 2017, 3.5)."""
    even = torch.arange(0, dim, 2, dtype=torch.float64)
    angle = positions.unsqueeze(-1) * torch.exp(even * (-math.log(10000.0) / dim))
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(-2)[..., :dim]


class SelfAttention(nn.Module):
    """Projections of self-attention; Theta_q, Theta_k, Theta_v are one matrix."""

    def __init__(self, att_unit: int):
        super().__init__()
        self.in_proj = Linear(att_unit, 3 * att_unit)
        self.out_proj = Linear(att_unit, att_unit)
        nn.init.xavier_uniform_(self.in_proj.weight)
        nn.init.zeros_(self.in_proj.bias)
        nn.init.zeros_(self.out_proj.bias)


class TransformerBlock(nn.Module):
    """Self-attention and a GELU feed-forward net, each with residual and LayerNorm.

    Args:
        att_unit: M, the width.
        unit: D, the feed-forward net's hidden size.
        dropout_rate: Dropout of the sub-layers' outputs and the hidden activations.
        norm_first: LayerNorm before each sub-layer (pre-norm) and not after the residual.
    """

    def __init__(self, att_unit: int, unit: int, *, dropout_rate: float, norm_first: bool):
        super().__init__()
        self.norm_first, self.output_size = norm_first, att_unit
        self.attention = SelfAttention(att_unit)
        self.linear1 = Linear(att_unit, unit)
        self.activation: nn.Module = nn.GELU()
        self.linear2 = Linear(unit, att_unit)
        self.norm1 = nn.LayerNorm(att_unit)
        self.norm2 = nn.LayerNorm(att_unit)
        self.dropout = nn.Dropout(dropout_rate)
        self.latent: nn.Module = nn.Identity()

    def add_process(self, key: str, basis: Tuple[str, ...]) -> List[str]:
        """Make the activation of the feed-forward net a Gaussian process; its new parameters."""
        self.activation = GPActivation(self.linear1.out_features, "gelu", basis)
        return ["activation.gp_coefficients"]

    def add_latent(self, key: str, latent: nn.Module) -> None:
        """Put a latent variable behind s_t, the feed-forward net's output (Eq. 15)."""
        self.latent = latent

    def _feed_forward(self, x: torch.Tensor) -> torch.Tensor:
        """Theta_2 f(Theta_1 x), f the activation function, (B, L, M) -> (B, L, M)."""
        # also where a checkpointed pass runs without gradients: the units dropped are the same
        learns = self.training or torch.is_grad_enabled()
        if not (isinstance(self.activation, nn.GELU) and learns):
            hidden = self.dropout(self.activation(self.linear1(x)))
            return self.dropout(self.linear2(hidden))
        layers = (self.linear1, self.linear2)
        weights = (value for layer in layers for value in layer.weights())
        rate = self.dropout.p if self.training else 0.0
        return self.dropout(feed_forward(x, *weights, dropout_rate=rate))

    def forward(self, x: torch.Tensor, attend: Callable[..., torch.Tensor]) -> torch.Tensor:
        """Map (..., M) to (..., M); `attend` maps query, key and value to the heads' attention."""
        normed = self.norm1(x) if self.norm_first else x
        found = attend(*self.attention.in_proj(normed).chunk(3, dim=-1))
        x = x + self.dropout(self.attention.out_proj(found))
        if self.norm_first:
            return self.latent(x + self._feed_forward(self.norm2(x)))
        x = self.norm1(x)
        return self.norm2(self.latent(x + self._feed_forward(x)))
