"""One LSTM layer over time, with Gaussian-process activations and latent outputs.

Where torch's fused LSTM cannot be used (an activation function is a mixture, or a latent output
feeds the next step) a step is one product with the recurrent weights and a few elementwise
kernels.
"""

from __future__ import annotations

from typing import List, NamedTuple, Optional, Tuple

import torch

from espnet_bayeslm.bayes.gaussian import clamp_log_std
from espnet_bayeslm.layers.activation import Mix, tanh
from espnet_bayeslm.layers.product import product

Basis = Tuple[str, ...]


class LoopInputs(NamedTuple):
    """The tensors of a layer's loop over L steps of B sequences with H units.

    Attributes:
        gates_in: What the inputs and the biases contribute to the gates, (L, B, 4H), in torch's
            order: input gate, forget gate, cell input, output gate.
        h: What recurred last, (B, H).
        c: The cells, (B, H).
        weight: Recurrent weights, (4H, H).
        input_gate, forget_gate, cell_input, output_gate: Coefficients (J, H) where the gate's
            activation is a mixture.
        hidden_input: Coefficients (J, 4H) of f(u) = u + sum_j lambda_j phi_j(u),
            u = weight h + hidden_bias (the h-Gate).
        hidden_bias: (4H,), with `hidden_input` only.
        cell_state: Coefficients (J, H) of f(c) = c + sum_j lambda_j phi_j(cell_weight c +
            cell_bias) (the c-Gate).
        cell_weight: (H, H).
        cell_bias: (H,).
        latent_weight: Makes mean and log standard deviation of z_t from h_t, (2H, H); z_t then
            recurs in place of h_t.
        latent_bias: (2H,).
        noise: (L, B, H); None for the mean.
    """

    gates_in: torch.Tensor
    h: torch.Tensor
    c: torch.Tensor
    weight: torch.Tensor
    input_gate: Optional[torch.Tensor] = None
    forget_gate: Optional[torch.Tensor] = None
    cell_input: Optional[torch.Tensor] = None
    output_gate: Optional[torch.Tensor] = None
    hidden_input: Optional[torch.Tensor] = None
    hidden_bias: Optional[torch.Tensor] = None
    cell_state: Optional[torch.Tensor] = None
    cell_weight: Optional[torch.Tensor] = None
    cell_bias: Optional[torch.Tensor] = None
    latent_weight: Optional[torch.Tensor] = None
    latent_bias: Optional[torch.Tensor] = None
    noise: Optional[torch.Tensor] = None

    @property
    def gates(self) -> Tuple[Optional[torch.Tensor], ...]:
        """The gates' coefficients in torch's order."""
        return self.input_gate, self.forget_gate, self.cell_input, self.output_gate


class Bases(NamedTuple):
    """The basis functions of each mixture of `LoopInputs`."""

    gates: Tuple[Basis, ...] = ((), (), (), ())
    hidden_input: Basis = ()
    cell_state: Basis = ()


class Record(NamedTuple):
    """What the forward pass leaves to the backward pass.

    Attributes:
        pre: What the gates' activations are applied to, (L, B, 4H).
        act: The gates, (L, B, 4H).
        cell: The cells before the first step and after each, (L + 1, B, H).
        hidden: What recurs, before the first step and after each, (L + 1, B, H).
        tanh_cell: (L, B, H).
        recurrent: weight h + hidden_bias, (L, B, 4H) (with `hidden_input`).
        cell_pre: cell_weight c + cell_bias, (L, B, H) (with `cell_state`).
        cell_mixed: What the forget gate is multiplied with, (L, B, H) (with `cell_state`).
        output: h_t, (L, B, H), where z_t recurs in its place.
        latent: Mean and log standard deviation of z_t, (L, B, 2H).
    """

    pre: torch.Tensor
    act: torch.Tensor
    cell: torch.Tensor
    hidden: torch.Tensor
    tanh_cell: torch.Tensor
    recurrent: Optional[torch.Tensor] = None
    cell_pre: Optional[torch.Tensor] = None
    cell_mixed: Optional[torch.Tensor] = None
    output: Optional[torch.Tensor] = None
    latent: Optional[torch.Tensor] = None

    @property
    def cell_used(self) -> torch.Tensor:
        """What the forget gate is multiplied with, (L, B, H)."""
        return self.cell[:-1] if self.cell_mixed is None else self.cell_mixed

    @property
    def outputs(self) -> torch.Tensor:
        """h_t, (L, B, H)."""
        return self.hidden[1:] if self.output is None else self.output


