"""Embedding with an optionally random table, which an output projection may share."""

from __future__ import annotations

from typing import Any, Optional, Tuple

import torch
import torch.nn.functional as F
from torch import nn

from espnet_bayeslm.bayes.gaussian import draw_weights
from espnet_bayeslm.bayes.noise import refuse_recomputation
from espnet_bayeslm.layers.linear import PathLayer


def distinct_ids(ids: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:
    """Return ascending ids, of which `places` uses one for each id there is, and the places.

    Elsewhere than on a CPU the others are left in, up to as many as `ids` has: their number is
    known without waiting for the device.

    Args:
        ids: Any shape.

    Returns:
        Ids (D,); for each id its place among them, of the shape of `ids`.
    """
    if ids.device.type == "cpu":
        return torch.unique(ids, return_inverse=True)
    ascending = ids.flatten().sort().values
    return ascending, torch.searchsorted(ascending, ids)


class UncertainEmbedding(PathLayer, nn.Embedding):
    """`torch.nn.Embedding`, whose table may be random."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.generator: Optional[torch.Generator] = None

    def draw(self, generator: torch.Generator, *, hold: bool = False) -> None:
        """Draw the table; in training only the rows that the next forward pass looks up."""
        self.generator = None if hold or self.path_shares() else generator
        if self.generator is None:
            super().draw(generator, hold=hold)
        else:
            self.noise = {}

    def use_mean(self) -> None:
        """Make the next forward passes use the posterior mean."""
        super().use_mean()
        self.generator = None

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Map ids (...) to vectors (..., embedding_dim), with one draw for all tokens."""
        if self.training and self.random_blocks:
            refuse_recomputation()
        generator, self.generator = self.generator, None
        if generator is None or not self.random_blocks:
            return F.embedding(input, self.mixed("weight"), self.padding_idx)
        ids, places = distinct_ids(input)
        mean = F.embedding(ids, self.weight, self.padding_idx)
        return F.embedding(places, self._draw_rows(ids, mean, generator))

    def _draw_rows(
        self, ids: torch.Tensor, mean: torch.Tensor, generator: torch.Generator
    ) -> torch.Tensor:
        """Return a draw of the rows of some ids (N,) with these means, (N, embedding_dim)."""
        (block,) = self.random_blocks
        table = getattr(self, f"{block.key}_log_std")
        log_std = F.embedding(ids, table, self.padding_idx)
        noise = torch.empty_like(mean, requires_grad=False).normal_(generator=generator)
        return draw_weights(mean, log_std, noise)
