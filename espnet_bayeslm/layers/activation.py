"""Activation functions drawn from a Gaussian process (Eq. 25-28, Xue et al. 2022).

In the weight-space view a unit's activation is f(x) = m(x) + sum_j lambda_j phi_j(x) with basis
functions phi_j and random coefficients lambda_j. The mean function m is 0 where f replaces an
activation function, whose coefficient then starts at 1, and the identity where it replaces none.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Optional, Sequence, Tuple

import torch
import torch.nn.functional as F
from torch import nn

from espnet_bayeslm.bayes import UncertainModule
from espnet_bayeslm.utils.errors import InputError

BASIS = ("sigmoid", "tanh", "relu", "gelu")
RANDOM = ("coefficients", "weights")
# Elements that are worked on at a time: they and their intermediates stay in the cache.
CHUNK = 1 << 15


def tanh(x: torch.Tensor, out: Optional[torch.Tensor] = None) -> torch.Tensor:
    """Return 2 sigmoid(2x) - 1: three times as fast as torch's tanh on a CPU, 1e-7 off."""
    return torch.mul(x, 2, out=out).sigmoid_().mul_(2).sub_(1)


FUNCTIONS: Dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sigmoid": torch.sigmoid,
    "tanh": tanh,
    "relu": F.relu,
    "gelu": F.gelu,
}
# (gradient of the output, input, output) -> gradient of the input
GRADIENTS: Dict[str, Callable[..., torch.Tensor]] = {
    "sigmoid": lambda grad, x, y: torch.ops.aten.sigmoid_backward(grad, y),
    "tanh": lambda grad, x, y: torch.ops.aten.tanh_backward(grad, y),
    "relu": lambda grad, x, y: torch.ops.aten.threshold_backward(grad, x, 0),
    "gelu": lambda grad, x, y: torch.ops.aten.gelu_backward(grad, x),
}


def mix(
    x: torch.Tensor,
    coefficients: torch.Tensor,
    basis: Sequence[str],
    out: Optional[torch.Tensor] = None,
) -> torch.Tensor:
    """Return sum_j lambda_j phi_j(x) (Eq. 25).

    Args:
        x: (N, units).
        coefficients: (len(basis), units).
        basis: Names of the basis functions.
        out: Where the result goes, (N, units).
    """
    rows = coefficients.unbind(0)
    total = torch.mul(FUNCTIONS[basis[0]](x), rows[0], out=out)
    for name, row in zip(basis[1:], rows[1:], strict=True):
        total.addcmul_(FUNCTIONS[name](x), row)
    return total


def mix_gradients(
    grad: torch.Tensor,
    x: torch.Tensor,
    coefficients: torch.Tensor,
    basis: Sequence[str],
    grad_coefficients: torch.Tensor,
) -> torch.Tensor:
    """Return the gradient of `mix` with respect to x, and add that of the coefficients.

    Args:
        grad: Gradient of the result, (N, units).
        x: (N, units).
        coefficients: (len(basis), units).
        basis: Names of the basis functions.
        grad_coefficients: Is added to, (len(basis), units).
    """
    total = None
    for name, row, grad_row in zip(basis, coefficients, grad_coefficients, strict=True):
        y = FUNCTIONS[name](x)
        inner = GRADIENTS[name](grad * row, x, y)
        grad_row += y.mul_(grad).sum(0)
        total = inner if total is None else total.add_(inner)
    assert total is not None
    return total


class Mixture(torch.autograd.Function):
    """`mix` in chunks of rows, keeping nothing for the backward pass but its input."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, coefficients: torch.Tensor, basis: Tuple[str, ...]
    ) -> torch.Tensor:
        """(..., units) -> (..., units)."""
        ctx.save_for_backward(x, coefficients)
        ctx.basis = basis
        rows = x.reshape(-1, x.size(-1))
        result = torch.empty_like(rows)
        for part, out in zip(_chunks(rows), _chunks(result), strict=True):
            mix(part, coefficients, basis, out=out)
        return result.view(x.shape)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor, None]:  # type: ignore[override]
        """Compute the basis functions again, chunk by chunk."""
        x, coefficients = ctx.saved_tensors
        rows = x.reshape(-1, x.size(-1))
        grad_x, grad_coefficients = torch.empty_like(rows), torch.zeros_like(coefficients)
        grad_rows = grad.reshape(rows.shape)
        parts = zip(_chunks(grad_rows), _chunks(rows), _chunks(grad_x), strict=True)
        for part, x_part, out in parts:
            out.copy_(mix_gradients(part, x_part, coefficients, ctx.basis, grad_coefficients))
        return grad_x.view(x.shape), grad_coefficients, None


def _chunks(rows: torch.Tensor) -> Tuple[torch.Tensor, ...]:
    return rows.split(max(1, CHUNK // rows.size(1)))


def mixture(x: torch.Tensor, coefficients: torch.Tensor, basis: Tuple[str, ...]) -> torch.Tensor:
    """Return sum_j lambda_j phi_j(x), (..., units), in x's dtype."""
    return Mixture.apply(x, coefficients.to(x.dtype), basis)


def initial_coefficients(
    units: int, basis: Sequence[str], native: Optional[str] = None
) -> nn.Parameter:
    """Return coefficients (len(basis), units): 1 for the native activation, 0 for the others."""
    coefficients = torch.zeros(len(basis), units)
    if native is not None:
        coefficients[list(basis).index(native)] = 1.0
    return nn.Parameter(coefficients)


def check_gp_options(
    location: str, random: Any, basis: Any, *, native: Optional[str]
) -> Tuple[Tuple[str, ...], Tuple[str, ...]]:
    """Return what is random and the basis functions, as tuples.

    Args:
        location: Where they are meant for.
        random: Of `coefficients` and `weights`, one or both.
        basis: Names of basis functions.
        native: The activation function that is replaced (None: none is).

    Raises:
        InputError: Neither list can be used.
    """
    for option, value, valid in (("random", random, RANDOM), ("basis", basis, BASIS)):
        names = list(map(str, value)) if isinstance(value, (list, tuple)) else []
        if not names or len(set(names)) < len(names) or not set(names) <= set(valid):
            raise InputError(
                f"{option} of {location}: expected a list of some of {', '.join(valid)},"
                f" each once, got {value!r}"
            )
    if native is not None and native not in basis:
        raise InputError(
            f"basis of {location}: it must hold {native}, the function that it starts as,"
            f" got {', '.join(basis)}"
        )
    return tuple(random), tuple(basis)


class GPActivation(UncertainModule):
    """An activation function per unit, a random mixture of basis functions (Eq. 26).

    Args:
        units: Number of units.
        native: The activation function that it replaces and starts as.
        basis: Names of the basis functions.
    """

    def __init__(self, units: int, native: str, basis: Tuple[str, ...] = BASIS):
        super().__init__()
        self.basis = basis
        self.gp_coefficients = initial_coefficients(units, basis, native)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (..., units) to (..., units)."""
        return mixture(x, self.value("gp_coefficients"), self.basis)
