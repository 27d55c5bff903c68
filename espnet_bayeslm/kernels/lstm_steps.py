"""The steps of the LSTM loop, as functions without side effects.

Where torch's fused LSTM cannot be used (an activation function is a mixture, a latent output
feeds the next step, or a gate is searched) a step is one product with the recurrent weights and a
few elementwise kernels; on CUDA torch compiles these into one (`fused`), as in cuDNN's LSTM.
"""

from __future__ import annotations

import functools
from typing import Any, Callable, List, Optional, Sequence, Tuple

import torch

from espnet_bayeslm.kernels.fused import fused
from espnet_bayeslm.kernels.gp import Mix
from espnet_bayeslm.kernels.lstm_tensors import Layout, LoopInputs, Record, by_gate, by_path, given
from espnet_bayeslm.kernels.product import product
from espnet_bayeslm.utils.log_std import clamp_log_std

ATEN = torch.ops.aten
Tensors = Tuple[Optional[torch.Tensor], ...]


class Flips:
    """Flipout of the recurrent weights of some gates: each sequence's part of their deviations.

    Args:
        inputs: The loop's tensors, `deviation` among them.
        layout: What they mean.
    """

    def __init__(self, inputs: LoopInputs, layout: Layout):
        self.deviation, self.bias = given(inputs.deviation), given(inputs.deviation_bias)
        self.signs_in, self.signs_out = given(inputs.signs_in), given(inputs.signs_out)
        size, gates = inputs.h.size(1), layout.flipped
        self.columns = [slice(gate * size, (gate + 1) * size) for gate in gates]
        self.own = [slice(n * size, (n + 1) * size) for n in range(len(gates))]
        if len(gates) == gates[-1] - gates[0] + 1:  # side by side
            self.columns = [slice(self.columns[0].start, self.columns[-1].stop)]
            self.own = [slice(0, self.own[-1].stop)]

    @functools.cached_property
    def forward(self) -> Callable[[torch.Tensor], torch.Tensor]:
        """The map of x to D [x, 1], (B, H) -> (B, RH)."""
        return product(self.deviation, len(self.signs_in), self.bias)

    @functools.cached_property
    def backward(self) -> Callable[[torch.Tensor], torch.Tensor]:
        """The map of D [x, 1]'s gradient to that of x, (B, RH) -> (B, H)."""
        return product(self.deviation.t(), len(self.signs_in))

    def add(self, h: torch.Tensor, recurrent: torch.Tensor) -> torch.Tensor:
        """Add r * (D [s * h, 1]) to what the mean weights give, in place."""
        more = self.forward(self.signs_in * h)
        for columns, own in zip(self.columns, self.own, strict=True):
            recurrent[:, columns].addcmul_(self.signs_out[:, own], more[:, own])
        return recurrent

    def upper(self, grad: torch.Tensor) -> torch.Tensor:
        """Gradient of D [s * h, 1] from that of what recurs, (..., PH) -> (..., RH)."""
        parts = [grad[..., columns] for columns in self.columns]
        return self.signs_out * (parts[0] if len(parts) == 1 else torch.cat(parts, -1))

    def add_gradient(self, grad: torch.Tensor, grad_h: torch.Tensor) -> torch.Tensor:
        """Add the gradient of h that comes through D, in place."""
        return grad_h.addcmul_(self.signs_in, self.backward(self.upper(grad)))


@functools.cache
def forward_step(layout: Layout) -> Callable[..., Tensors]:
    """Step after the products with what recurs and with the cells, for `fused`."""
    gates_of_paths = [path.gate for path in layout.paths]

    def lstm_step(
        gates_in: torch.Tensor,
        recurrent: torch.Tensor,
        cell: torch.Tensor,
        cell_product: Optional[torch.Tensor],
        inputs: LoopInputs,
    ) -> Tensors:
        size, u_hidden, u_cell, used = gates_in.size(1), None, None, cell
        if inputs.hidden_input is not None:
            apart = inputs.hidden_weight is not None
            u_hidden = (recurrent[:, size:] if apart else recurrent) + given(inputs.hidden_bias)
            mixed = Mix(inputs.hidden_input, layout.hidden_input)(u_hidden)
            linear = recurrent[:, :size] if apart else u_hidden
            recurrent = linear + (by_path(mixed, gates_of_paths) if apart else mixed)
        pre = gates_in + recurrent
        acts = _activations(pre, layout, inputs.coefficients)
        i, f, g, o = gates = _gates(acts, layout, inputs.shares)
        if cell_product is not None:
            u_cell = cell_product + given(inputs.cell_bias)
            used = Mix(given(inputs.cell_state), layout.cell_state)(u_cell) + cell
        new_cell = f * used + i * g
        tanh_cell = torch.tanh(new_cell)
        mixed_gates = None if inputs.shares is None else torch.cat(gates, 1)
        used_cell = None if cell_product is None else used
        act = torch.cat(acts, 1)
        return (
            o * tanh_cell,
            new_cell,
            pre,
            act,
            mixed_gates,
            tanh_cell,
            u_hidden,
            u_cell,
            used_cell,
        )

    return lstm_step


def _activations(
    pre: torch.Tensor, layout: Layout, coefficients: Optional[torch.Tensor]
) -> List[torch.Tensor]:
    """Activation of each path, each (B, H)."""
    found = []
    parts = zip(layout.paths, layout.split(coefficients), strict=True)
    for (path, part), x in zip(parts, pre.chunk(len(layout.paths), dim=1), strict=True):
        if part is not None:
            found.append(Mix(part, path.basis)(x))
        else:
            found.append(torch.tanh(x) if path.gate == 2 else torch.sigmoid(x))
    return found


