"""Products with weights that are used for many rows, on a CPU by oneDNN."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import logging
from typing import Any, Callable, Iterator, List, Optional, Tuple

import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.function import once_differentiable
from torch.utils.weak import WeakTensorKeyDictionary

from espnet_bayeslm.kernels.contents import content_number

# From so many rows on packing a matrix costs less than it gains.
PACK_ROWS = 512
# Matrices of so many elements are packed for a beam search, and its usual number of rows.
KEEP_SIZE, KEEP_ROWS = 1 << 18, 32

# Multiplications from which on oneDNN pays without packing, though it compiles each new shape.
LARGE_PRODUCT = 1 << 28
# What follows a product in oneDNN.
NO_FUNCTION: Tuple[str, List[float], str] = ("none", [], "")

_keeps: contextvars.ContextVar[bool] = contextvars.ContextVar("keeps", default=False)
# {parameter: (the number of its content, its product)}
_kept = WeakTensorKeyDictionary()


@contextlib.contextmanager
def keeping_packed() -> Iterator[None]:
    """Keep large matrices packed, from call to call, for the few rows of a beam search.

    A step then takes half the time on a CPU, and the weights twice the memory.
    """
    token = _keeps.set(True)
    try:
        yield
    finally:
        _keeps.reset(token)


def product(
    weight: torch.Tensor, rows: int, bias: Optional[torch.Tensor] = None, *, gelu: bool = False
) -> Callable[[torch.Tensor], torch.Tensor]:
    """Fast twin of `layers.linear.product`; without gradients.

    oneDNN packs the weights once, where a plain product packs them at each call: for 1024 units
    a step then takes two thirds of the time on a CPU.
    """
    if weight.device.type != "cpu" or weight.numel() < 1 << 14 or not has_onednn(weight.dtype):
        return lambda x: _plain(x, weight, bias, gelu)
    packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), rows)
    last = ("gelu", [], "none") if gelu else NO_FUNCTION
    return lambda x: torch.ops.mkldnn._linear_pointwise(x, packed, bias, *last)


@functools.cache
@torch.no_grad()
def has_onednn(dtype: torch.dtype) -> bool:
    """True if oneDNN multiplies matrices of this type on this CPU, by the operators used here."""
    if dtype not in (torch.float32, torch.bfloat16):
        return False
    x = torch.zeros(16, 16, dtype=dtype)
    try:  # what it can do is what it does: the environment may hold it to less than the CPU has
        packed = torch.ops.mkldnn._reorder_linear_weight(x, len(x))
        torch.ops.mkldnn._linear_pointwise(x, packed, None, *NO_FUNCTION)
    except (AttributeError, RuntimeError):
        return False
    return True


@functools.cache
def warn_of_emulation() -> None:
    """Log, once, that this CPU has no bfloat16."""
    logging.warning(
        "autocast to bfloat16, which this CPU does not have: products are many times slower than in"
        " float32, and an LSTM stays in float32. Leave autocast out."
    )


def _is_large(x: torch.Tensor, weight: torch.Tensor) -> bool:
    """True if oneDNN pays for x weight^T without packing, (..., K), (N, K)."""
    is_large = x.device.type == "cpu" and x.numel() * len(weight) >= LARGE_PRODUCT
    return is_large and has_onednn(x.dtype)


def multiply(a: torch.Tensor, b: torch.Tensor, bias: Optional[torch.Tensor] = None) -> torch.Tensor:
    """Product a b^T + bias, without gradients, (M, K), (N, K), (N,) -> (M, N), all of one type.

    On a CPU large ones by oneDNN, which needs a tenth to a third less time than `torch.mm`.
    """
    if not _is_large(a, b):
        y = a @ b.t()
        return y if bias is None else y.add_(bias)
    # the gradient of a sum is one number, repeated: oneDNN reads it hundreds of times slower
    a, b = (matrix.contiguous() if 0 in matrix.stride() else matrix for matrix in (a, b))
    if bias is None and not a.is_contiguous() and len(a) > len(b):
        # torch copies the first matrix for oneDNN, and the smaller one is copied sooner
        return _by_onednn(b, a).t().contiguous()
    return _by_onednn(a, b, bias)


def _by_onednn(
    a: torch.Tensor, b: torch.Tensor, bias: Optional[torch.Tensor] = None
) -> torch.Tensor:
    y: torch.Tensor = torch.ops.mkldnn._linear_pointwise(a, b, bias, *NO_FUNCTION)
    return y


def _plain(
    x: torch.Tensor, weight: torch.Tensor, bias: Optional[torch.Tensor], gelu: bool
) -> torch.Tensor:
    y = F.linear(x, weight, bias)
    return F.gelu(y) if gelu else y


def linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: Optional[torch.Tensor] = None,
    *,
    gelu: bool = False,
) -> torch.Tensor:
    """Fast twin of `layers.linear.linear`.

    Without gradients by `product`, for many rows or within `keeping_packed`; with them large
    products by `multiply`.
    """
    if torch.is_grad_enabled():
        return _trained(x, weight, bias, gelu)
    many = x.numel() >= PACK_ROWS * x.size(-1)
    keeps = _keeps.get() and weight.numel() >= KEEP_SIZE and isinstance(weight, nn.Parameter)
    if not (many or keeps) or torch.is_autocast_enabled(x.device.type) or x.dtype != weight.dtype:
        return _plain(x, weight, bias, gelu)
    rows = x.reshape(-1, x.size(-1))
    if many:
        result = product(weight, len(rows), bias, gelu=gelu)(rows)
    else:
        result = _kept_product(weight)(rows)
        result = result if bias is None else result.add_(bias)
        result = F.gelu(result) if gelu else result
    return result.view(*x.shape[:-1], -1)


def _trained(
    x: torch.Tensor, weight: torch.Tensor, bias: Optional[torch.Tensor], gelu: bool
) -> torch.Tensor:
    """Compute `linear` with gradients."""
    lowered = torch.is_autocast_enabled(x.device.type)
    if lowered or x.dtype != weight.dtype or not _is_large(x, weight):
        return _plain(x, weight, bias, gelu)
    y = _Linear.apply(x, weight, bias)
    return F.gelu(y) if gelu else y


def _kept_product(weight: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    """Product x -> x weight^T, with the packed weights of the last call if they are unchanged."""
    known, number = _kept.get(weight), content_number(weight)
    if number is None or not has_onednn(weight.dtype):
        return lambda x: F.linear(x, weight)
    if known is None or known[0] != number:
        # of a copy: oneDNN asks for its memory as if to write there
        known = _kept[weight] = (number, product(weight.detach().clone(), KEEP_ROWS))
    return known[1]


def weight_gradient(grad: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """A weight's gradient, (..., out), (..., in) -> (out, in)."""
    return multiply(grad.flatten(0, -2).t(), x.flatten(0, -2).t())


class _Linear(torch.autograd.Function):
    """`F.linear` by `multiply`."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: Optional[torch.Tensor]
    ) -> torch.Tensor:
        """(..., in), (out, in), (out,) -> (..., out)."""
        ctx.save_for_backward(x, weight)
        y = multiply(x.flatten(0, -2), weight, bias)
        return y.view(*x.shape[:-1], -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> Tuple[Optional[torch.Tensor], ...]:  # type: ignore[override]
        """Gradients of `forward`'s arguments."""
        x, weight = ctx.saved_tensors
        rows = grad.flatten(0, -2)
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        return (
            multiply(rows, weight.t()).view(x.shape) if needs_x else None,
            weight_gradient(grad, x) if needs_weight else None,
            rows.sum(0) if needs_bias else None,
        )
