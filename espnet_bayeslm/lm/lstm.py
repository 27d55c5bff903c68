"""LSTM-RNN LM (Xue et al. 2022, II-A) with uncertain gates, and the base of recurrent LMs."""

from __future__ import annotations

import dataclasses
from typing import Any, List, Mapping, Optional, Tuple, Union

import torch
from torch import nn
from typeguard import typechecked

from espnet_bayeslm.bayes import Position, Weights
from espnet_bayeslm.kernels import KERNELS
from espnet_bayeslm.layers.lstm import (
    GATES,
    LSTM,
    NATIVE,
    State,
    function_at,
    gate_weights,
    run_tree,
)
from espnet_bayeslm.lm.beam_search import Step
from espnet_bayeslm.lm.tree import TokenTree
from espnet_bayeslm.lm.uncertain import UncertainLM
from espnet_bayeslm.utils.options import check_least


class RecurrentLM(UncertainLM):
    """A recurrent LM with the layers of ESPnet's `seq_rnn`: encoder, drop, rnn, decoder.

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
        # ESPnet's decoding can put a quantised layer in the place of `decoder`
        zeros = self.encoder.weight.new_zeros(self.rnn.num_layers, self.rnn.hidden_size)
        return (zeros, zeros.clone()) if isinstance(self.rnn, nn.LSTM) else zeros

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

    def tree_outputs(self, tree: TokenTree, state: Optional[State] = None) -> torch.Tensor:
        """Input of the output projection at each node of prefix trees, (T, unit).

        Computed with the mean or the sample of `drawn`, in evaluation mode. `state` is the state
        before the roots, (nlayers, G, unit).
        """
        return self._read_tree(tree, state)[0]

    def tree_states(self, tree: TokenTree, state: Optional[State] = None) -> State:
        """States h and c after each node, (nlayers, T, unit), from the state before the roots."""
        return self._read_tree(tree, state)[1]

    def _read_tree(self, tree: TokenTree, state: Optional[State]) -> Tuple[torch.Tensor, State]:
        """Outputs and states of a tree.

        On a CPU the gates' part of each distinct token is computed once.
        """
        tokens, which, levels = tree.tokens, None, tree.levels
        if tokens.device.type == "cpu":  # another device would be waited for
            tokens, which = tokens.unique(return_inverse=True)
        return self._along_tree(self.encoder(tokens), tree.parents, levels, state, which)

    def _along_tree(self, *args: Any) -> Tuple[torch.Tensor, State]:
        """Run `run_tree`; its kernel knows no Gaussian processes and latent outputs."""
        is_fused = not isinstance(self.rnn, LSTM) or self.rnn.is_fused()
        run = run_tree if is_fused else KERNELS["run_tree"].plain
        return run(self.rnn, *args)


def _gate(name: str) -> Position:
    return Position(weights=gate_weights(GATES, name), function=function_at(name))


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
        check_least(1, unit=unit, nlayers=nlayers)
        check_least(0, below=1, dropout_rate=dropout_rate)
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
