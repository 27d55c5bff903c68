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
from espnet_bayeslm.layers.embedding import distinct_ids
from espnet_bayeslm.layers.gru import GRU_GATES
from espnet_bayeslm.layers.lstm import along_tree, one_step
from espnet_bayeslm.lm.backbones.base import Backbone
from espnet_bayeslm.lm.scoring import Step
from espnet_bayeslm.lm.tree import TokenTree
from espnet_bayeslm.utils.errors import InputError

Pair = Tuple[torch.Tensor, torch.Tensor]


def _gates(lm: Any) -> Tuple[str, ...]:
    """Return the gates of a recurrent LM, in the order of torch's rows."""
    if isinstance(lm.rnn, nn.LSTM):
        return GATES
    return GRU_GATES if isinstance(lm.rnn, nn.GRU) else ()


class SeqRNN(Backbone):
    """`SequentialRNNLM`; a hypothesis' state is (h, c) or h, (nlayers, nhid) each."""

    name = "seq_rnn"
    prior_variance = 1.0

    def espnet_class(self) -> Any:
        """Return ESPnet's class."""
        return SequentialRNNLM

    def num_layers(self, lm: Any) -> int:
        """Return how many layers there are."""
        return lm.rnn.num_layers

    def positions(self, lm: Any) -> Dict[str, Position]:
        """Return what can be random: gates, the embedding and the output projection."""
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

    def compute(self, lm: Any, input: torch.Tensor, hidden: Any) -> Tuple[torch.Tensor, Any]:
        """Return logits and the state, (h, c) or h, (nlayers, B, nhid) each."""
        output, hidden = self._encode(lm, input, hidden)
        return lm.decoder(output), hidden

    def _encode(self, lm: Any, input: torch.Tensor, hidden: Any) -> Tuple[torch.Tensor, Any]:
        """Return what the output projection gets, (B, L, M), and the state."""
        output, hidden = lm.rnn(lm.drop(lm.encoder(input)), hidden)
        return lm.drop(output), hidden

    def outputs(self, lm: Any, input: torch.Tensor) -> torch.Tensor:
        """See `Backbone.outputs`."""
        return self._encode(lm, input, None)[0]

    def zero_state(self, lm: Any) -> Any:
        """See `IncrementalLM.zero_state`."""
        zeros = lm.decoder.bias.new_zeros(lm.rnn.num_layers, lm.rnn.hidden_size)
        return (zeros, zeros.clone()) if isinstance(lm.rnn, nn.LSTM) else zeros

    def begin(self, lm: Any, tokens: torch.Tensor) -> Step:
        """See `IncrementalLM.begin`."""
        output, hidden = lm.rnn(lm.drop(lm.encoder(tokens)), None)
        return lm.decoder(lm.drop(output[:, -1])), self.split_state(lm, hidden)

    def advance(self, lm: Any, tokens: torch.Tensor, states: List[Any]) -> Step:
        """See `IncrementalLM.advance`."""
        hidden = self.stack_states(lm, states)
        output, hidden = one_step(lm.rnn, lm.encoder(tokens), hidden)
        return lm.decoder(output), self.split_state(lm, hidden)

    def stack_states(self, lm: Any, states: List[Any]) -> Any:
        """B states of (nlayers, nhid) -> one of (nlayers, B, nhid)."""
        if not isinstance(lm.rnn, nn.LSTM):
            return torch.stack(states, dim=1)
        h, c = zip(*states, strict=True)
        return torch.stack(h, dim=1), torch.stack(c, dim=1)

    def split_state(self, lm: Any, state: Any) -> List[Any]:
        """One state of (nlayers, B, nhid) -> B of (nlayers, nhid)."""
        if not isinstance(lm.rnn, nn.LSTM):
            return list(state.unbind(1))
        return list(zip(state[0].unbind(1), state[1].unbind(1), strict=True))

    def tree_methods(self, lm: Any) -> Tuple[str, ...]:
        """See `Backbone.tree_methods`: an LSTM has them, unless its output projection is random."""
        if not isinstance(lm.rnn, nn.LSTM) or lm.decoder.random_blocks:
            return ()
        return "tree_outputs", "tree_states", "stack_states", "split_state"

    def tree_outputs(self, lm: Any, tree: TokenTree, state: Optional[Pair] = None) -> torch.Tensor:
        """Return what the output projection gets at each node of prefix trees, (T, nhid).

        `state` is that before the roots, (nlayers, G, nhid).
        """
        return self._along_tree(lm, tree, state)[0]

    def tree_states(self, lm: Any, tree: TokenTree, state: Optional[Pair] = None) -> Pair:
        """Return h and c after each node, (nlayers, T, nhid); `state` as in `tree_outputs`."""
        return self._along_tree(lm, tree, state)[1]

    def _along_tree(
        self, lm: Any, tree: TokenTree, state: Optional[Pair]
    ) -> Tuple[torch.Tensor, Pair]:
        distinct, which = distinct_ids(tree.tokens)
        inputs = lm.encoder(distinct)
        return along_tree(lm.rnn, inputs, which, tree.parents, tree.levels(), state)
