"""Linear layer."""

from __future__ import annotations

from typing import Tuple

import torch
from torch import nn

from espnet_bayeslm.bayes.posterior import is_random, refuse_mean
from espnet_bayeslm.kernels.product import linear


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
