"""The loop over time of an LSTM's layer with Gaussian processes (Eq. 4-9, 26, 35)."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

from espnet_bayeslm.kernels import KERNELS, has_kernel
from espnet_bayeslm.kernels.product import linear, product, weight_gradient

# In the order of torch's rows: i, f, g, o.
GATES = ("input_gate", "forget_gate", "cell_input", "output_gate")
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
ATEN = torch.ops.aten


class Activation(NamedTuple):
    """An activation function of torch.

    Attributes:
        value: The function; it takes `out`.
        back: (gradient of its value, its value) -> gradient of its argument, in `grad_input`.
    """

    value: Callable[..., torch.Tensor]
    back: Callable[..., torch.Tensor]

    @property
    def coefficients(self) -> None:
        """None: it has no coefficients."""
        return None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Value at x."""
        return self.value(x)

    def gradient(
        self, upper: torch.Tensor, x: torch.Tensor, y: torch.Tensor, out: torch.Tensor
    ) -> None:
        """Gradient of x, from the gradient `upper` of the value y."""
        self.back(upper, y, grad_input=out)


SIGMOID = Activation(torch.sigmoid, ATEN.sigmoid_backward.grad_input)
TANH = Activation(torch.tanh, ATEN.tanh_backward.grad_input)
ACTIVATIONS: Dict[str, Any] = {gate: TANH if NATIVE[gate] == "tanh" else SIGMOID for gate in GATES}


class GatePath(NamedTuple):
    """One way to compute a gate.

    Attributes:
        gate: Number of the gate in `GATES`.
        function: Activation function or Gaussian process.
        share: Share of its value in the gate, (); None: the value is the gate.
        owner: Module with the path's rows of `PARAMETERS`; None: the LSTM's own rows.
    """

    gate: int
    function: Any
    share: Optional[torch.Tensor] = None
    owner: Any = None


class Loop:
    """The functions of layer k's (from 0) loop over time, with Gaussian processes (Eq. 4-9, 26)."""

    # True if a gate may be computed in several ways
    has_paths = False

    def __init__(self, lstm: Any, k: int):
        self.lstm, self.k = lstm, k
        self.paths = self.gate_paths()
        self.input, self.hidden = self.whole("layer_input"), self.whole("hidden_input")
        self.hidden_process = self.process("hidden_input")
        self.cell_process = self.process("cell_state")
        if self.cell_process is not None:
            self.cell_weight = getattr(lstm, f"gp_weight_cell_state_l{k}")
            self.cell_bias = getattr(lstm, f"gp_bias_cell_state_l{k}")
        self.functions = [path.function for path in self.paths]

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

    def process(self, position: str, *, for_paths: bool = False) -> Any:
        """Function u -> sum_j lambda_j phi_j(u) of a position; None without a process."""
        process = self.lstm.processes.get(f"{position}_l{self.k}")
        if process is None:
            return None
        found = self.coefficients(position)
        return process.function(self.by_path(found) if for_paths else found)

    def whole(self, position: str) -> Whole:
        """Weight (PH, ...), bias (PH,) and process of a position on the input of all gates."""
        process, suffix = self.process(position, for_paths=True), WHOLE[position]
        added = None if process is None else lambda x, u: process(u)
        return self.rows(f"weight_{suffix}"), self.rows(f"bias_{suffix}"), added

    def parameters(self) -> List[torch.Tensor]:
        """Tensors by which a loop without further paths computes its steps."""
        found = [self.hidden[0]]
        found += [fn.coefficients for fn in self.functions if fn.coefficients is not None]
        if self.hidden_process is not None:
            found += [self.hidden[1], self.hidden_process.coefficients]
        if self.cell_process is not None:
            found += [self.cell_weight, self.cell_bias, self.cell_process.coefficients]
        return found

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
        for path, x in zip(self.paths, pre.chunk(len(self.paths), dim=-1), strict=True):
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
        return c + self.cell_process(F.linear(c, self.cell_weight, self.cell_bias))


class Record(NamedTuple):
    """Values of L steps, or their gradients.

    Attributes:
        pre: Arguments of the gates, (L, B, 4H). The value of an activation function of torch takes
            the place of its argument.
        gates: Values of the gates, (L, B, H) each.
        hidden: h_t, (L, B, H); values begin with h before the first step.
        cells: c_t, (L, B, H); values begin with c before the first step.
        tanh: tanh(c_t), (L, B, H); in the gradients the derivative of h_t by c_t.
        u: Argument W h + b of the h-Gate's process, (L, B, 4H), or None.
        v: Argument V c + b of the c-Gate's process, (L, B, H), or None.
    """

    pre: torch.Tensor
    gates: Sequence[torch.Tensor]
    hidden: torch.Tensor
    cells: torch.Tensor
    tanh: torch.Tensor
    u: Any
    v: Any


