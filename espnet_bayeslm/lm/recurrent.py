"""How an LM with layers `encoder`, `drop`, `rnn` and `decoder` is run.

They are ESPnet's `seq_rnn`'s, and these functions the methods of `bayes_lstm` and of that LM as a
backbone of `bayes_espnet`. A state is (h, c), of a GRU or simple recurrent LM h.
"""

from __future__ import annotations

from typing import Any, List, Optional, Tuple

import torch
from torch import nn

from espnet_bayeslm.layers.embedding import distinct_ids
from espnet_bayeslm.layers.linear import project
from espnet_bayeslm.layers.lstm import run_step, run_tree, twin_for
from espnet_bayeslm.lm.scoring import Step
from espnet_bayeslm.lm.tree import TokenTree

Pair = Tuple[torch.Tensor, torch.Tensor]


def encode(lm: Any, input: torch.Tensor, hidden: Any = None) -> Tuple[torch.Tensor, Any]:
    """Input of the output projection, (B, L, unit), and the state, (nlayers, B, unit) each."""
    output, hidden = lm.rnn(lm.drop(lm.encoder(input)), hidden)
    return lm.drop(output), hidden


def compute(lm: Any, input: torch.Tensor, hidden: Any) -> Tuple[torch.Tensor, Any]:
    """See `UncertainLM.compute`; the state is h and c, or h, (nlayers, B, unit) each."""
    output, hidden = encode(lm, input, hidden)
    return project(lm.decoder, output), hidden


def zero_state(lm: Any) -> Any:
    """State at the start, zeros (nlayers, unit)."""
    zeros = lm.decoder.bias.new_zeros(lm.rnn.num_layers, lm.rnn.hidden_size)
    return (zeros, zeros.clone()) if isinstance(lm.rnn, nn.LSTM) else zeros


def begin(lm: Any, tokens: torch.Tensor) -> Step:
    """See `IncrementalLM.begin`."""
    output, state = encode(lm, tokens)
    return project(lm.decoder, output[:, -1]), split_state(lm, state)


def advance(lm: Any, tokens: torch.Tensor, states: List[Any]) -> Step:
    """See `IncrementalLM.advance`."""
    step = twin_for(lm.rnn, run_step)
    output, state = step(lm.rnn, lm.encoder(tokens), stack_states(lm, states))
    return project(lm.decoder, output), split_state(lm, state)


def stack_states(lm: Any, states: List[Any]) -> Any:
    """B states of (nlayers, unit) -> one of (nlayers, B, unit)."""
    if not isinstance(lm.rnn, nn.LSTM):
        return torch.stack(states, dim=1)
    h, c = zip(*states, strict=True)
    return torch.stack(h, dim=1), torch.stack(c, dim=1)


def split_state(lm: Any, state: Any) -> List[Any]:
    """One state of (nlayers, B, unit) -> B of (nlayers, unit)."""
    if not isinstance(lm.rnn, nn.LSTM):
        return list(state.unbind(1))
    return list(zip(state[0].unbind(1), state[1].unbind(1), strict=True))


def tree_outputs(lm: Any, tree: TokenTree, state: Optional[Pair] = None) -> torch.Tensor:
    """Input of the output projection at each node of prefix trees, (T, unit).

    With the mean or what `drawn` holds, in evaluation mode. `state` is that before the roots,
    (nlayers, G, unit).
    """
    return _along_tree(lm, tree, state)[0]


def tree_states(lm: Any, tree: TokenTree, state: Optional[Pair] = None) -> Pair:
    """States h and c after each node, (nlayers, T, unit); `state` as in `tree_outputs`."""
    return _along_tree(lm, tree, state)[1]


def _along_tree(lm: Any, tree: TokenTree, state: Optional[Pair]) -> Tuple[torch.Tensor, Pair]:
    distinct, which = distinct_ids(tree.tokens)
    inputs = lm.encoder(distinct)
    run = twin_for(lm.rnn, run_tree)
    return run(lm.rnn, inputs, which, tree.parents, tree.levels(), state)
