"""LSTM-RNN LM (Xue et al. 2022, II-A) with uncertain gates."""

from __future__ import annotations

import dataclasses
from typing import Any, List, Mapping, Optional, Tuple, Union

import torch
from torch import nn
from typeguard import typechecked

from espnet_bayeslm.bayes import Position
from espnet_bayeslm.bayes.kinds import all_weights
from espnet_bayeslm.layers import GATES, NATIVE, UncertainEmbedding, UncertainLSTM
from espnet_bayeslm.layers.dropout import Dropout
from espnet_bayeslm.layers.embedding import distinct_ids
from espnet_bayeslm.layers.linear import project
from espnet_bayeslm.layers.lstm import along_tree, one_step
from espnet_bayeslm.lm.scoring import Step
from espnet_bayeslm.lm.tree import TokenTree
from espnet_bayeslm.lm.uncertain import Projected, UncertainLM

State = Tuple[torch.Tensor, torch.Tensor]


def _gate(name: str) -> Position:
    return Position(
        weights=lambda lm, layer: lm.rnn.gate_weights(name, layer),
        function=lambda lm, layer: lm.rnn.function(name, layer),
    )


def _whole(name: str) -> Position:
    return Position(function=lambda lm, layer: lm.rnn.function(name, layer))


POSITIONS = {
    "embedding": Position(weights=lambda lm, _: all_weights(lm.encoder), layered=False),
    **{gate: _gate(gate) for gate in GATES},
    "all_gates": dataclasses.replace(_gate(GATES[0]), parts=GATES),
    **{name: _whole(name) for name in NATIVE if name not in GATES},
    "hidden_output": Position(output=lambda lm, layer: lm.rnn.output(layer)),
}


class BayesLSTMLM(UncertainLM):
    """LSTM-RNN LM; its parameters have the names of ESPnet's `seq_rnn`.

    Args:
        vocab_size: Number of tokens.
        unit: Size of the embedding and of the hidden layers.
        nlayers: Number of LSTM layers.
        dropout_rate: Of the embedding and of each layer's output.
        tie_weights: Whether the output projection is the embedding table.
        uncertainty: `{POSITION@LAYERS: kind}`; positions `embedding` (the look-up alone, also
            where weights are tied; `bayes`); `input_gate`, `forget_gate`, `cell_input`,
            `output_gate`, `all_gates` (`bayes`, `gp`); `cell_state` (c-Gate), `hidden_input`
            (h-Gate), `layer_input` (i-Gate) (`gp`); `hidden_output` (`variational`).
        prior_variance: Variance of the Gaussian prior, or `learn`, `learn_rows`: the one that makes
            the KL least, for a parameter or for each of its rows (paper, IV-A: 1).
        init_std: Standard deviation of the weights' posterior at the start.
        init_std_unit: What init_std is relative to: `absolute`, `weights` (their standard
            deviation) or `prior`.
        ignore_id: The padding token.
        num_samples: Weight draws over which a beam search averages the probability of a token;
            0: the posterior mean.
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
        self.drop = Dropout(dropout_rate)
        self.encoder = UncertainEmbedding(vocab_size, unit, padding_idx=ignore_id)
        # nn.LSTM warns about a dropout between layers where there is only one
        between = dropout_rate if nlayers > 1 else 0.0
        self.rnn = UncertainLSTM(unit, unit, nlayers, dropout=between, batch_first=True)
        self.decoder = nn.Linear(unit, vocab_size)
        nn.init.uniform_(self.encoder.weight, -0.1, 0.1)
        nn.init.zeros_(self.decoder.bias)
        if tie_weights:
            self.decoder.weight = self.encoder.weight
        self.make_uncertain(
            uncertainty,
            num_layers=nlayers,
            prior_variance=prior_variance,
            init_std=init_std,
            init_std_unit=init_std_unit,
        )

    def positions(self) -> Mapping[str, Position]:
        """The positions of an LSTM LM, by name."""
        return POSITIONS

    def compute(self, input: torch.Tensor, hidden: Optional[State]) -> Tuple[torch.Tensor, State]:
        """See `UncertainLM.compute`; the state is h and c, each (nlayers, B, unit)."""
        output, hidden = self._encode(self.encoder(input), hidden)
        return project(self.decoder, output), hidden

    def outputs(self, input: torch.Tensor) -> Projected:
        """See `UncertainLM.outputs`."""
        with self.drawn():
            return self._encode(self.encoder(input), None)[0], self.decoder.weight

    def _encode(
        self, embedded: torch.Tensor, hidden: Optional[State]
    ) -> Tuple[torch.Tensor, State]:
        output, hidden = self.rnn(self.drop(embedded), hidden)
        return self.drop(output), hidden

    def tree_outputs(self, tree: TokenTree, state: Optional[State] = None) -> torch.Tensor:
        """Return what the output projection gets at each node of prefix trees, (T, M).

        With the mean or what `drawn` holds, in evaluation mode. `state` is that
        before the roots, (nlayers, G, unit).
        """
        return self._along_tree(tree, state)[0]

    def tree_states(self, tree: TokenTree, state: Optional[State] = None) -> State:
        """Return h and c after each node, (nlayers, T, unit); `state` as in `tree_outputs`."""
        return self._along_tree(tree, state)[1]

    def _along_tree(self, tree: TokenTree, state: Optional[State]) -> Tuple[torch.Tensor, State]:
        distinct, which = distinct_ids(tree.tokens)
        inputs = self.encoder(distinct)
        return along_tree(self.rnn, inputs, which, tree.parents, tree.levels(), state)

    def stack_states(self, states: List[State]) -> State:
        """B pairs of (nlayers, unit) -> a pair of (nlayers, B, unit)."""
        h, c = zip(*states, strict=True)
        return torch.stack(h, dim=1), torch.stack(c, dim=1)

    def split_state(self, state: State) -> List[State]:
        """A pair of (nlayers, B, unit) -> B pairs of (nlayers, unit)."""
        return list(zip(state[0].unbind(1), state[1].unbind(1), strict=True))

    def advance(self, tokens: torch.Tensor, states: List[State]) -> Step:
        """See `IncrementalLM.advance`."""
        output, state = one_step(self.rnn, self.encoder(tokens), self.stack_states(states))
        return project(self.decoder, output), self.split_state(state)

    def begin(self, tokens: torch.Tensor) -> Step:
        """See `IncrementalLM.begin`."""
        logits, state = self.compute(tokens, None)
        return logits[:, -1], self.split_state(state)

    def zero_state(self) -> State:
        """Return the state at the start, a pair of zeros (nlayers, unit)."""
        zeros = self.encoder.weight.new_zeros(self.rnn.num_layers, self.rnn.hidden_size)
        return zeros, zeros.clone()
