"""ESPnet's `seq_rnn`: an LSTM, GRU or simple recurrent LM."""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, List, Optional, Tuple

import torch
from espnet2.lm.seq_rnn_lm import SequentialRNNLM
from torch import nn

from espnet_bayeslm.bayes import Position, Weights
from espnet_bayeslm.layers import GATES
from espnet_bayeslm.layers.conversion import make_uncertain
from espnet_bayeslm.layers.gru import GRU_GATES
from espnet_bayeslm.lm import recurrent
from espnet_bayeslm.lm.backbones.base import Backbone
from espnet_bayeslm.utils.errors import InputError


def _gates(lm: Any) -> Tuple[str, ...]:
    """Gates of a recurrent LM, in the order of torch's rows."""
    if isinstance(lm.rnn, nn.LSTM):
        return GATES
    return GRU_GATES if isinstance(lm.rnn, nn.GRU) else ()


class SeqRNN(Backbone):
    """`SequentialRNNLM`; a hypothesis' state is (h, c) or h, (nlayers, nhid) each."""

    name = "seq_rnn"
    prior_variance = 1.0
    continues_trees = True

    def espnet_class(self) -> Any:
        """ESPnet's class."""
        return SequentialRNNLM

    def num_layers(self, lm: Any) -> int:
        """Number of layers."""
        return lm.rnn.num_layers

    def positions(self, lm: Any) -> Dict[str, Position]:
        """Positions that can be random: gates, the embedding and the output projection."""
        gates = _gates(lm)
        layered = {gate: self.position(gate) for gate in gates}
        if gates:
            layered["all_gates"] = dataclasses.replace(self.position(gates[0]), parts=gates)
        whole = {name: self.position(name, layered=False) for name in ("embedding", "output")}
        return {**layered, **whole}

    def layers_at(
        self, lm: Any, position: str, layer: Optional[int]
    ) -> List[Tuple[nn.Module, str]]:
        """See `Backbone.layers_at`."""
        if position == "output" and lm.decoder.weight is lm.encoder.weight:
            raise InputError(
                "uncertainty 'output': with tie_weights the output projection is the embedding's"
                " table, and keeps its mean",
                remedy="Make `embedding` random, or set tie_weights: false in backbone_conf.",
            )
        return [(lm, {"embedding": "encoder", "output": "decoder"}[position])]

    def weights_at(self, lm: Any, position: str, layer: Optional[int]) -> List[Weights]:
        """See `Backbone.weights_at`."""
        if layer is None:
            return super().weights_at(lm, position, layer)
        weights: List[Weights] = make_uncertain(lm, "rnn").gate_weights(position, layer)
        return weights

    def outputs(self, lm: Any, input: torch.Tensor) -> torch.Tensor:
        """See `Backbone.outputs`."""
        return recurrent.encode(lm, input)[0]

    def computes_trees(self, lm: Any) -> bool:
        """See `Backbone.computes_trees`: an LSTM does."""
        return isinstance(lm.rnn, nn.LSTM) and super().computes_trees(lm)

    compute, begin = staticmethod(recurrent.compute), staticmethod(recurrent.begin)
    advance, zero_state = staticmethod(recurrent.advance), staticmethod(recurrent.zero_state)
    stack_states = staticmethod(recurrent.stack_states)
    split_state = staticmethod(recurrent.split_state)
    tree_outputs = staticmethod(recurrent.tree_outputs)
    tree_states = staticmethod(recurrent.tree_states)
