"""Products with weights that are used for many rows, on a CPU by oneDNN, and their plain twins."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import itertools
import zlib
from typing import Any, Callable, Iterator, List, Optional, Tuple

import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.function import once_differentiable
from torch.utils.weak import WeakTensorKeyDictionary

from espnet_bayeslm.kernels import has_kernel

# From so many rows on packing a matrix costs less than it gains.
PACK_ROWS = 512
# Matrices of so many elements are packed for a beam search, and its usual number of rows.
KEEP_SIZE, KEEP_ROWS = 1 << 18, 32

# Multiplications from which on oneDNN pays without packing, though it compiles each new shape.
LARGE_PRODUCT = 1 << 28
# Shape of a matrix by which oneDNN is tried.
PROBE = (16, 16)
# What follows a product in oneDNN.
NO_FUNCTION: Tuple[str, List[float], str] = ("none", [], "")

Product = Callable[[torch.Tensor], torch.Tensor]
_search: contextvars.ContextVar[Optional[int]] = contextvars.ContextVar("search", default=None)
# {parameter: (the last search that used it, what tells its content, its product)}
_kept: Any = WeakTensorKeyDictionary()
# Numbers of searches
searches = itertools.count()


@contextlib.contextmanager
def keeping_packed(search: int) -> Iterator[None]:
    """Keep large matrices packed, from block to block, for the few rows of a beam search.

    A step then takes half the time on a CPU, and the weights twice the memory.

    Args:
        search: One of the numbers `searches`, a new one where weights may have changed: a matrix is
            compared with the packed one at its first use in each search.
    """
    token = _search.set(search)
    try:
        yield
    finally:
        _search.reset(token)


def _packed_product(
    weight: torch.Tensor, rows: int, bias: Optional[torch.Tensor] = None
) -> Product:
    """Fast twin of `product`; without gradients.

    oneDNN packs the weights once, where a plain product packs them at each call: for 1024 units
    a step then takes two thirds of the time on a CPU.
    """
    if weight.device.type != "cpu" or weight.numel() < 1 << 14 or not has_onednn(weight.dtype):
        return lambda x: F.linear(x, weight, bias)
    packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), rows)
    return lambda x: torch.ops.mkldnn._linear_pointwise(x, packed, bias, *NO_FUNCTION)


@functools.cache
@torch.no_grad()
def has_onednn(dtype: torch.dtype) -> bool:
    """True if oneDNN multiplies matrices of this type on this CPU, by the operators used here."""
    if dtype not in (torch.float32, torch.bfloat16):
        return False
    x, threads = torch.zeros(PROBE, dtype=dtype), torch.get_num_threads()
    # OpenMP's own threads would hang a process that is forked later
    torch.set_num_threads(1)
    try:  # what it can do is what it does: the environment may hold it to less than the CPU has
        packed = torch.ops.mkldnn._reorder_linear_weight(x, len(x))
        torch.ops.mkldnn._linear_pointwise(x, packed, None, *NO_FUNCTION)
    except (AttributeError, RuntimeError):
        return False
    finally:
        torch.set_num_threads(threads)
    return True


def uses_onednn(a: torch.Tensor, b: torch.Tensor) -> bool:
    """True if oneDNN multiplies a b^T, (M, K), (N, K) -> (M, N)."""
    is_large = a.device.type == "cpu" and a.numel() * len(b) >= LARGE_PRODUCT
    return is_large and has_onednn(a.dtype)


def multiply(a: torch.Tensor, b: torch.Tensor, bias: Optional[torch.Tensor] = None) -> torch.Tensor:
    """Product a b^T + bias, without gradients, (M, K), (N, K), (N,) -> (M, N), all of one type.

    On a CPU large ones by oneDNN, which needs a tenth to a third less time than `torch.mm`.
    """
    if not uses_onednn(a, b):
        y = a @ b.t()
        return y if bias is None else y.add_(bias)
    # the gradient of a sum is one number, repeated: oneDNN reads it hundreds of times slower
    a, b = (matrix.contiguous() if 0 in matrix.stride() else matrix for matrix in (a, b))
    if bias is None and not a.is_contiguous() and len(a) > len(b):
        # torch copies the first matrix for oneDNN, and the smaller one is copied sooner
        return torch.ops.mkldnn._linear_pointwise(b, a, None, *NO_FUNCTION).t().contiguous()
    return torch.ops.mkldnn._linear_pointwise(a, b, bias, *NO_FUNCTION)


class _Linear(torch.autograd.Function):
    """`linear` by `multiply`."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: Optional[torch.Tensor]
    ) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return multiply(x.flatten(0, -2), weight, bias).view(*x.shape[:-1], -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> Tuple[Any, ...]:  # type: ignore[override]
        x, weight = ctx.saved_tensors
        wants_x, wants_weight, wants_bias = ctx.needs_input_grad
        rows = grad.flatten(0, -2)
        d_x = multiply(rows, weight.t()).view(x.shape) if wants_x else None
        d_weight = weight_gradient(rows, x) if wants_weight else None
        return d_x, d_weight, rows.sum(0) if wants_bias else None


def _fast_linear(
    x: torch.Tensor, weight: torch.Tensor, bias: Optional[torch.Tensor] = None
) -> torch.Tensor:
    """Fast twin of `linear`: without gradients by packed weights.

    For many rows or within `keeping_packed`.
    """
    many, search = x.numel() >= PACK_ROWS * x.size(-1), _search.get()
    is_large = weight.numel() >= KEEP_SIZE and weight.device.type == "cpu"
    keeps = search is not None and is_large and isinstance(weight, nn.Parameter)
    differs = torch.is_autocast_enabled(x.device.type) or x.dtype != weight.dtype
    if torch.is_grad_enabled() and not differs and uses_onednn(x.flatten(0, -2), weight):
        found: torch.Tensor = _Linear.apply(x, weight, bias)
        return found
    if torch.is_grad_enabled() or not (many or keeps) or differs:
        return F.linear(x, weight, bias)
    rows = x.reshape(-1, x.size(-1))
    if many:
        result = _packed_product(weight, len(rows), bias)(rows)
    else:
        result = _kept_product(weight, search)(rows)
        result = result if bias is None else result.add_(bias)
    return result.view(*x.shape[:-1], -1)


@has_kernel(_fast_linear)
def linear(
    x: torch.Tensor, weight: torch.Tensor, bias: Optional[torch.Tensor] = None
) -> torch.Tensor:
    """Theta [x, 1], (..., in) -> (..., out); weight (out, in), bias (out,)."""
    return F.linear(x, weight, bias)


@has_kernel(_packed_product)
def product(weight: torch.Tensor, rows: int, bias: Optional[torch.Tensor] = None) -> Product:
    """`linear` with these weights, for many calls with x (rows, in)."""
    return lambda x: linear(x, weight, bias)


def _kept_product(weight: torch.Tensor, search: Optional[int]) -> Product:
    """Product x -> x weight^T, with the packed weights of the last call if they are unchanged."""
    known = _kept.get(weight)
    if known is None or known[0] != search:
        content = content_of(weight)
        if known is None or content != known[1]:
            known = (search, content, _packed_product(weight.detach(), KEEP_ROWS))
        known = _kept[weight] = (search, *known[1:])
    return known[2]


def content_of(weight: torch.Tensor) -> Tuple[Any, ...]:
    """Type, shape and checksum of a matrix on a CPU, of which a write to it changes one.

    The checksum is of all bits: neither a tensor's version, which writes to `.data` leave as it is,
    nor sums, which rounding and exchanged elements leave, tell so much. It takes the time of some
    steps of a search, and a search has many.
    """
    content: Any = weight.detach().contiguous().view(torch.uint8).numpy()
    return weight.dtype, tuple(weight.shape), zlib.crc32(content)


def weight_gradient(grad: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """A weight's gradient, (..., out), (..., in) -> (out, in)."""
    return multiply(grad.flatten(0, -2).t(), x.flatten(0, -2).t())
