"""LSTM-RNN LM (Xue et al. 2022, II-A) with uncertain gates."""

from __future__ import annotations

import dataclasses
from typing import Any, Mapping, Union

from torch import nn
from typeguard import typechecked

from espnet_bayeslm.bayes import Position, Weights
from espnet_bayeslm.layers import GATES, LSTM, NATIVE
from espnet_bayeslm.layers.lstm import function_at, gate_weights
from espnet_bayeslm.lm.recurrent import RecurrentLM


def _gate(name: str) -> Position:
    return Position(weights=gate_weights("rnn", GATES, name), function=function_at(name))


POSITIONS = {
    "embedding": Position(weights=(Weights("encoder.weight"),), layered=False),
    **{gate: _gate(gate) for gate in GATES},
    "all_gates": dataclasses.replace(_gate(GATES[0]), parts=GATES),
    **{name: Position(function=function_at(name)) for name in NATIVE if name not in GATES},
    "hidden_output": Position(output="rnn"),
}


class BayesLSTMLM(RecurrentLM):
    """LSTM-RNN LM; its parameters have the names of ESPnet's `seq_rnn`.

    Args:
        vocab_size: Number of tokens.
        unit: Size of the embedding and of the hidden layers.
        nlayers: Number of LSTM layers.
        dropout_rate: Dropout of the embedding and of each layer's output.
        tie_weights: True if the output projection is the embedding table.
        uncertainty: `{POSITION@LAYERS: kind}`; positions `embedding` (the look-up alone, also
            where weights are tied; `bayes`); `input_gate`, `forget_gate`, `cell_input`,
            `output_gate`, `all_gates` (`bayes`, `gp`); `cell_state` (c-Gate), `hidden_input`
            (h-Gate), `layer_input` (i-Gate) (`gp`); `hidden_output` (`variational`).
        prior_variance: Variance of the Gaussian prior, or `learn`, `learn_rows`: the one that makes
            the KL least, for a parameter or for each of its rows (paper, IV-A: 1).
        init_std: Standard deviation of the weights' posterior at the start.
        init_std_unit: Unit of init_std: `absolute`, `weights` (their standard deviation) or
            `prior`.
        ignore_id: The padding token.
        num_samples: Number of weight samples over which a beam search averages the probability of a
            token; 0: the posterior mean.
    """

    rnn_type = "lstm"

    @typechecked
    def __init__(
        self,
        vocab_size: int,
        unit: int = 1024,
        nlayers: int = 2,
        dropout_rate: float = 0.2,
        tie_weights: bool = True,
        uncertainty: Any = None,
        prior_variance: Union[float, str] = 1.0,
        init_std: float = 0.01,
        init_std_unit: str = "absolute",
        ignore_id: int = 0,
        num_samples: int = 0,
    ):
        super().__init__(vocab_size, prior_variance=prior_variance, num_samples=num_samples)
        self.drop = nn.Dropout(dropout_rate)
        self.encoder = nn.Embedding(vocab_size, unit, padding_idx=ignore_id)
        # nn.LSTM warns about a dropout between layers where there is only one
        between = dropout_rate if nlayers > 1 else 0.0
        self.rnn = LSTM(unit, unit, nlayers, dropout=between, batch_first=True)
        self.decoder = nn.Linear(unit, vocab_size)
        nn.init.uniform_(self.encoder.weight, -0.1, 0.1)
        nn.init.zeros_(self.decoder.bias)
        if tie_weights:
            self.decoder.weight = self.encoder.weight
        start = {"init_std": init_std, "init_std_unit": init_std_unit}
        self.make_uncertain(uncertainty, num_layers=nlayers, **start)

    def positions(self) -> Mapping[str, Position]:
        """The positions of an LSTM LM, by name."""
        return POSITIONS

    def keeps_projection(self) -> bool:
        """True: no position is the output projection, and IVON's samples are in place all along."""
        return True
