"""Torch's fused LSTM with Gaussian-process activations and latent outputs."""

from __future__ import annotations

import contextlib
import functools
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Type

import torch
import torch.nn.functional as F
from torch import nn

from espnet_bayeslm.bayes import Weights
from espnet_bayeslm.bayes.posterior import is_random, refuse_mean
from espnet_bayeslm.bayes.weights import Function
from espnet_bayeslm.kernels import has_kernel
from espnet_bayeslm.kernels.product import has_onednn, linear, product
from espnet_bayeslm.layers.lstm_loop import GATES, NATIVE, WHOLE, Loop, State, lstm_loop

PARAMETERS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


def gate_weights(gates: Sequence[str], gate: str) -> Tuple[Weights, ...]:
    """Weights of one of the gates, given in the order of torch's rows, of the LM's layer `rnn`."""
    part = (list(gates).index(gate), len(gates))
    return tuple(Weights(f"rnn.{name}_l{{k}}", part, gate) for name in PARAMETERS)


def function_at(position: str) -> Function:
    """The function that a Gaussian process may replace at a position of the LM's layer `rnn`.

    The gates have an activation function. At the other positions an LSTM is linear, and the mean
    function of the process is the identity: f(u) = u + sum_j lambda_j phi_j(u), all coefficients 0
    at the start. There u is W_ih x + b_ih (`layer_input`) or W_hh h + b_hh (`hidden_input`), 4H
    units each; for `cell_state` f(c) = c + sum_j lambda_j phi_j(V c + b), V an identity at the
    start.
    """
    weights: Tuple[Weights, ...] = ()
    if position in GATES:
        weights = gate_weights(GATES, position)
    elif position in WHOLE:
        weights = tuple(Weights(f"rnn.{x}_{WHOLE[position]}_l{{k}}") for x in ("weight", "bias"))
    return Function(NATIVE[position], "rnn", weights)


class LSTM(nn.LSTM):
    """`torch.nn.LSTM` with Gaussian processes and latent outputs (Eq. 4-9, 26, 29).

    Without these the fused kernel runs: no loop over time steps here. Otherwise it runs layer by
    layer.

    Attributes:
        processes: The Gaussian processes (`kinds.gp.Process`), by `{position}_l{layer from 0}`.
        loop: Class of a layer's loop.
    """

    loop: Type[Loop] = Loop

    processes: Mapping[str, Any] = {}

    @property
    def output_size(self) -> int:
        """Size of a layer's hidden output."""
        return self.hidden_size

    def add_process(self, key: str, process: Any) -> List[str]:
        """Put a `Process` at `{position}_l{layer from 0}`; names of its parameters."""
        self.processes = {**self.processes, key: process}
        start = self._start_of_process(key)
        for name, value in start.items():
            self.register_parameter(name, nn.Parameter(value))
        return list(start)

    def _start_of_process(self, key: str) -> Dict[str, torch.Tensor]:
        """Parameters of a Gaussian process that is the function it replaces."""
        position, size = key.rpartition("_l")[0], self.hidden_size
        units = 4 * size if position in WHOLE else size
        start = {f"gp_coefficients_{key}": self.processes[key].start(units)}
        if position == "cell_state":
            start.update({f"gp_weight_{key}": torch.eye(size), f"gp_bias_{key}": torch.zeros(size)})
        return start

    def reset(self) -> None:
        """Make every Gaussian process the function that it starts as."""
        for key in self.processes:
            for name, value in self._start_of_process(key).items():
                getattr(self, name).data.copy_(value)

    def add_latent(self, key: str, latent: nn.Module) -> None:
        """Put a latent variable behind a layer's output, `hidden_output_l{layer from 0}`."""
        self.add_module(f"latent_{key.rpartition('_')[2]}", latent)

    def has_loop(self, k: int) -> bool:
        """True if layer k (from 0) needs its own loop over time steps."""
        return any(key.endswith(f"_l{k}") for key in self.processes)

    def is_fused(self) -> bool:
        """True if torch's fused kernel computes all layers, as in an ordinary LSTM."""
        layers = range(self.num_layers)
        return not any(self.has_loop(k) or hasattr(self, f"latent_l{k}") for k in layers)

    def _values_in_use(self, names: List[str]) -> List[torch.Tensor]:
        """Weights in the order of the names.

        On CUDA a sample is views of one flat buffer, which cuDNN would otherwise make.
        """
        values = [getattr(self, name) for name in names]
        sampled = any(not isinstance(value, nn.Parameter) for value in values)
        if not (sampled and all(value.is_cuda for value in values)):
            return values
        order = sorted(names, key=lambda name: name.startswith("bias"))
        flat = torch.cat([getattr(self, name).reshape(-1) for name in order])
        shapes = [getattr(self, name).shape for name in order]
        parts = flat.split([shape.numel() for shape in shapes])
        views = {name: p.view(shape) for name, p, shape in zip(order, parts, shapes, strict=True)}
        return [views[name] for name in names]

    def forward(  # type: ignore[override]  # no packed sequences
        self, input: torch.Tensor, hx: Optional[State] = None
    ) -> Tuple[torch.Tensor, State]:
        """Run the LSTM.

        Args:
            input: (B, L, input_size).
            hx: h and c, each (num_layers, B, hidden_size); default zeros.

        Returns:
            Outputs (B, L, hidden_size); recurrent vector h and cells c after the last step.
        """
        if is_random(self):
            refuse_mean(self)
        if hx is None:
            zeros = input.new_zeros(self.num_layers, input.size(0), self.hidden_size)
            hx = (zeros, zeros)
        if self.is_fused():
            return self._fused(input, hx, self._flat_weights_names, self.dropout)
        states = []
        for k in range(self.num_layers):
            if k > 0:
                input = F.dropout(input, self.dropout, self.training)
            before = (hx[0][k : k + 1], hx[1][k : k + 1])
            if self.has_loop(k):
                input, state = self._loop_layer(k, input, before)
            else:
                input, state = self._fused(input, before, [f"{p}_l{k}" for p in PARAMETERS])
            latent = getattr(self, f"latent_l{k}", None)
            input = input if latent is None else latent(input)
            states.append(state)
        h, c = zip(*states, strict=True)
        return input, (torch.cat(h), torch.cat(c))

    def _fused(
        self, input: torch.Tensor, hx: State, names: List[str], dropout: float = 0.0
    ) -> Tuple[torch.Tensor, State]:
        """Run layers by torch's fused kernel with the weights of these names."""
        weights, num_layers = self._values_in_use(names), len(names) // len(PARAMETERS)
        training, batch_first = self.training, self.batch_first
        precise: Any = contextlib.nullcontext()
        if torch.is_autocast_enabled("cpu") and not has_onednn(torch.bfloat16):
            # torch has no such LSTM on this CPU
            precise, dtype = torch.autocast("cpu", enabled=False), weights[0].dtype
            input, hx = input.to(dtype), (hx[0].to(dtype), hx[1].to(dtype))
        with precise:
            output, h, c = torch.lstm(
                input, hx, weights, True, num_layers, dropout, training, False, batch_first
            )
        return output, (h, c)

    def _loop_layer(self, k: int, input: torch.Tensor, hx: State) -> Tuple[torch.Tensor, State]:
        """Run layer k by our own loop."""
        # the loop computes in the weights' precision, whatever autocast says
        with torch.autocast(input.device.type, enabled=False):
            dtype = self.all_weights[0][0].dtype
            x, h, c = (tensor.to(dtype) for tensor in (input.transpose(0, 1), hx[0][0], hx[1][0]))
            loop = self.loop(self, k)
            output, (h, c) = lstm_loop(loop, loop.gates_in(x), (h, c))
        return output.transpose(0, 1), (h.unsqueeze(0), c.unsqueeze(0))


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