def _run(loop: Loop, gates_in: torch.Tensor, state: State) -> Record:
    """`lstm_loop` without gradients; the arguments of the gates take the place of `gates_in`."""
    of_hidden, of_cell, (weight, bias, _) = loop.hidden_process, loop.cell_process, loop.hidden
    hidden, cells = (x.new_empty(len(gates_in) + 1, *x.shape) for x in state)
    hidden[0], cells[0] = state
    u: Any = None if of_hidden is None else torch.empty_like(gates_in)
    tanh = torch.empty_like(cells[1:])
    v: Any = None if of_cell is None else torch.empty_like(tanh)
    pairs = list(zip(loop.functions, _by_gate(gates_in), strict=True))
    gates = [x if fn.coefficients is None else torch.empty_like(x) for fn, x in pairs]
    recur = product(weight, hidden.size(1), None if of_hidden is None else bias)
    columns = (gates_in, hidden, cells, tanh, cells[1:], hidden[1:], *gates)
    for t, (pre, h, c, tanh_c, new_c, new_h, *values) in enumerate(zip(*columns, strict=False)):
        from_h = recur(h)
        pre += from_h
        if of_hidden is not None:
            u[t] = from_h
            pre += of_hidden.value(from_h)
        rows = zip(loop.functions, _by_gate(pre), values, strict=True)
        i, f, g, o = (function.value(x, out=y) for function, x, y in rows)
        torch.mul(f, c, out=new_c).addcmul_(i, g)
        if of_cell is not None:
            torch.addmm(loop.cell_bias, c, loop.cell_weight.t(), out=v[t])
            new_c.addcmul_(f, of_cell.value(v[t]))
        torch.mul(o, torch.tanh(new_c, out=tanh_c), out=new_h)
    return Record(gates_in, gates, hidden, cells, tanh, u, v)


def _run_back(
    loop: Loop, values: Record, d_pre: torch.Tensor, d_outputs: torch.Tensor, state: State
) -> Tuple[Record, State]:
    """Gradients of the steps and of the state before them, from those after them.

    `d_pre` comes with the derivatives of c_t by the arguments of i, f and g, and of h_t by that of
    o: their gradients take its place.
    """
    (d_h, d_c), (_, f, _, o), size = state, values.gates, 3 * values.tanh.size(2)
    by_cell = ATEN.tanh_backward(o, values.tanh)  # of h_t by c_t
    d_hidden, d_cells, d_u, d_v = torch.empty_like(by_cell), torch.empty_like(by_cell), d_pre, None
    back = product(loop.hidden[0].t(), len(d_h))
    if values.u is not None:
        of_u, d_u = loop.hidden_process.slope(values.u).add_(1), torch.empty_like(d_pre)
    if values.v is not None:
        of_v, d_v = loop.cell_process.slope(values.v).mul_(f), torch.empty_like(by_cell)
    for t in range(len(d_pre) - 1, -1, -1):
        d_h = torch.add(d_h, d_outputs[t], out=d_hidden[t])
        d_c = torch.addcmul(d_c, d_h, by_cell[t], out=d_cells[t])
        d_pre[t, :, :size].unflatten(1, (3, -1)).mul_(d_c.unsqueeze(1))
        d_pre[t, :, size:].mul_(d_h)
        if values.u is not None:
            torch.mul(d_pre[t], of_u[t], out=d_u[t])
        d_h = back(d_u[t])
        d_c = d_c * f[t]
        if d_v is not None:
            d_c.addmm_(torch.mul(d_cells[t], of_v[t], out=d_v[t]), loop.cell_weight)
    d_gates = (d_cells, d_cells, d_cells, d_hidden)
    return Record(d_pre, d_gates, d_hidden, d_cells, by_cell, d_u, d_v), (d_h, d_c)


class _Steps(torch.autograd.Function):
    """`lstm_loop` without a graph of its steps: only what recurs is computed step by step."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, loop: Loop, gates_in: torch.Tensor, h: torch.Tensor, c: torch.Tensor, *_: Any
    ) -> Tuple[torch.Tensor, ...]:
        ctx.loop, ctx.values = loop, _run(loop, gates_in.detach(), (h, c))
        hidden, cells = ctx.values.hidden, ctx.values.cells
        return hidden[1:], hidden[-1].clone(), cells[-1].clone()

    @staticmethod
    @once_differentiable
    def backward(  # type: ignore[override]
        ctx: Any, d_outputs: torch.Tensor, d_h: torch.Tensor, d_c: torch.Tensor
    ) -> Tuple[Any, ...]:
        loop, values = ctx.loop, ctx.values
        (i, f, g, _), h, c = values.gates, values.hidden[:-1], values.cells[:-1]
        used = c if values.v is None else c + loop.cell_process.value(values.v)
        factors = (g, used, i, values.tanh)  # c_t = f used + i g, h_t = o tanh(c_t)
        d_pre, pre = torch.empty_like(values.pre), _by_gate(values.pre)
        rows = zip(loop.functions, factors, pre, values.gates, _by_gate(d_pre), strict=True)
        for function, factor, x, y, out in rows:
            function.gradient(factor, x, y, out)
        d, state = _run_back(loop, values, d_pre, d_outputs, (d_h, d_c))
        # in the order of `Loop.parameters`
        found = [weight_gradient(d.u, h)]
        for function, factor, x, upper in zip(loop.functions, factors, pre, d.gates, strict=True):
            if function.coefficients is not None:
                found.append(function.sums(x, upper * factor))
        if values.u is not None:
            found += [d.u.sum((0, 1)), loop.hidden_process.sums(values.u, d.pre)]
        if values.v is not None:
            found += [weight_gradient(d.v, c), d.v.sum((0, 1))]
            found.append(loop.cell_process.sums(values.v, d.cells * f))
        return None, d.pre, *state, *found


def _by_gate(x: torch.Tensor) -> Tuple[torch.Tensor, ...]:
    """Parts of the gates, (..., 4H) -> (..., H) each."""
    return x.chunk(len(GATES), dim=-1)


def _fast_loop(loop: Loop, gates_in: torch.Tensor, state: State) -> Tuple[torch.Tensor, State]:
    """Fast twin of `lstm_loop`, of loops without further paths; `gates_in` is overwritten."""
    if loop.has_paths:
        found: Tuple[torch.Tensor, State] = KERNELS["lstm_loop"].plain(loop, gates_in, state)
        return found
    outputs, h, c = _Steps.apply(loop, gates_in, *state, *loop.parameters())
    return outputs, (h, c)


@has_kernel(_fast_loop)
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
