"""Embedding with an optionally random table, which an output projection may share."""

from __future__ import annotations

from typing import Callable, Optional, Tuple

import torch
import torch.nn.functional as F
from torch import nn

from espnet_bayeslm.bayes import UncertainModule
from espnet_bayeslm.bayes.draw import LayerDraw
from espnet_bayeslm.kernels import fast

# Among the noise of a draw: the rows that were drawn as they were looked up.
LOOKED_UP = ""


def distinct_ids(ids: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:
    """Ids, ascending, of which `places` uses one for each id there is, and the places.

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


def look_up(
    table: torch.Tensor, ids: torch.Tensor, padding_idx: Optional[int]
) -> Tuple[torch.Tensor, torch.Tensor]:
    """Rows of a table, and the table, for the output projection that is tied to it.

    Args:
        table: (V, M).
        ids: Any shape.
        padding_idx: The id whose row gets no gradient from the rows.

    Returns:
        (..., M) and (V, M).
    """
    return F.embedding(ids, table, padding_idx), table


class UncertainEmbedding(UncertainModule, nn.Embedding):
    """`torch.nn.Embedding`, whose table may be random."""

    def make_noise(self, draw: LayerDraw, generator: torch.Generator, *, hold: bool) -> None:
        """Draw the noise of the table, unless only the rows that are looked up are to be drawn."""
        if hold or not self._draws_rows():
            super().make_noise(draw, generator, hold=hold)

    def _draws_rows(self) -> bool:
        """Whether a draw for one forward pass needs no more than the rows that it looks up."""
        return all(block.kind.look_up is not None for block in self.random_blocks)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Map ids (...) to vectors (..., embedding_dim), with one draw for all tokens."""
        return self._look_up(input, look_up)[0]

    def with_table(self, input: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:
        """What `forward` gives, and the table's mean for the projection of the same pass."""
        return self._look_up(input, fast(look_up))

    def _look_up(
        self, input: torch.Tensor, look: Callable[..., Tuple[torch.Tensor, torch.Tensor]]
    ) -> Tuple[torch.Tensor, torch.Tensor]:
        self._refuse_recomputation()
        draw = self.draw
        if draw is None or draw.generator is None or not self._draws_rows():
            value = self.value("weight")
            if value is self.weight:
                return look(value, input, self.padding_idx)
            return F.embedding(input, value, self.padding_idx), self.weight
        ids, places = distinct_ids(input)
        mean, table = look(self.weight, ids, self.padding_idx)
        return F.embedding(places, self._draw_rows(ids, mean, draw)), table

    def _draw_rows(self, ids: torch.Tensor, mean: torch.Tensor, draw: LayerDraw) -> torch.Tensor:
        """A draw of the rows of some ids (N,) with these means, (N, embedding_dim)."""
        (block,) = self.random_blocks
        if LOOKED_UP in draw.noise:
            raise RuntimeError("a draw of looked-up rows is for one forward pass: hold it for more")
        draw.noise[LOOKED_UP] = ids
        assert draw.generator is not None
        return block.kind.look_up(self, block, ids, mean, draw.generator)


def embed(
    layer: nn.Module, ids: torch.Tensor, projection: torch.Tensor
) -> Tuple[torch.Tensor, torch.Tensor]:
    """An embedding layer's vectors, and an output projection's weight to use in the same pass.

    Args:
        layer: The embedding.
        ids: (...).
        projection: The weight, (V, M); it may be the layer's own.

    Returns:
        (..., embedding_dim) and (V, M).
    """
    # a super-network's has a way of its own to look up
    if type(layer) is UncertainEmbedding and layer.weight is projection:
        return layer.with_table(ids)
    return layer(ids), projection
