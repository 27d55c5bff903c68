"""What of an LM a tracer does not see through, and what stands in its place."""

from __future__ import annotations

import sys
from typing import ContextManager

import torch
from torch import nn

from espnet_bayeslm.kernels import KERNELS, plain
from espnet_bayeslm.layers import UncertainLSTM

# Torch's exporter knows the LSTM that this calls: as a loop it would be of one length.
OPERATORS = {"lstm_loop"}


def traceable(lm: nn.Module) -> ContextManager[None]:
    """Compute within by plain functions, but for those of torch's that ONNX has."""
    return plain() if has_loop(lm) else plain(*(set(KERNELS) - OPERATORS), others_fast=True)


def has_loop(lm: nn.Module) -> bool:
    """Whether a step of the LM can be traced, and no whole sequence: a loop is of one length."""
    return any(
        bool(module.bases) or any(getattr(child, "feedback", False) for child in module.children())
        for module in lm.modules()
        if isinstance(module, UncertainLSTM)
    )


class Encodings:
    """Sinusoidal position encodings in place of a table of them: there is no longest prefix.

    Args:
        table: What it stands for, (any length, att_unit).
    """

    def __init__(self, table: torch.Tensor):
        self.dim, self.dtype, self.device = table.size(1), table.dtype, table.device
        even = torch.arange(0, self.dim, 2, dtype=torch.float64)
        self.rates = torch.pow(10000.0, -even / self.dim)

    def __len__(self) -> int:
        return sys.maxsize

    def __getitem__(self, positions: torch.Tensor) -> torch.Tensor:
        """Map positions (...) to encodings (..., att_unit)."""
        angle = positions.unsqueeze(-1).to(torch.float64) * self.rates
        pairs = torch.stack([angle.sin(), angle.cos()], dim=-1)
        return pairs.flatten(-2)[..., : self.dim].to(self.dtype)
