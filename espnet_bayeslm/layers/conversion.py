"""Torch's own layers, in place, as layers whose weights can be random."""

from __future__ import annotations

from typing import Any

from torch import nn

from espnet_bayeslm.bayes import UncertainModule
from espnet_bayeslm.layers.embedding import UncertainEmbedding
from espnet_bayeslm.layers.gru import UncertainGRU
from espnet_bayeslm.layers.linear import UncertainLinear
from espnet_bayeslm.layers.lstm import UncertainLSTM

# Of the empty layers that take parameters over
NOWHERE = "meta"


def empty_like(layer: nn.Module) -> Any:
    """Uncertain layer of the sizes and options of a layer, without memory of its own."""
    if isinstance(layer, nn.Linear):
        sizes = (layer.in_features, layer.out_features)
        return UncertainLinear(*sizes, bias=layer.bias is not None, device=NOWHERE)
    if isinstance(layer, nn.Embedding):
        rows, size = layer.num_embeddings, layer.embedding_dim
        return UncertainEmbedding(rows, size, padding_idx=layer.padding_idx, device=NOWHERE)
    assert isinstance(layer, (nn.LSTM, nn.GRU)), layer
    cls = UncertainLSTM if isinstance(layer, nn.LSTM) else UncertainGRU
    return cls(
        layer.input_size,
        layer.hidden_size,
        layer.num_layers,
        batch_first=layer.batch_first,
        # torch warns about a dropout between layers where there is only one
        dropout=layer.dropout if layer.num_layers > 1 else 0.0,
        device=NOWHERE,
    )


def make_uncertain(owner: nn.Module, name: str) -> Any:
    """Layer as one that can have random weights, which takes its place.

    The parameters are the same objects: what is tied to them stays tied, and their names in the
    state_dict stay what they were.

    Args:
        owner: The module that has the layer.
        name: The layer's name there; it may have been replaced already.
    """
    layer = getattr(owner, name)
    if isinstance(layer, UncertainModule):
        return layer
    uncertain = empty_like(layer)
    for parameter, value in layer.named_parameters(recurse=False):
        setattr(uncertain, parameter, value)
    setattr(owner, name, uncertain.train(layer.training))
    return uncertain
