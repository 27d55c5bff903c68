"""Activation functions drawn from a Gaussian process (Eq. 25-28, Xue et al. 2022).

In the weight-space view a unit's activation is f(x) = m(x) + sum_j lambda_j phi_j(x) with basis
functions phi_j and random coefficients lambda_j. The mean function m is 0 where f replaces an
activation function, whose coefficient then starts at 1, and the identity where it replaces none.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, Dict, Optional, Sequence, Tuple

import torch
import torch.nn.functional as F
from torch import nn

from espnet_bayeslm.bayes import Bayes, Place, register_kind
from espnet_bayeslm.kernels import gp, has_kernel
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


@has_kernel(gp.mixture)
def mixture(x: torch.Tensor, coefficients: torch.Tensor, basis: Sequence[str]) -> torch.Tensor:
    """sum_j lambda_j phi_j(x) (Eq. 25), (..., units), in x's dtype.

    The coefficients lambda are (J, units); `basis` has the names of phi.
    """
    total = x.new_zeros(())
    for name, row in zip(basis, coefficients.to(x.dtype), strict=True):
        total = torch.addcmul(total, FUNCTIONS[name](x), row)
    return total


def initial_coefficients(
    units: int, basis: Sequence[str], native: Optional[str] = None
) -> torch.Tensor:
    """Coefficients (len(basis), units): 1 for the native activation, else 0."""
    coefficients = torch.zeros(len(basis), units)
    if native is not None:
        coefficients[list(basis).index(native)] = 1.0
    return coefficients


@register_kind
@dataclasses.dataclass
class GP(Bayes):
    """A function of units is a Gaussian process, its coefficients and weights Gaussian (Eq. 26).

    The parameters of the process have names that begin with `gp_`.
    """

    name = "gp"
    needs = "function"
    colour = "tab:green"

    random: Any = option("List of `coefficients`, `weights`, one, both or none.", RANDOM)
    basis: Any = option("List of basis functions: some of sigmoid, tanh, relu, gelu.", BASIS)

    def apply(self, place: Place) -> None:
        """Replace the function of a place."""
        function, random, basis = place.position.function, self.random, self.basis
        check_gp_options(place.location, random, basis, native=function.native)
        coefficients, *more = place.add_process(tuple(basis))
        posterior = place.lm.posterior
        if "coefficients" in random:
            posterior.add([coefficients], self, place.location)
        if "weights" in random:
            posterior.add([*more, *place.weights_of(function)], self, place.location)

    def point_form(self) -> Any:
        """The basis functions, which belong to the LM."""
        basis = {name: value for name, value in self.options.items() if name == "basis"}
        return {"kind": self.name, "random": [], **basis}

    @classmethod
    def owns(cls, key: str) -> bool:
        """True for coefficients and the weights that only a process has."""
        return any(word.startswith("gp_") for word in key.split("."))


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

    def __init__(self, units: int, native: str, basis: Tuple[str, ...] = BASIS):
        super().__init__()
        self.basis, self.native = basis, native
        self.gp_coefficients = nn.Parameter(initial_coefficients(units, basis, native))

    def reset(self) -> None:
        """Make it the function that it starts as."""
        start = initial_coefficients(self.gp_coefficients.size(1), self.basis, self.native)
        self.gp_coefficients.data.copy_(start)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (..., units) to (..., units)."""
        return mixture(x, self.gp_coefficients, self.basis)
