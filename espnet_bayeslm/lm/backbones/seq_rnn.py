"""ESPnet's `seq_rnn`: an LSTM, GRU or simple recurrent LM."""

from __future__ import annotations

import dataclasses
from typing import List, Mapping, Optional, Tuple

import torch
from espnet2.lm.seq_rnn_lm import SequentialRNNLM
from torch import nn

from espnet_bayeslm.bayes import Position, Weights
from espnet_bayeslm.layers import GATES
from espnet_bayeslm.layers.conversion import make_uncertain
from espnet_bayeslm.layers.gru import GRU_GATES
from espnet_bayeslm.lm.espnet import BayesESPnetLM
from espnet_bayeslm.lm.recurrent import RecurrentLM
from espnet_bayeslm.utils.errors import InputError


class SeqRNN(RecurrentLM, BayesESPnetLM):
    """`SequentialRNNLM`; a hypothesis' state is (h, c) or h, (nlayers, nhid) each."""

    backbone = "seq_rnn"
    espnet_class = SequentialRNNLM
    usual_prior_variance = 1.0

    def num_layers(self) -> int:
        """Number of layers."""
        return self.rnn.num_layers

    def positions(self) -> Mapping[str, Position]:
        """Positions that can be random: gates, the embedding and the output projection."""
        gates = self._gates()
        layered = {gate: self.position(gate) for gate in gates}
        if gates:
            layered["all_gates"] = dataclasses.replace(self.position(gates[0]), parts=gates)
        whole = {name: self.position(name, layered=False) for name in ("embedding", "output")}
        return {**layered, **whole}

    def _gates(self) -> Tuple[str, ...]:
        """Its gates, in the order of torch's rows."""
        if isinstance(self.rnn, nn.LSTM):
            return GATES
        return GRU_GATES if isinstance(self.rnn, nn.GRU) else ()

    def layers_at(self, position: str, layer: Optional[int]) -> List[Tuple[nn.Module, str]]:
        """See `BayesESPnetLM.layers_at`."""
        if position == "output" and self.decoder.weight is self.encoder.weight:
            raise InputError(
                "uncertainty 'output': with tie_weights the output projection is the embedding's"
                " table, and keeps its mean",
                remedy="Make `embedding` random, or set tie_weights: false in backbone_conf.",
            )
        return [(self, {"embedding": "encoder", "output": "decoder"}[position])]

    def weights_at(self, position: str, layer: Optional[int]) -> List[Weights]:
        """See `BayesESPnetLM.weights_at`."""
        if layer is None:
            return super().weights_at(position, layer)
        weights: List[Weights] = make_uncertain(self, "rnn").gate_weights(position, layer)
        return weights

    def projected(self, input: torch.Tensor) -> torch.Tensor:
        """See `BayesESPnetLM.projected`."""
        return self.encode(self.encoder(input))[0]

    @property
    def computes_trees(self) -> bool:  # type: ignore[override]
        """See `UncertainLM.computes_trees`: an LSTM does."""
        return isinstance(self.rnn, nn.LSTM) and self.keeps_projection()

    @property
    def continues_trees(self) -> bool:  # type: ignore[override]
        """See `UncertainLM.continues_trees`."""
        return self.computes_trees
