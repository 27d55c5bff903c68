"""Linear layer and embedding with optional random weights."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from espnet_bayeslm.bayes import UncertainModule


class UncertainLinear(UncertainModule, nn.Linear):
    """`torch.nn.Linear`, whose weight and bias may be random."""

    def make_all_random(self, **posterior: Any) -> None:
        """Make weight and bias random; options as `make_random`."""
        self.make_random("weight", **posterior)
        self.make_random("bias", **posterior)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Map (..., in_features) to (..., out_features), with one draw for all rows."""
        return F.linear(input, self.value("weight"), self.value("bias"))


class UncertainEmbedding(UncertainModule, nn.Embedding):
    """`torch.nn.Embedding`, whose table may be random."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Map ids (...) to vectors (..., embedding_dim), with one draw for all tokens."""
        return F.embedding(input, self.value("weight"), self.padding_idx)
