"""Embedding whose table an output projection may share."""

from __future__ import annotations

from typing import Tuple

import torch
from torch import nn

from espnet_bayeslm.bayes.look_up import SampledRows, look_up


def embed(
    layer: nn.Module, ids: torch.Tensor, projection: torch.Tensor
) -> Tuple[torch.Tensor, torch.Tensor]:
    """Vectors of ids, (..., embedding_dim), and a projection's weight for the same pass, (V, M).

    The projection may be the embedding layer's own table.
    """
    if isinstance(layer, nn.Embedding) and layer.weight is projection:
        own = vars(layer).get("forward")
        if isinstance(own, SampledRows):
            return own.with_table(ids)
        if own is None and type(layer) is nn.Embedding:
            return look_up(layer.weight, ids, layer.padding_idx)
    return layer(ids), projection
