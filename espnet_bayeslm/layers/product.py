"""Products with weights that are used for many rows, on a CPU by oneDNN."""

from __future__ import annotations

import functools
from typing import Any, Callable, Optional, Tuple

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

# From so many rows on packing a matrix costs less than it gains.
PACK_ROWS = 512


def product(
    weight: torch.Tensor, rows: int, bias: Optional[torch.Tensor] = None, *, gelu: bool = False
) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return x -> x weight^T + bias, without gradients, for calls with x (rows, in_features).

    With `gelu`, GELU of that.

    oneDNN packs the weights once, where a plain product packs them at each call: for 1024 units
    a step then takes two thirds of the time on a CPU.
    """
    mkldnn = getattr(torch.ops, "mkldnn", None)
    if (
        weight.device.type != "cpu"
        or weight.dtype not in (torch.float32, torch.bfloat16)
        or weight.numel() < 1 << 14
        or not torch.backends.mkldnn.is_available()
        or not hasattr(mkldnn, "_reorder_linear_weight")
        or not hasattr(mkldnn, "_linear_pointwise")
        or (weight.dtype == torch.bfloat16 and not _has_bfloat16())
    ):
        return lambda x: _plain(x, weight, bias, gelu)
    packed = mkldnn._reorder_linear_weight(weight.contiguous(), rows)
    last = ("gelu", [], "none") if gelu else ("none", [], "")
    return lambda x: mkldnn._linear_pointwise(x, packed, bias, *last)


@functools.cache
def _has_bfloat16() -> bool:
    """Return whether oneDNN computes in bfloat16 on this CPU."""
    supported = getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: False)
    return bool(supported())


def _plain(
    x: torch.Tensor, weight: torch.Tensor, bias: Optional[torch.Tensor], gelu: bool
) -> torch.Tensor:
    y = F.linear(x, weight, bias)
    return F.gelu(y) if gelu else y


def linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, *, gelu: bool = False
) -> torch.Tensor:
    """Return x weight^T + bias or GELU of that, (..., in) -> (..., out).

    Without gradients and for many rows by `product`.
    """
    many = x.numel() >= PACK_ROWS * x.size(-1)
    if torch.is_grad_enabled() or not many or torch.is_autocast_enabled(x.device.type):
        return _plain(x, weight, bias, gelu)
    rows = x.reshape(-1, x.size(-1))
    return product(weight, len(rows), bias, gelu=gelu)(rows).view(*x.shape[:-1], -1)


def weight_gradient(grad: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Return a weight's gradient, (..., out), (..., in) -> (out, in)."""
    return grad.flatten(0, -2).t() @ x.flatten(0, -2)


class PackedLinear(torch.autograd.Function):
    """`F.linear` by `product`: the same weights, packed, are faster for many rows too."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor
    ) -> torch.Tensor:
        """(..., in), (out, in), (out,) -> (..., out)."""
        ctx.save_for_backward(x, weight)
        rows = x.flatten(0, -2)
        return product(weight, len(rows))(rows).add_(bias).view(*x.shape[:-1], -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> Tuple[torch.Tensor, ...]:  # type: ignore[override]
        """Return the gradients of `forward`'s arguments."""
        x, weight = ctx.saved_tensors
        rows = grad.flatten(0, -2)
        grad_x = product(weight.t(), len(rows))(rows).view(x.shape)
        return grad_x, weight_gradient(grad, x), rows.sum(0)


def packed_linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Return x weight^T + bias, (..., in) -> (..., out)."""
    device = x.device.type
    if device != "cpu" or x.dtype != weight.dtype or torch.is_autocast_enabled(device):
        return F.linear(x, weight, bias)
    return PackedLinear.apply(x.contiguous(), weight, bias)
