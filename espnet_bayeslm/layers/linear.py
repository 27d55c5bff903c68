"""Linear layer with optional random weights."""

from __future__ import annotations

from typing import Any, Callable, Dict, Mapping, Optional

import torch
import torch.nn.functional as F
from torch import nn

from espnet_bayeslm.bayes import UncertainModule
from espnet_bayeslm.kernels import fast


def linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: Optional[torch.Tensor] = None,
    *,
    gelu: bool = False,
) -> torch.Tensor:
    """Theta [x, 1] or GELU of that, (..., in) -> (..., out); weight (out, in), bias (out,)."""
    y = F.linear(x, weight, bias)
    return F.gelu(y) if gelu else y


def product(
    weight: torch.Tensor, rows: int, bias: Optional[torch.Tensor] = None, *, gelu: bool = False
) -> Callable[[torch.Tensor], torch.Tensor]:
    """`linear` with these weights, for many calls with x (rows, in)."""
    return lambda x: linear(x, weight, bias, gelu=gelu)


def project(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """A linear layer's output by `linear`, or by its own way where it has one."""
    # ESPnet's decoding can put a quantised layer in its place
    plain = type(layer) is nn.Linear
    return fast(linear)(x, layer.weight, layer.bias) if plain else layer(x)


class PathLayer(UncertainModule):
    """A layer that belongs to one location."""

    def make_all_random(self, *, location: str, copy: bool = False, **posterior: Any) -> None:
        """Make weight and, where it has one, bias random.

        Args:
            location: The location it belongs to.
            copy: As `own`.
            **posterior: As `make_random`.
        """
        for parameter in ("weight", "bias"):
            if getattr(self, parameter, None) is not None:
                name = self.own(parameter, location=location, kind="bayes", copy=copy)
                self.make_random(name, location=location, **posterior)

    def along(self, parameter: str) -> Dict[str, torch.Tensor]:
        """Return {kind: value} of a parameter on each path, in a super-network."""
        copies = {c.kind: name for name, c in self.copies.items() if c.parameter == parameter}
        return {kind: self.value(copies.get(kind, parameter)) for kind in self.path_shares()}

    def path_shares(self) -> Mapping[str, torch.Tensor]:
        """Return {kind: share of its path}; nothing where there is only one path."""
        path = next(iter(self.copies.values()), None)
        return {} if path is None else self.shares[path.location]

    def mixed(self, parameter: str) -> torch.Tensor:
        """Return the parameter for the forward pass.

        The output is linear in it, so mixing the paths' parameters mixes their outputs.
        """
        shares = self.path_shares()
        if not shares:
            return self.value(parameter)
        first, *others = [shares[kind] * value for kind, value in self.along(parameter).items()]
        return sum(others, first)


class UncertainLinear(PathLayer, nn.Linear):
    """`torch.nn.Linear`, whose weight and bias may be random."""

    def forward(self, input: torch.Tensor, *, gelu: bool = False) -> torch.Tensor:
        """Map (..., in_features) to (..., out_features), with one draw for all rows.

        With `gelu`, GELU of that: for many rows it costs nothing then.
        """
        return fast(linear)(input, self.mixed("weight"), self.mixed("bias"), gelu=gelu)

    def paths(self, input: torch.Tensor) -> Dict[str, torch.Tensor]:
        """Return {kind: output} on each path of a super-network, (..., out_features)."""
        weights, biases = self.along("weight"), self.along("bias")
        return {kind: fast(linear)(input, weights[kind], biases[kind]) for kind in weights}
