"""Embedding with an optionally random table, which an output projection may share."""

from __future__ import annotations

from typing import Any, Optional, Tuple

import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.function import once_differentiable

from espnet_bayeslm.bayes.noise import refuse_recomputation
from espnet_bayeslm.kernels.draw import draw_weights, in_rows
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
        return self._look_up(input, tied=False)[0]

    def with_projection(
        self, input: torch.Tensor, weight: torch.Tensor
    ) -> Tuple[torch.Tensor, torch.Tensor]:
        """Return what `forward` does, and an output projection's weight for the same pass.

        Where it is tied to the table, the gradient of the rows is sparse, and autograd adds it to
        that of the projection. It would else make one of the whole table, and add all of it.
        """
        tied = weight is self.weight and torch.is_grad_enabled()
        vectors, table = self._look_up(input, tied=tied)
        return vectors, table if tied else weight

    def _look_up(self, input: torch.Tensor, *, tied: bool) -> Tuple[torch.Tensor, torch.Tensor]:
        if self.training and self.random_blocks:
            refuse_recomputation()
        generator, self.generator = self.generator, None
        if generator is not None and self.random_blocks:
            ids, places = distinct_ids(input)
            mean, table = self._rows(ids, self.weight, tied)
            return F.embedding(places, self._draw_rows(ids, mean, generator)), table
        table = self.mixed("weight")
        if table is self.weight:
            return self._rows(input, table, tied)
        return F.embedding(input, table, self.padding_idx), self.weight

    def _rows(
        self, ids: torch.Tensor, table: torch.Tensor, tied: bool
    ) -> Tuple[torch.Tensor, torch.Tensor]:
        """Return rows of the table, and the table."""
        if tied:
            return _LookUp.apply(table, table, ids, self.padding_idx)
        return F.embedding(ids, table, self.padding_idx), table

    def _draw_rows(
        self, ids: torch.Tensor, mean: torch.Tensor, generator: torch.Generator
    ) -> torch.Tensor:
        """Return a draw of the rows of some ids (N,) with these means, (N, embedding_dim)."""
        (block,) = self.random_blocks
        table = getattr(self, f"{block.key}_log_std")
        log_std = F.embedding(ids, table, self.padding_idx)
        noise = torch.empty_like(mean, requires_grad=False).normal_(generator=generator)
        return draw_weights(mean, log_std, noise)


class _LookUp(torch.autograd.Function):
    """Rows of a table, and the table, which is given twice, once for each.

    Autograd adds the two gradients, in place where nothing else has the dense one.
    """

    @staticmethod
    def forward(
        ctx: Any,
        table_of_rows: torch.Tensor,
        table: torch.Tensor,
        ids: torch.Tensor,
        padding_idx: Optional[int],
    ) -> Tuple[torch.Tensor, torch.Tensor]:
        ctx.save_for_backward(ids)
        ctx.padding_idx = padding_idx
        return F.embedding(ids, table), table.view_as(table)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_rows: torch.Tensor, d_table: torch.Tensor) -> Tuple[Any, ...]:  # type: ignore[override]
        (ids,) = ctx.saved_tensors
        ids, d_rows = ids.flatten(), d_rows.flatten(0, -2)
        if ctx.padding_idx is not None:
            d_rows = d_rows.masked_fill((ids == ctx.padding_idx).unsqueeze(1), 0.0)
        return in_rows(ids, d_rows.to(d_table), len(d_table)), d_table, None, None
