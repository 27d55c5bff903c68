"""The kind `gp`: activation functions drawn from a Gaussian process (Eq. 25-28, Xue et al. 2022).

In the weight-space view a unit's activation is f(x) = m(x) + sum_j lambda_j phi_j(x) with basis
functions phi_j and random coefficients lambda_j. The mean function m is 0 where f replaces an
activation function, whose coefficient then starts at 1, and the identity where it replaces none.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any, Callable, Dict, NamedTuple, Optional, Sequence, Tuple

import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.function import once_differentiable

from espnet_bayeslm.bayes import Place
from espnet_bayeslm.kernels import has_kernel
from espnet_bayeslm.kinds.bayes import Bayes
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.options import option

FUNCTIONS: Dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "relu": F.relu,
    "gelu": F.gelu,
}
BASIS = tuple(FUNCTIONS)
RANDOM = ("coefficients", "weights")
ATEN = torch.ops.aten
# Elements that are worked on at a time: they and their intermediates stay in the cache.
CHUNK = 1 << 15


class Term(NamedTuple):
    """A basis function as scale * psi(x) + offset, and psi's gradient.

    Attributes:
        psi: A function of torch, its result a new tensor.
        gradient: (gradient of psi's result, x, psi(x)) -> gradient of x.
    """

    psi: Callable[[torch.Tensor], torch.Tensor]
    gradient: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
    scale: float = 1.0
    offset: float = 0.0


TERMS: Dict[str, Term] = {
    "sigmoid": Term(torch.sigmoid, lambda grad, x, y: ATEN.sigmoid_backward(grad, y)),
    # tanh(x) = 2 sigmoid(2x) - 1, five times as fast as torch.tanh
    "tanh": Term(
        lambda x: torch.add(x, x).sigmoid_(),
        lambda grad, x, y: ATEN.sigmoid_backward(grad, y).mul_(2.0),
        scale=2.0,
        offset=-1.0,
    ),
    "relu": Term(F.relu, lambda grad, x, y: ATEN.threshold_backward(grad, x, 0)),
    "gelu": Term(F.gelu, lambda grad, x, y: ATEN.gelu_backward(grad, x)),
}


class GPFunction:
    """The function f(x) = sum_j lambda_j phi_j(x) (Eq. 25), and its derivatives.

    Args:
        coefficients: lambda, (J, units).
        basis: Names of phi.
    """

    def __init__(self, coefficients: torch.Tensor, basis: Sequence[str]):
        self.coefficients, self.basis = coefficients, basis
        self.terms = [TERMS[name] for name in basis]
        # no tensor of numbers, which would go from the host to the device
        pairs = list(zip(coefficients.detach(), self.terms, strict=True))
        self.factors = [row * term.scale for row, term in pairs]
        first, *others = [row * term.offset for row, term in pairs]
        self.offset = sum(others, first)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """f(x), (..., units); autograd knows its gradients."""
        return mixture(x, self.coefficients, self.basis)

    def value(self, x: torch.Tensor, out: Optional[torch.Tensor] = None) -> torch.Tensor:
        """f(x), (N, units), without autograd."""
        total: Any = self.offset
        for term, row in zip(self.terms, self.factors, strict=True):
            total = torch.addcmul(total, term.psi(x), row, out=out)
        return total

    def slope(self, x: torch.Tensor) -> torch.Tensor:
        """f'(x), (..., units)."""
        rows = x.reshape(-1, x.size(-1))
        found = torch.zeros_like(rows)
        for part, out in zip(_chunks(rows), _chunks(found), strict=True):
            self._add(part, slope=out)
        return found.view(x.shape)

    def gradient(self, upper: torch.Tensor, x: torch.Tensor, y: torch.Tensor, out: Any) -> None:
        """Gradient of x, from the gradient `upper` of the value y."""
        torch.mul(self.slope(x), upper, out=out)

    def sums(
        self, x: torch.Tensor, upper: torch.Tensor, of_x: Optional[torch.Tensor] = None
    ) -> torch.Tensor:
        """Gradient of the coefficients, from the gradient `upper` of f(x).

        The gradient of x goes to `of_x`, if given: zeros, (N, units).
        """
        rows, uppers = (tensor.reshape(-1, x.size(-1)) for tensor in (x, upper))
        # sums over all tokens, which bfloat16 does not hold
        exact = torch.promote_types(x.dtype, torch.float32)
        found = torch.zeros_like(self.coefficients, dtype=exact)
        outs: Any = itertools.repeat(None) if of_x is None else _chunks(of_x)
        for part, up, out in zip(_chunks(rows), _chunks(uppers), outs, strict=False):
            self._add(part, out, found, up)
            if out is not None:
                out.mul_(up)
        for term, total in zip(self.terms, found, strict=True):
            if term.offset:
                total.add_(uppers.sum(0, dtype=exact), alpha=term.offset)
        return found.to(x.dtype)

    def _add(
        self,
        x: torch.Tensor,
        slope: Optional[torch.Tensor] = None,
        sums: Optional[torch.Tensor] = None,
        upper: Any = None,
    ) -> None:
        """Add to what is given, each basis function computed once; x is (N, units)."""
        for n, (term, row) in enumerate(zip(self.terms, self.factors, strict=True)):
            y = term.psi(x)
            if slope is not None:
                slope.add_(term.gradient(row.expand_as(x), x, y))
            if sums is not None:
                sums[n].add_(y.mul_(upper).sum(0, dtype=sums.dtype), alpha=term.scale)


class _Mixture(torch.autograd.Function):
    """`mixture` in chunks of rows, keeping nothing for the backward pass but its input."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, coefficients: torch.Tensor, basis: Sequence[str]
    ) -> torch.Tensor:
        ctx.save_for_backward(x, coefficients)
        ctx.basis, function = basis, GPFunction(coefficients, basis)
        rows = x.reshape(-1, x.size(-1))
        result = torch.empty_like(rows)
        for part, out in zip(_chunks(rows), _chunks(result), strict=True):
            function.value(part, out=out)
        return result.view(x.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> Tuple[Any, ...]:  # type: ignore[override]
        x, coefficients = ctx.saved_tensors
        of_x = torch.zeros_like(x, memory_format=torch.contiguous_format)
        sums = GPFunction(coefficients, ctx.basis).sums(x, grad, of_x.view(-1, x.size(-1)))
        return of_x, sums, None


def _chunks(rows: torch.Tensor) -> Tuple[torch.Tensor, ...]:
    """Runs of rows that fit a CPU's cache, all rows on other devices; (N, units)."""
    if rows.device.type != "cpu":
        return (rows,)
    return rows.split(max(1, CHUNK // rows.size(1)))


def _fast_mixture(
    x: torch.Tensor, coefficients: torch.Tensor, basis: Sequence[str]
) -> torch.Tensor:
    """Fast twin of `mixture`."""
    return _Mixture.apply(x, coefficients.to(x.dtype), basis)


@has_kernel(_fast_mixture)
def mixture(x: torch.Tensor, coefficients: torch.Tensor, basis: Sequence[str]) -> torch.Tensor:
    """sum_j lambda_j phi_j(x) (Eq. 25), (..., units), in x's dtype.

    The coefficients lambda are (J, units); `basis` has the names of phi.
    """
    total = x.new_zeros(())
    for name, row in zip(basis, coefficients.to(x.dtype), strict=True):
        total = torch.addcmul(total, FUNCTIONS[name](x), row)
    return total


class Process(NamedTuple):
    """A random mixture of basis functions, as the kind `gp` hands it to a layer.

    Attributes:
        basis: Names of the basis functions.
        native: The activation function that it replaces; None: it is added to the identity.
    """

    basis: Tuple[str, ...]
    native: Optional[str]

    def function(self, coefficients: torch.Tensor) -> GPFunction:
        """Function x -> sum_j lambda_j phi_j(x); the coefficients are (J, units)."""
        return GPFunction(coefficients, self.basis)

    def start(self, units: int) -> torch.Tensor:
        """Coefficients (J, units) of the function that it starts as: 1 for the native, else 0."""
        coefficients = torch.zeros(len(self.basis), units)
        if self.native is not None:
            coefficients[self.basis.index(self.native)] = 1.0
        return coefficients

    def activation(self, units: int) -> GPActivation:
        """Layer of `units` such functions."""
        return GPActivation(units, self)


@dataclasses.dataclass
class GP(Bayes):
    """A function of units is a Gaussian process, its coefficients and weights Gaussian (Eq. 26).

    The parameters of the process have names that begin with `gp_`.
    """

    name = "gp"
    needs = "function"
    colour = "tab:green"
    own_prefixes = ("gp_",)

    random: Any = option("List of `coefficients`, `weights`, one, both or none.", RANDOM)
    basis: Any = option("List of basis functions: some of sigmoid, tanh, relu, gelu.", BASIS)

    def apply(self, place: Place) -> None:
        """Replace the function of a place."""
        function, random, basis = place.position.function, self.random, self.basis
        check_gp_options(place.location, random, basis, native=function.native)
        coefficients, *more = place.add_process(Process(tuple(basis), function.native))
        posterior = place.lm.posterior
        if "coefficients" in random:
            posterior.add([coefficients], self, place.location)
        if "weights" in random:
            posterior.add([*more, *place.weights_of(function)], self, place.location)

    def point_form(self) -> Any:
        """Configuration of the exported point estimate: its basis functions."""
        basis = {name: value for name, value in self.options.items() if name == "basis"}
        return {"kind": self.name, "random": [], **basis}


def check_gp_options(location: str, random: Any, basis: Any, *, native: Optional[str]) -> None:
    """Check the random parts of a Gaussian process, and its basis against the `native` function."""
    for name, value, valid in (("random", random, RANDOM), ("basis", basis, BASIS)):
        names = list(map(str, value)) if isinstance(value, (list, tuple)) else []
        is_list = isinstance(value, (list, tuple)) and (names or name == "random")
        if not is_list or len(set(names)) < len(names) or not set(names) <= set(valid):
            raise InputError(
                f"{name} of {location}: expected a list of some of {', '.join(valid)},"
                f" each once, got {value!r}"
            )
    if native is not None and native not in basis:
        raise InputError(
            f"basis of {location}: it must hold {native}, the function that it starts as,"
            f" got {', '.join(basis)}"
        )


class GPActivation(nn.Module):
    """An activation function per unit, a random mixture of basis functions (Eq. 26).

    It replaces the `native` function, and starts as that.
    """

    def __init__(self, units: int, process: Process):
        super().__init__()
        self.process = process
        self.gp_coefficients = nn.Parameter(process.start(units))

    def reset(self) -> None:
        """Make it the function that it starts as."""
        self.gp_coefficients.data.copy_(self.process.start(self.gp_coefficients.size(1)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (..., units) to (..., units)."""
        return mixture(x, self.gp_coefficients, self.process.basis)
