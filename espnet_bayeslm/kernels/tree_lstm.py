"""An LSTM over the nodes of prefix trees, level by level."""

from __future__ import annotations

import functools
from typing import Any, Optional, Sequence, Tuple

import torch
from torch import nn

from espnet_bayeslm.kernels.product import linear, product

State = Tuple[torch.Tensor, torch.Tensor]


def run_tree(
    lstm: nn.LSTM,
    inputs: torch.Tensor,
    parents: torch.Tensor,
    levels: Sequence[slice],
    state: Optional[State] = None,
) -> Tuple[torch.Tensor, State]:
    """Fast twin of `layers.lstm.run_tree`; without gradients, and dropout is off."""
    value = functools.partial(getattr, lstm)
    hidden, cells = [], []
    for k in range(lstm.num_layers):
        bias = value(f"bias_ih_l{k}") + value(f"bias_hh_l{k}")
        gates = linear(inputs, value(f"weight_ih_l{k}"), bias)
        start = None if state is None else (state[0][k], state[1][k])
        inputs, c = _run_layer(gates, value(f"weight_hh_l{k}"), parents, levels, start)
        hidden.append(inputs)
        cells.append(c)
    return inputs, (torch.stack(hidden), torch.stack(cells))


def _run_layer(
    gates: torch.Tensor,
    weight: torch.Tensor,
    parents: torch.Tensor,
    levels: Sequence[slice],
    start: Optional[State],
) -> State:
    """States h and c of each node, (T, H); `gates` (T, 4H) is overwritten."""
    units = weight.size(1)
    h, c = (gates.new_empty(len(gates), units) for _ in range(2))
    widest = max(level.stop - level.start for level in levels)
    # to pack the weights anew costs more than one level gains
    recur: Any = product(weight, widest) if len(levels) > 1 else lambda h: linear(h, weight)
    for depth, level in enumerate(levels):
        z, before = gates[level], start
        if depth > 0:
            before = (h[parents[level]], c[parents[level]])
        if before is not None:
            z += recur(before[0])
        i, f, g, o = z.chunk(4, dim=1)
        g.tanh_()
        i.sigmoid_()
        o.sigmoid_()
        torch.mul(i, g, out=c[level])
        if before is not None:
            c[level].addcmul_(f.sigmoid_(), before[1])
        torch.mul(o, c[level].tanh(), out=h[level])
    return h, c
