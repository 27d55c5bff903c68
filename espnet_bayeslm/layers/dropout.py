"""Dropout."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from espnet_bayeslm.kernels import fast


def dropout(x: torch.Tensor, p: float) -> torch.Tensor:
    """X with each unit 0 with probability p, and else times 1 / (1 - p), (...) -> (...)."""
    return F.dropout(x, p)


class Dropout(nn.Dropout):
    """`torch.nn.Dropout`, of the random numbers that cost least."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Map (...) to (...)."""
        if not self.training or self.inplace:
            return super().forward(input)
        return fast(dropout)(input, self.p)
