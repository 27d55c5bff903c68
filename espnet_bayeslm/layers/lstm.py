"""Torch's fused LSTM with Gaussian-process activations and latent outputs."""

from __future__ import annotations

import contextlib
import functools
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Type

import torch
import torch.nn.functional as F
from torch import nn

from espnet_bayeslm.bayes import Weights
from espnet_bayeslm.bayes.posterior import is_random, refuse_mean
from espnet_bayeslm.bayes.weights import Function
from espnet_bayeslm.kernels import has_kernel
from espnet_bayeslm.kernels.product import has_onednn, linear, product

# In the order of torch's rows: i, f, g, o.
GATES = ("input_gate", "forget_gate", "cell_input", "output_gate")
PARAMETERS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
# Positions on the input of all gates, and the suffix of their weights.
WHOLE = {"hidden_input": "hh", "layer_input": "ih"}
# Position -> activation function that a Gaussian process replaces; None where an LSTM is linear.
NATIVE = {
    "input_gate": "sigmoid",
    "forget_gate": "sigmoid",
    "cell_input": "tanh",
    "output_gate": "sigmoid",
    "cell_state": None,
    "hidden_input": None,
    "layer_input": None,
}
State = Tuple[torch.Tensor, torch.Tensor]
UnitFunction = Callable[[torch.Tensor], torch.Tensor]
# W and b of the part of the gates that comes from h_{t-1} or x_t, and the Gaussian process that is
# added to u = W x + b, if any: (x, u) -> sum_j lambda_j phi_j(u), (..., PH).
Whole = Tuple[
    torch.Tensor, torch.Tensor, Optional[Callable[[torch.Tensor, torch.Tensor], torch.Tensor]]
]
ACTIVATIONS: Dict[str, UnitFunction] = {
    gate: torch.tanh if NATIVE[gate] == "tanh" else torch.sigmoid for gate in GATES
}


class GatePath(NamedTuple):
    """One way to compute a gate.

    Attributes:
        gate: Number of the gate in `GATES`.
        function: Activation function or Gaussian process.
        share: Share of its value in the gate, (); None: the value is the gate.
        owner: Module with the path's rows of `PARAMETERS`; None: the LSTM's own rows.
    """

    gate: int
    function: UnitFunction
    share: Optional[torch.Tensor] = None
    owner: Any = None


