"""ESPnet's `seq_rnn`: an LSTM, GRU or simple recurrent LM."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Mapping, Tuple

from espnet2.lm.seq_rnn_lm import SequentialRNNLM
from torch import nn

from espnet_bayeslm.bayes import Location, Place, Position
from espnet_bayeslm.layers import GATES
from espnet_bayeslm.layers.lstm import gate_weights
from espnet_bayeslm.lm.espnet import BayesESPnetLM, parameters
from espnet_bayeslm.lm.recurrent import RecurrentLM
from espnet_bayeslm.utils.errors import InputError

# In the order of torch's rows: r, z, n.
GRU_GATES = ("reset_gate", "update_gate", "new_gate")


class SeqRNN(RecurrentLM, BayesESPnetLM):
    """`SequentialRNNLM`; a hypothesis' state is (h, c) or h, (nlayers, nhid) each."""

    backbone = "seq_rnn"
    espnet_class = SequentialRNNLM
    usual_prior_variance = 1.0
    parameters_at: ClassVar = {"embedding": ("encoder.weight",), "output": parameters("decoder")}

    def num_layers(self) -> int:
        """Number of layers."""
        return self.rnn.num_layers

    def positions(self) -> Mapping[str, Position]:
        """Positions that can be random: gates, the embedding and the output projection."""
        gates = self._gates()
        layered = {g: Position(weights=gate_weights("rnn", gates, g)) for g in gates}
        if gates:
            layered["all_gates"] = dataclasses.replace(layered[gates[0]], parts=gates)
        return {**layered, **super().positions()}

    def place(self, location: Location) -> Place:
        """Place of a location in the LM."""
        if location.position == "output" and self.decoder.weight is self.encoder.weight:
            raise InputError(
                "uncertainty 'output': with tie_weights the output projection is the embedding's"
                " table, and keeps its mean",
                remedy="Make `embedding` random, or set tie_weights: false in backbone_conf.",
            )
        return super().place(location)

    def _gates(self) -> Tuple[str, ...]:
        """Gates of the layers, in the order of torch's rows."""
        if isinstance(self.rnn, nn.LSTM):
            return GATES
        return GRU_GATES if isinstance(self.rnn, nn.GRU) else ()