def empty_record(inputs: LoopInputs) -> Record:
    """Return a record with what was there before the first step."""
    steps, batch, gates = inputs.gates_in.shape
    units = gates // 4
    new = inputs.gates_in.new_empty

    def only(needed: Optional[torch.Tensor], size: int) -> Optional[torch.Tensor]:
        return None if needed is None else new(steps, batch, size)

    record = Record(
        new(steps, batch, gates),
        new(steps, batch, gates),
        new(steps + 1, batch, units),
        new(steps + 1, batch, units),
        new(steps, batch, units),
        recurrent=only(inputs.hidden_input, gates),
        cell_pre=only(inputs.cell_state, units),
        cell_mixed=only(inputs.cell_state, units),
        output=only(inputs.latent_weight, units),
        latent=only(inputs.latent_weight, 2 * units),
    )
    record.cell[0], record.hidden[0] = inputs.c, inputs.h
    return record


def gates_of(x: torch.Tensor) -> List[Tuple[torch.Tensor, ...]]:
    """(L, B, 4H) -> for each step the four gates' (B, H)."""
    return list(zip(*(gate.unbind(0) for gate in x.chunk(4, dim=2)), strict=True))


def run_loop(inputs: LoopInputs, bases: Bases) -> Record:
    """Run the loop (Eq. 4-9)."""
    record = empty_record(inputs)
    batch = inputs.gates_in.size(1)
    recur = product(inputs.weight, batch)
    infer = None if inputs.latent_weight is None else product(inputs.latent_weight, batch)
    mixes = {
        gate: Mix(coefficients, bases.gates[gate])
        for gate, coefficients in enumerate(inputs.gates)
        if coefficients is not None
    }
    mix_hidden, mix_cell = (
        None if coefficients is None else Mix(coefficients, basis)
        for coefficients, basis in (
            (inputs.hidden_input, bases.hidden_input),
            (inputs.cell_state, bases.cell_state),
        )
    )
    outputs, cells_used = record.outputs.unbind(0), record.cell_used.unbind(0)
    cells, hidden, tanh_cells = (
        x.unbind(0) for x in (record.cell, record.hidden, record.tanh_cell)
    )
    pre_gates, act_gates = gates_of(record.pre), gates_of(record.act)
    steps = zip(inputs.gates_in.unbind(0), record.pre.unbind(0), record.act.unbind(0), strict=True)
    for t, (gates_in, pre, act) in enumerate(steps):
        recurrent = recur(hidden[t])
        if mix_hidden is not None:
            u = torch.add(recurrent, inputs.hidden_bias, out=record.recurrent[t])
            recurrent = mix_hidden(u).add_(u)
        torch.add(gates_in, recurrent, out=pre)
        torch.sigmoid(pre, out=act)
        for gate, mix in mixes.items():
            mix(pre_gates[t][gate], out=act_gates[t][gate])
        i, f, g, o = act_gates[t]
        if inputs.cell_input is None:
            tanh(pre_gates[t][2], out=g)
        if mix_cell is not None:
            u = record.cell_pre[t]
            torch.addmm(inputs.cell_bias, cells[t], inputs.cell_weight.t(), out=u)
            mix_cell(u, out=cells_used[t]).add_(cells[t])
        torch.mul(f, cells_used[t], out=cells[t + 1]).addcmul_(i, g)
        h = torch.mul(o, tanh(cells[t + 1], out=tanh_cells[t]), out=outputs[t])
        if infer is not None:
            q = torch.add(infer(h), inputs.latent_bias, out=record.latent[t])
            _sample(q, inputs.noise, t, out=hidden[t + 1])
    return record


def _sample(q: torch.Tensor, noise: Optional[torch.Tensor], t: int, *, out: torch.Tensor) -> None:
    """Write z_t = mean + std * noise (Eq. 22) into `out`."""
    mean, log_std = q.chunk(2, dim=1)
    out.copy_(mean)
    if noise is not None:
        out.addcmul_(clamp_log_std(log_std).exp_(), noise[t])
