"""Linear layer."""

from __future__ import annotations

from typing import Callable, Optional, Tuple

import torch
import torch.nn.functional as F
from torch import nn

from espnet_bayeslm.bayes.posterior import is_random, refuse_mean
from espnet_bayeslm.kernels import has_kernel
from espnet_bayeslm.kernels import product as kernels


@has_kernel(kernels.linear)
def linear(
    x: torch.Tensor, weight: torch.Tensor, bias: Optional[torch.Tensor] = None
) -> torch.Tensor:
    """Theta [x, 1], (..., in) -> (..., out); weight (out, in), bias (out,)."""
    return F.linear(x, weight, bias)


@has_kernel(kernels.product)
def product(
    weight: torch.Tensor, rows: int, bias: Optional[torch.Tensor] = None
) -> Callable[[torch.Tensor], torch.Tensor]:
    """`linear` with these weights, for many calls with x (rows, in)."""
    return lambda x: linear(x, weight, bias)


def project(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """A linear layer's output by `linear`, or by its own way where it has one."""
    # ESPnet's decoding can put a quantised layer in its place
    return linear(x, layer.weight, layer.bias) if type(layer) is nn.Linear else layer(x)


class Linear(nn.Linear):
    """`torch.nn.Linear` by `linear`, which is faster where no gradient is wanted."""

    def weights(self) -> Tuple[torch.Tensor, torch.Tensor]:
        """Weight and bias, as the output is computed with them."""
        if is_random(self):
            refuse_mean(self)
        return self.weight, self.bias

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Map (..., in_features) to (..., out_features)."""
        return linear(input, *self.weights())
