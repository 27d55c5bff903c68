"""Samples of those rows of an embedding's table that a forward pass looks up."""

from __future__ import annotations

import contextlib
from typing import Any, Iterator, Tuple

import torch
import torch.nn.functional as F
from torch import nn


def distinct_ids(ids: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:
    """Distinct ids, ascending (D,), and the place among them of each id, shaped as `ids`.

    On other devices than a CPU the result is padded to the number of `ids` with repeated ids: the
    shape is then known without waiting for the device.
    """
    if ids.device.type == "cpu":
        return torch.unique(ids, return_inverse=True)
    ascending = ids.flatten().sort().values
    return ascending, torch.searchsorted(ascending, ids)


def can_look_up(block: Any) -> bool:
    """True if a sample of an embedding's block needs no more than the rows of one look-up."""
    layer = block.owner
    return (
        type(layer).forward is nn.Embedding.forward
        and "forward" not in vars(layer)
        and layer.max_norm is None
        and not (layer.scale_grad_by_freq or layer.sparse)
        and block.rows == (0, layer.num_embeddings)
        and not block.aliases
        and block.kind.look_up is not None
    )


class SampledRows:
    """Forward pass of an embedding that samples the rows of its block that it looks up, once."""

    def __init__(self, block: Any, generator: torch.Generator):
        self.block, self.generator = block, generator
        self.is_used = False

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Be the embedding's forward pass within the block."""
        layer = self.block.owner
        layer.forward = self
        try:
            yield
        finally:
            del layer.forward

    def __call__(self, input: torch.Tensor) -> torch.Tensor:
        """Map ids (...) to vectors (..., embedding_dim), one sample for all tokens (Eq. 3)."""
        if self.is_used:
            raise RuntimeError(
                "a sample of looked-up rows is for one forward pass: sample without one_pass"
            )
        self.is_used = True
        distinct, places = distinct_ids(input)
        mean = F.embedding(distinct, self.block.whole, self.block.owner.padding_idx)
        rows = self.block.kind.look_up(self.block, distinct, mean, self.generator)
        return F.embedding(places, rows)