def _gates(
    acts: List[torch.Tensor], layout: Layout, shares: Optional[torch.Tensor]
) -> List[torch.Tensor]:
    """Four gates, each (B, H)."""
    if shares is None:
        return acts
    gates = [act * shares[n] for n, act in enumerate(acts[:4])]
    for n in range(4, len(acts)):
        gate = layout.paths[n].gate
        gates[gate] = gates[gate] + acts[n] * shares[n]
    return gates


def latent_step(
    q: torch.Tensor, bias: torch.Tensor, noise: Optional[torch.Tensor]
) -> Tuple[torch.Tensor, torch.Tensor]:
    """Parameters of q(z_t), (B, 2H), and z_t = mean + std * noise (Eq. 22)."""
    packed = q + bias
    mean, log_std = packed.chunk(2, dim=1)
    return packed, mean.clone() if noise is None else mean + clamp_log_std(log_std).exp() * noise


def run_steps(inputs: LoopInputs, layout: Layout) -> Record:
    """Run the loop (Eq. 4-9, 35)."""
    device, hidden, cell = inputs.gates_in.device, inputs.h, inputs.c
    step, sample = fused(forward_step(layout), device), fused(latent_step, device)
    recur = product(inputs.recurrent_weight, len(hidden))
    flips = None if inputs.deviation is None else Flips(inputs, layout)
    # what the step reads of the layer; the others would only be looked at
    kept = inputs._replace(gates_in=hidden, weight=hidden, h=hidden, c=hidden, noise=None)
    kept = kept._replace(deviation=None, deviation_bias=None, signs_in=None, signs_out=None)
    rows: List[Tensors] = []
    hiddens, cells, latents = [hidden], [cell], []
    for t, gates_in in enumerate(inputs.gates_in.unbind(0)):
        of_cell = None if inputs.cell_state is None else cell @ given(inputs.cell_weight).t()
        recurrent = recur(hidden)
        recurrent = recurrent if flips is None else flips.add(hidden, recurrent)
        hidden, cell, *row = step(gates_in, recurrent, cell, of_cell, kept)
        rows.append((*row, hidden))
        if inputs.latent_weight is not None:
            noise = None if inputs.noise is None else inputs.noise[t]
            packed, hidden = sample(hidden @ inputs.latent_weight.t(), inputs.latent_bias, noise)
            latents.append(packed)
        hiddens.append(hidden)
        cells.append(cell)
    columns = [None if c[0] is None else torch.stack(c) for c in zip(*rows, strict=True)]
    pre, act, gates, tanh_cell, u, cell_pre, cell_mixed, output = columns
    assert pre is not None and act is not None and tanh_cell is not None
    return Record(
        pre,
        act,
        act if gates is None else gates,
        torch.stack(cells),
        torch.stack(hiddens),
        tanh_cell,
        u,
        cell_pre,
        cell_mixed,
        output if latents else None,
        torch.stack(latents) if latents else None,
    )


@functools.cache
def backward_step(layout: Layout, apart: bool) -> Callable[..., Tuple[Any, ...]]:
    """Step before the products, back in time, for `fused`."""
    gates_of_paths = [path.gate for path in layout.paths]

    def lstm_backward(
        grad: torch.Tensor,
        recurred: torch.Tensor,
        grad_c: torch.Tensor,
        record: Sequence[torch.Tensor],
        slopes: Sequence[Optional[torch.Tensor]],
        hidden_slope: Optional[torch.Tensor],
        cell_slope: Optional[torch.Tensor],
        shares: Optional[torch.Tensor],
    ) -> Tuple[Any, ...]:
        act, gates, tanh_cell, used = record
        grad, (i, f, g, o) = grad + recurred, gates.chunk(4, dim=1)
        grad_c = grad_c + ATEN.tanh_backward(grad * o, tanh_cell)
        uppers = [grad_c * g, grad_c * used, grad_c * i, grad * tanh_cell]
        pres, mixed = [], []
        acts = act.chunk(len(layout.paths), dim=1)
        for n, path in enumerate(layout.paths):
            upper = uppers[path.gate] if shares is None else uppers[path.gate] * shares[n]
            slope = slopes[n]
            mixed.append(None if slope is None else upper.clone())
            if slope is not None:
                pres.append(upper * slope)
            elif path.gate == 2:
                pres.append(ATEN.tanh_backward(upper, acts[n]))
            else:
                pres.append(ATEN.sigmoid_backward(upper, acts[n]))
        pre = torch.cat(pres, 1)
        recurrent = pre
        if hidden_slope is not None and apart:
            recurrent = torch.cat([pre, by_gate(pre, gates_of_paths) * hidden_slope], 1)
        elif hidden_slope is not None:
            recurrent = pre + pre * hidden_slope
        grad_c = grad_c * f
        inner = None if cell_slope is None else grad_c * cell_slope
        of_gates = None if shares is None else torch.cat(uppers, 1)
        separate = None if hidden_slope is None else recurrent
        return grad_c, pre, separate, inner, of_gates, mixed

    return lstm_backward


def latent_backward(
    grad: torch.Tensor, recurred: torch.Tensor, latent: torch.Tensor, noise: Optional[torch.Tensor]
) -> torch.Tensor:
    """Gradient of z_t's parameters with what its use in the next step adds."""
    mean, log_std = grad.chunk(2, dim=1)
    if noise is not None:
        value = latent.chunk(2, dim=1)[1]
        clamped = clamp_log_std(value)
        log_std = log_std + (value == clamped) * clamped.exp() * noise * recurred
    return torch.cat([mean + recurred, log_std], 1)
