"""Mixtures of basis functions (Eq. 25, Xue et al. 2022), chunk by chunk, with their gradients."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, NamedTuple, Sequence, Tuple

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

ATEN = torch.ops.aten
# Elements that are worked on at a time: they and their intermediates stay in the cache.
CHUNK = 1 << 15


def _sigmoid_of_double(x: torch.Tensor) -> torch.Tensor:
    return torch.add(x, x).sigmoid_()


class Term(NamedTuple):
    """A basis function as scale * psi(x) + offset, and psi's gradient.

    Attributes:
        psi: A function of torch, its result a new tensor.
        gradient: (gradient of psi's result, x, psi(x)) -> gradient of x.
        scale: Factor of psi.
        offset: Added to it.
    """

    psi: Callable[[torch.Tensor], torch.Tensor]
    gradient: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
    scale: float = 1.0
    offset: float = 0.0


TERMS: Dict[str, Term] = {
    "sigmoid": Term(torch.sigmoid, lambda grad, x, y: ATEN.sigmoid_backward(grad, y)),
    # tanh(x) = 2 sigmoid(2x) - 1
    "tanh": Term(
        _sigmoid_of_double, lambda grad, x, y: ATEN.sigmoid_backward(grad, y).mul_(2.0), 2.0, -1.0
    ),
    "relu": Term(F.relu, lambda grad, x, y: ATEN.threshold_backward(grad, x, 0)),
    "gelu": Term(F.gelu, lambda grad, x, y: ATEN.gelu_backward(grad, x)),
}


def scaled(
    coefficients: torch.Tensor, basis: Sequence[str]
) -> Tuple[List[torch.Tensor], torch.Tensor]:
    """Factor of each psi and the sum of all offsets, (units,) each."""
    pairs = list(zip(coefficients.unbind(0), (TERMS[name] for name in basis), strict=True))
    first, *others = [row * term.offset for row, term in pairs]
    return [row * term.scale for row, term in pairs], sum(others, first)


def gp_mixture(
    basis: Sequence[str],
    x: torch.Tensor,
    rows: Sequence[torch.Tensor],
    offset: torch.Tensor,
    out: torch.Tensor,
) -> torch.Tensor:
    """sum_j lambda_j phi_j(x) (Eq. 25), (N, units), with what `scaled` gives of lambda."""
    total = offset
    for name, row in zip(basis, rows, strict=True):
        total = torch.addcmul(total, TERMS[name].psi(x), row, out=out)
    return total


def gp_gradients(
    basis: Sequence[str], grad: torch.Tensor, x: torch.Tensor, coefficients: torch.Tensor
) -> Tuple[torch.Tensor, torch.Tensor]:
    """Gradients of x, (..., units), and of the coefficients in one pass over x."""
    units, terms = x.size(-1), [TERMS[name] for name in basis]
    rows, uppers = x.reshape(-1, units), grad.reshape(-1, units)
    slopes = torch.zeros_like(rows)
    # sums over all tokens, which bfloat16 does not hold
    exact = torch.promote_types(x.dtype, torch.float32)
    totals = x.new_zeros(len(basis), units, dtype=exact)
    factors, _ = scaled(coefficients, basis)
    for part, upper, out in zip(*map(chunks, (rows, uppers, slopes)), strict=True):
        for j, term in enumerate(terms):
            y = term.psi(part)
            out.add_(term.gradient(factors[j].expand_as(part), part, y))
            totals[j].add_(y.mul_(upper).sum(0, dtype=exact), alpha=term.scale)
        out.mul_(upper)
    for j, term in enumerate(terms):
        if term.offset:
            totals[j].add_(uppers.sum(0, dtype=exact), alpha=term.offset)
    return slopes.view(x.shape), totals.to(x.dtype)


class Mixture(torch.autograd.Function):
    """`gp_mixture` in chunks of rows, keeping nothing for the backward pass but its input."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, coefficients: torch.Tensor, basis: Tuple[str, ...]
    ) -> torch.Tensor:
        """(..., units) -> (..., units)."""
        ctx.save_for_backward(x, coefficients)
        ctx.basis = basis
        rows = x.reshape(-1, x.size(-1))
        factors, result = scaled(coefficients, basis), torch.empty_like(rows)
        for part, out in zip(chunks(rows), chunks(result), strict=True):
            gp_mixture(basis, part, *factors, out=out)
        return result.view(x.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> Tuple[Any, ...]:  # type: ignore[override]
        """Compute the basis functions again, chunk by chunk."""
        x, coefficients = ctx.saved_tensors
        return *gp_gradients(ctx.basis, grad, x, coefficients), None


def chunks(rows: torch.Tensor) -> Tuple[torch.Tensor, ...]:
    """Runs of rows that fit a CPU's cache, all rows on other devices; (N, units)."""
    if rows.device.type != "cpu":
        return (rows,)
    return rows.split(max(1, CHUNK // rows.size(1)))


def mixture(x: torch.Tensor, coefficients: torch.Tensor, basis: Tuple[str, ...]) -> torch.Tensor:
    """Fast twin of `layers.gp.mixture`."""
    return Mixture.apply(x, coefficients.to(x.dtype), basis)
