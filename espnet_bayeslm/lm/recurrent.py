"""Forward pass of an LM with the layers of ESPnet's `seq_rnn`: encoder, drop, rnn, decoder."""

from __future__ import annotations

from typing import Any, List, Optional, Tuple

import torch
from torch import nn

from espnet_bayeslm.kernels import KERNELS
from espnet_bayeslm.layers import LSTM
from espnet_bayeslm.layers.lstm import run_tree
from espnet_bayeslm.lm.projected import ProjectedLM
from espnet_bayeslm.lm.scoring import Step
from espnet_bayeslm.lm.tree import TokenTree

Pair = Tuple[torch.Tensor, torch.Tensor]


class RecurrentLM(ProjectedLM):
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

    def projected(self, input: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        """Input of the output projection, (B, L, unit)."""
        return self.encode(self.encoder(input))[0]

    def compute(self, input: torch.Tensor, hidden: Any) -> Tuple[torch.Tensor, Any]:
        """Logits (B, L, V); the state is h and c, or h, (nlayers, B, unit) each."""
        output, hidden = self.encode(self.encoder(input), hidden)
        return self.project(output), hidden

    @property
    def computes_trees(self) -> bool:  # type: ignore[override]
        """True if the layers are an LSTM and the output projection keeps its mean."""
        return isinstance(self.rnn, nn.LSTM) and self.keeps_projection()

    continues_trees = computes_trees

    def zero_state(self) -> Any:
        """State at the start, zeros (nlayers, unit)."""
        zeros = self.decoder.bias.new_zeros(self.rnn.num_layers, self.rnn.hidden_size)
        return (zeros, zeros.clone()) if isinstance(self.rnn, nn.LSTM) else zeros

    def begin(self, tokens: torch.Tensor) -> Step:
        """Read prefixes from their start; logits and states after them."""
        output, state = self.encode(self.encoder(tokens))
        return self.project(output[:, -1]), self.split_state(state)

    def advance(self, tokens: torch.Tensor, states: List[Any]) -> Step:
        """Read one more token of each hypothesis; logits and states after it."""
        inputs, before = self.encoder(tokens), self.stack_states(states)
        if isinstance(self.rnn, nn.LSTM):
            roots, level = torch.full_like(tokens, -1), slice(0, len(tokens))
            output, state = self._along_tree(inputs, roots, [level], before)
        else:
            output, state = self.rnn(inputs.unsqueeze(1), before)
            output = output.squeeze(1)
        return self.project(output), self.split_state(state)

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
        inputs = self.encoder(tree.tokens)
        return self._along_tree(inputs, tree.parents, tree.levels(), state)[0]

    def tree_states(self, tree: TokenTree, state: Optional[Pair] = None) -> Pair:
        """States h and c after each node, (nlayers, T, unit), from the state before the roots."""
        inputs = self.encoder(tree.tokens)
        return self._along_tree(inputs, tree.parents, tree.levels(), state)[1]

    def _along_tree(self, *args: Any) -> Tuple[torch.Tensor, Pair]:
        """Run `run_tree`; its kernel knows no Gaussian processes and latent outputs."""
        is_fused = not isinstance(self.rnn, LSTM) or self.rnn.is_fused()
        run = run_tree if is_fused else KERNELS["run_tree"].plain
        return run(self.rnn, *args)
