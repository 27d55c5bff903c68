"""Transformer block (Eq. 11-16, Xue et al. 2022)."""

from __future__ import annotations

import math
from typing import Any, Callable, List, Optional, Tuple

import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.function import once_differentiable

from espnet_bayeslm.kernels import has_kernel
from espnet_bayeslm.kernels.product import multiply, weight_gradient
from espnet_bayeslm.layers.linear import Linear

# Subtracted from the input of a dropped unit: GELU and its derivative are 0 there.
FAR = 1e4
# A unit is dropped by 16 random bits, so its probability is a multiple of 2^-16.
LEVELS = 1 << 16
BITS = 64


def dropped(like: torch.Tensor, level: int) -> torch.Tensor:
    """Mask, 1 for each unit to drop and 0 elsewhere, in the type and shape of `like`.

    The probability is level / LEVELS. `bernoulli_` takes six times as long on a CPU: it makes
    64 random bits for each unit.
    """
    mask = torch.empty_like(like, memory_format=torch.contiguous_format)
    if like.device.type != "cpu" or level >= LEVELS:
        return mask.bernoulli_(level / LEVELS)
    words = -(-like.numel() // (BITS // 16))
    # from the least number on: all 64 bits are random
    bits = torch.empty(words, dtype=torch.int64).random_(-(1 << (BITS - 1)), None)
    numbers = bits.view(torch.int16)[: like.numel()].view(like.shape)
    return torch.lt(numbers, level - LEVELS // 2, out=mask)


class _FeedForward(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight1: torch.Tensor,
        bias1: torch.Tensor,
        weight2: torch.Tensor,
        bias2: torch.Tensor,
        dropout_rate: float,
    ) -> torch.Tensor:
        rows = x.flatten(0, -2)
        inner = multiply(rows, weight1, bias1)
        level = round(dropout_rate * LEVELS)
        if level > 0:
            inner.sub_(dropped(inner, level), alpha=FAR)
        rate = level / LEVELS
        ctx.save_for_backward(rows, weight1, weight2, inner)
        # of the kept units; where there are fewer elements, before and after the net of D units
        ctx.scale = 1 / (1 - rate) if rate < 1 else 0.0
        y = multiply(F.gelu(inner), weight2).mul_(ctx.scale).add_(bias2)
        return y.view(x.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> Tuple[Optional[torch.Tensor], ...]:  # type: ignore[override]
        rows, weight1, weight2, inner = ctx.saved_tensors
        d_y = grad.flatten(0, -2)
        d_scaled = d_y * ctx.scale
        d_weight2 = weight_gradient(d_scaled, F.gelu(inner))
        d_inner = torch.ops.aten.gelu_backward(multiply(d_scaled, weight2.t()), inner)
        d_weight1 = weight_gradient(d_inner, rows)
        d_x = multiply(d_inner, weight1.t()).view(grad.shape)
        return d_x, d_weight1, d_inner.sum(0), d_weight2, d_y.sum(0), None


def _fast_feed_forward(
    x: torch.Tensor,
    weight1: torch.Tensor,
    bias1: torch.Tensor,
    weight2: torch.Tensor,
    bias2: torch.Tensor,
    *,
    dropout_rate: float,
) -> torch.Tensor:
    """Fast twin of `feed_forward`.

    Of the D hidden units only the input of GELU is kept for the backward pass, a third of what
    autograd would keep. Under autocast all of it is in the precision of the products.
    """
    device = x.device.type
    tensors: Tuple[torch.Tensor, ...] = (x, weight1, bias1, weight2, bias2)
    if torch.is_autocast_enabled(device):
        low = torch.get_autocast_dtype(device)
        tensors = tuple(tensor.to(low) for tensor in tensors)
    with torch.autocast(device, enabled=False):
        y: torch.Tensor = _FeedForward.apply(*tensors, dropout_rate)
    return y


@has_kernel(_fast_feed_forward)
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
        # Theta_q, Theta_k, Theta_v are one matrix
        in_proj, out_proj = Linear(att_unit, 3 * att_unit), Linear(att_unit, att_unit)
        nn.init.xavier_uniform_(in_proj.weight)
        nn.init.zeros_(in_proj.bias)
        nn.init.zeros_(out_proj.bias)
        self.attention = nn.ModuleDict({"in_proj": in_proj, "out_proj": out_proj})
        self.linear1 = Linear(att_unit, unit)
        self.activation: nn.Module = nn.GELU()
        self.linear2 = Linear(unit, att_unit)
        self.norm1 = nn.LayerNorm(att_unit)
        self.norm2 = nn.LayerNorm(att_unit)
        self.dropout = nn.Dropout(dropout_rate)
        self.latent: nn.Module = nn.Identity()

    def add_process(self, key: str, process: Any) -> List[str]:
        """Make the activation of the feed-forward net a `Process`; names of its parameters."""
        self.activation = process.activation(self.linear1.out_features)
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
        found = attend(*self.attention["in_proj"](normed).chunk(3, dim=-1))
        x = x + self.dropout(self.attention["out_proj"](found))
        if self.norm_first:
            return self.latent(x + self._feed_forward(self.norm2(x)))
        x = self.norm1(x)
        return self.norm2(self.latent(x + self._feed_forward(x)))
