"""Forward pass of an LM with the layers of ESPnet's `seq_rnn`: encoder, drop, rnn, decoder."""

from __future__ import annotations

from typing import Any, List, Optional, Tuple

import torch
from torch import nn

from espnet_bayeslm.bayes.look_up import distinct_ids
from espnet_bayeslm.layers.linear import project
from espnet_bayeslm.layers.lstm import run_step, run_tree, runner_for
from espnet_bayeslm.lm.scoring import Step
from espnet_bayeslm.lm.tree import TokenTree
from espnet_bayeslm.lm.uncertain import UncertainLM

Pair = Tuple[torch.Tensor, torch.Tensor]


class RecurrentLM(UncertainLM):
    """An LSTM, GRU or simple recurrent LM.

    A state is (h, c), of a GRU or simple recurrent LM h.
    """

    encoder: Any
    drop: Any
    rnn: Any
    decoder: Any

    def encode(self, embedded: torch.Tensor, hidden: Any = None) -> Tuple[torch.Tensor, Any]:
        """Input of the output projection, (B, L, unit), and the state, (nlayers, B, unit) each."""
        output, hidden = self.rnn(self.drop(embedded), hidden)
        return self.drop(output), hidden

    def compute(self, input: torch.Tensor, hidden: Any) -> Tuple[torch.Tensor, Any]:
        """Logits (B, L, V); the state is h and c, or h, (nlayers, B, unit) each."""
        output, hidden = self.encode(self.encoder(input), hidden)
        return project(self.decoder, output), hidden

    def zero_state(self) -> Any:
        """State at the start, zeros (nlayers, unit)."""
        zeros = self.decoder.bias.new_zeros(self.rnn.num_layers, self.rnn.hidden_size)
        return (zeros, zeros.clone()) if isinstance(self.rnn, nn.LSTM) else zeros

    def begin(self, tokens: torch.Tensor) -> Step:
        """Read prefixes from their start; logits and states after them."""
        output, state = self.encode(self.encoder(tokens))
        return project(self.decoder, output[:, -1]), self.split_state(state)

    def advance(self, tokens: torch.Tensor, states: List[Any]) -> Step:
        """Read one more token of each hypothesis; logits and states after it."""
        step = runner_for(self.rnn, run_step)
        output, state = step(self.rnn, self.encoder(tokens), self.stack_states(states))
        return project(self.decoder, output), self.split_state(state)

    def stack_states(self, states: List[Any]) -> Any:
        """B states of (nlayers, unit) -> one of (nlayers, B, unit)."""
        if not isinstance(self.rnn, nn.LSTM):
            return torch.stack(states, dim=1)
        h, c = zip(*states, strict=True)
        return torch.stack(h, dim=1), torch.stack(c, dim=1)

    def split_state(self, state: Any) -> List[Any]:
        """One state of (nlayers, B, unit) -> B of (nlayers, unit)."""
        if not isinstance(self.rnn, nn.LSTM):
            return list(state.unbind(1))
        return list(zip(state[0].unbind(1), state[1].unbind(1), strict=True))

    def tree_outputs(self, tree: TokenTree, state: Optional[Pair] = None) -> torch.Tensor:
        """Input of the output projection at each node of prefix trees, (T, unit).

        Computed with the mean or the sample of `drawn`, in evaluation mode. `state` is the state
        before the roots, (nlayers, G, unit).
        """
        return self._along_tree(tree, state)[0]

    def tree_states(self, tree: TokenTree, state: Optional[Pair] = None) -> Pair:
        """States h and c after each node, (nlayers, T, unit), from the state before the roots."""
        return self._along_tree(tree, state)[1]

    def _along_tree(self, tree: TokenTree, state: Optional[Pair]) -> Tuple[torch.Tensor, Pair]:
        distinct, which = distinct_ids(tree.tokens)
        inputs = self.encoder(distinct)
        run = runner_for(self.rnn, run_tree)
        return run(self.rnn, inputs, which, tree.parents, tree.levels(), state)