def _fast_tree(
    lstm: nn.LSTM,
    inputs: torch.Tensor,
    parents: torch.Tensor,
    levels: Sequence[slice],
    state: Optional[State] = None,
    which: Optional[torch.Tensor] = None,
) -> Tuple[torch.Tensor, State]:
    """Fast twin of `run_tree`; without gradients, and dropout is off."""
    value = functools.partial(getattr, lstm)
    hidden, cells = [], []
    for k in range(lstm.num_layers):
        bias = value(f"bias_ih_l{k}") + value(f"bias_hh_l{k}")
        gates = linear(inputs, value(f"weight_ih_l{k}"), bias)
        gates = gates if k > 0 or which is None else gates[which]
        start = None if state is None else (state[0][k], state[1][k])
        inputs, c = _run_layer(gates, value(f"weight_hh_l{k}"), parents, levels, start)
        hidden.append(inputs)
        cells.append(c)
    return inputs, (torch.stack(hidden), torch.stack(cells))


@has_kernel(_fast_tree)
def run_tree(
    lstm: nn.LSTM,
    inputs: torch.Tensor,
    parents: torch.Tensor,
    levels: Sequence[slice],
    state: Optional[State] = None,
    which: Optional[torch.Tensor] = None,
) -> Tuple[torch.Tensor, State]:
    """Run an LSTM over prefix trees, level by level: a node continues its parent's state.

    Args:
        lstm: The LSTM.
        inputs: (T, input_size), or (D, input_size) with `which`.
        parents: (T,), -1 for the roots, which are the first level.
        levels: The nodes of each depth.
        state: h and c before the roots, each (num_layers, roots, hidden_size); default zeros.
        which: (T,), the row of `inputs` of each node, where nodes have equal inputs.

    Returns:
        The outputs (T, hidden_size); h and c after each node, (num_layers, T, hidden_size).
    """
    inputs = inputs if which is None else inputs[which]
    size = (lstm.num_layers, len(inputs), lstm.hidden_size)
    h, c = (inputs.new_empty(size) for _ in range(2))
    outputs = inputs.new_empty(len(inputs), lstm.hidden_size)
    for depth, level in enumerate(levels):
        before = state if depth == 0 else (h[:, parents[level]], c[:, parents[level]])
        y, (h[:, level], c[:, level]) = lstm(inputs[level].unsqueeze(1), before)
        outputs[level] = y.squeeze(1)
    return outputs, (h, c)
