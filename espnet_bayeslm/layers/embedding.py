"""Embedding with an optionally random table, which an output projection may share."""

from __future__ import annotations

from typing import Tuple

import torch
import torch.nn.functional as F
from torch import nn

from espnet_bayeslm.bayes import UncertainModule
from espnet_bayeslm.bayes.draw import LayerDraw

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


class UncertainEmbedding(UncertainModule, nn.Embedding):
    """`torch.nn.Embedding`, whose table may be random."""

    noises = ("shared", "sequence", "token")

    def make_noise(self, draw: LayerDraw, generator: torch.Generator, *, hold: bool) -> None:
        """Draw the noise of the table, unless only the rows that are looked up are to be drawn."""
        if hold or not self._draws_rows():
            super().make_noise(draw, generator, hold=hold)

    def _draws_rows(self) -> bool:
        """Whether a draw for one forward pass needs no more than the rows that it looks up."""
        return all(block.kind.look_up is not None for block in self.random_blocks)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Map ids (...) to vectors (..., embedding_dim), with one draw for all tokens.

        With noise that is not shared by the batch, with a draw for each word of a sequence (the
        first dimension), or for each token.
        """
        self._refuse_recomputation()
        draw = self.draw
        if draw is None or draw.generator is None or not self._draws_rows():
            return F.embedding(input, self.value("weight"), self.padding_idx)
        ids, places = self._rows_of(input)
        mean = F.embedding(ids, self.weight, self.padding_idx)
        return F.embedding(places, self._draw_rows(ids, mean, draw))

    def _rows_of(self, input: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:
        """The rows to draw, (D,), and for each id its place among them, shaped as the ids."""
        noise = self.unshared_noise()
        if noise == "token":
            return input.flatten(), torch.arange(input.numel(), device=input.device).view_as(input)
        if noise is None:
            return distinct_ids(input)
        number = torch.arange(len(input), device=input.device) * self.num_embeddings
        rows, places = distinct_ids(input + number.view(-1, *(1,) * (input.dim() - 1)))
        return rows % self.num_embeddings, places

    def _draw_rows(self, ids: torch.Tensor, mean: torch.Tensor, draw: LayerDraw) -> torch.Tensor:
        """A draw of the rows of some ids (N,) with these means, (N, embedding_dim)."""
        (block,) = self.random_blocks
        if LOOKED_UP in draw.noise:
            raise RuntimeError("a draw of looked-up rows is for one forward pass: hold it for more")
        draw.noise[LOOKED_UP] = ids
        assert draw.generator is not None
        return block.kind.look_up(self, block, ids, mean, draw.generator)