class Loop:
    """The functions of layer k's (from 0) loop over time, with Gaussian processes (Eq. 4-9, 26)."""

    def __init__(self, lstm: LSTM, k: int):
        self.lstm, self.k = lstm, k
        self.paths = self.gate_paths()
        self.input, self.hidden = self.whole("layer_input"), self.whole("hidden_input")
        self.cell_process = self.process("cell_state")
        if self.cell_process is not None:
            names = (f"gp_{name}_cell_state_l{k}" for name in ("weight", "bias"))
            self.cell_weights = [getattr(lstm, name) for name in names]

    def gate_paths(self) -> List[GatePath]:
        """Paths of all gates: those with the LSTM's own rows, in the order of `GATES`, and more."""
        functions = (self.process(gate) or ACTIVATIONS[gate] for gate in GATES)
        return [GatePath(number, function) for number, function in enumerate(functions)]

    def by_path(self, x: torch.Tensor, dim: int = -1) -> torch.Tensor:
        """Each gate's values for all of its paths, (..., 4H) -> (..., PH)."""
        parts = x.chunk(len(GATES), dim=dim)
        further = [parts[path.gate] for path in self.paths[len(GATES) :]]
        return torch.cat([x, *further], dim=dim) if further else x

    def rows(self, parameter: str) -> torch.Tensor:
        """Rows of a parameter for all paths of the gates, (PH, ...)."""
        own = getattr(self.lstm, f"{parameter}_l{self.k}")
        further = [getattr(path.owner, parameter) for path in self.paths[len(GATES) :]]
        if not further:
            return own
        # Torch keeps a concatenation's gradients as views of one tensor, and clipping would scale
        # twice what the parameters of two that are added, the biases, have between them. A
        # product's gradient has a memory of its own.
        return torch.cat([1.0 * part for part in (own, *further)])

    def coefficients(self, position: str) -> torch.Tensor:
        """Coefficients of a Gaussian process, (J, units)."""
        return getattr(self.lstm, f"gp_coefficients_{position}_l{self.k}")

    def process(self, position: str, *, for_paths: bool = False) -> Optional[UnitFunction]:
        """Function u -> sum_j lambda_j phi_j(u) of a position; None without a process."""
        process = self.lstm.processes.get(f"{position}_l{self.k}")
        if process is None:
            return None
        found = self.coefficients(position)
        return functools.partial(process, coefficients=self.by_path(found) if for_paths else found)

    def whole(self, position: str) -> Whole:
        """Weight (PH, ...), bias (PH,) and process of a position on the input of all gates."""
        process, suffix = self.process(position, for_paths=True), WHOLE[position]
        added = None if process is None else lambda x, u: process(u)
        return self.rows(f"weight_{suffix}"), self.rows(f"bias_{suffix}"), added

    def gates_in(self, x: torch.Tensor) -> torch.Tensor:
        """Part of the gates that the inputs (L, B, M) and the biases make, (L, B, PH)."""
        (weight, bias, process), (_, recurrent, is_apart) = self.input, self.hidden
        # without a process on it the recurrent bias is added once, for all steps
        if process is None:
            return linear(x, weight, bias if is_apart else bias + recurrent)
        u = linear(x, weight, bias)
        found = u + process(x, u)
        return found if is_apart else found + recurrent

    def recurrent_part(self, h: torch.Tensor) -> torch.Tensor:
        """Recurrent part of the gates: u = W h, or f(u) = u + sum_j lambda_j phi_j(u) (h-Gate)."""
        weight, bias, process = self.hidden
        if process is None:
            return F.linear(h, weight)
        u = F.linear(h, weight, bias)  # (B, PH)
        return u + process(h, u)

    def gates(self, pre: torch.Tensor) -> List[torch.Tensor]:
        """Input gate, forget gate, cell input and output gate (Eq. 5, 4, 6, 7), (B, H) each.

        A gate of several paths is the mean of their values, weighted by their shares (Eq. 35).
        """
        gates: List[torch.Tensor] = []
        for path, x in zip(self.paths, pre.chunk(len(self.paths), dim=1), strict=True):
            value = path.function(x)
            value = value if path.share is None else path.share * value
            if path.owner is None:
                gates.append(value)
            else:
                gates[path.gate] = gates[path.gate] + value
        return gates

    def cell_part(self, c: torch.Tensor) -> torch.Tensor:
        """Factor of the forget gate: c, or f(c) = c + sum_j lambda_j phi_j(V c + b) (c-Gate)."""
        if self.cell_process is None:
            return c
        return c + self.cell_process(F.linear(c, *self.cell_weights))


def lstm_loop(loop: Loop, gates_in: torch.Tensor, state: State) -> Tuple[torch.Tensor, State]:
    """An LSTM layer over L steps (Eq. 4-9), with Gaussian processes.

    Args:
        loop: The layer's functions.
        gates_in: Theta [x_t, 1] of all paths of the gates, (L, B, PH); of an ordinary LSTM P is 4.
        state: h and c before the first step, (B, H).

    Returns:
        h_t (L, B, H); h and c after the last step, (B, H).
    """
    h, c = state
    hiddens = []
    for of_input in gates_in:
        i, f, g, o = loop.gates(of_input + loop.recurrent_part(h))  # of Theta [x_t, h_{t-1}, 1]
        c = f * loop.cell_part(c) + i * g  # Eq. 8
        h = o * torch.tanh(c)  # Eq. 9
        hiddens.append(h)
    return torch.stack(hiddens), (h, c)


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
