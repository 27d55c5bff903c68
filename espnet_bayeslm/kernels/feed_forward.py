"""The Transformer's feed-forward net in training, with little kept for the backward pass."""

from __future__ import annotations

from typing import Any, Optional, Tuple

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

from espnet_bayeslm.kernels.product import multiply, weight_gradient

# Subtracted from the input of a dropped unit: GELU and its derivative are 0 there.
FAR = 1e4
# A unit is dropped by 16 random bits, so its probability is a multiple of 2^-16.
LEVELS = 1 << 16
BITS = 64


def feed_forward(
    x: torch.Tensor,
    weight1: torch.Tensor,
    bias1: torch.Tensor,
    weight2: torch.Tensor,
    bias2: torch.Tensor,
    *,
    dropout_rate: float,
) -> torch.Tensor:
    """Fast twin of `layers.transformer.feed_forward`.

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
