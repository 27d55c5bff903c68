"""The elementwise part of a step of the LSTM loop, as functions without side effects.

On CUDA torch compiles each into one kernel (`fused`): a step is then a product and a kernel each
way, as in cuDNN's LSTM. The equations are those of `lstm_forward.py` and `recurrence.py`, which
write into tensors of the whole sequence in place.
"""

from __future__ import annotations

from typing import Any, List, Optional, Sequence, Tuple

import torch

from espnet_bayeslm.kernels.fused import fused
from espnet_bayeslm.kernels.gp import Mix
from espnet_bayeslm.kernels.lstm_tensors import Layout, LoopInputs, Record, by_gate, by_path, given
from espnet_bayeslm.utils.log_std import clamp_log_std

ATEN = torch.ops.aten
Tensors = Tuple[Optional[torch.Tensor], ...]


def lstm_step(
    layout: Layout,
    gates_in: torch.Tensor,
    recurrent: torch.Tensor,
    cell: torch.Tensor,
    cell_product: Optional[torch.Tensor],
    inputs: LoopInputs,
) -> Tensors:
    """Step after the products with what recurs and with the cells, for `fused`."""
    size, u_hidden, u_cell, used = gates_in.size(1), None, None, cell
    if inputs.hidden_input is not None:
        apart = inputs.hidden_weight is not None
        u_hidden = (recurrent[:, size:] if apart else recurrent) + given(inputs.hidden_bias)
        mixed = Mix(inputs.hidden_input, layout.hidden_input)(u_hidden)
        linear = recurrent[:, :size] if apart else u_hidden
        recurrent = linear + (by_path(mixed, layout.gates) if apart else mixed)
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
    return o * tanh_cell, new_cell, pre, act, mixed_gates, tanh_cell, u_hidden, u_cell, used_cell


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
    """As `run_loop`, a product and one kernel a step."""
    device, hidden, cell = inputs.gates_in.device, inputs.h, inputs.c
    step, sample = fused(lstm_step, device, layout), fused(latent_step, device)
    weight = inputs.recurrent_weight.t()
    # what the step reads of the layer; the others would only be looked at
    kept = inputs._replace(gates_in=hidden, weight=hidden, h=hidden, c=hidden, noise=None)
    rows: List[Tensors] = []
    hiddens, cells, latents = [hidden], [cell], []
    for t, gates_in in enumerate(inputs.gates_in.unbind(0)):
        product = None if inputs.cell_state is None else cell @ given(inputs.cell_weight).t()
        hidden, cell, *row = step(gates_in, hidden @ weight, cell, product, kept)
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


def lstm_backward(
    layout: Layout,
    apart: bool,
    grad: torch.Tensor,
    recurred: torch.Tensor,
    grad_c: torch.Tensor,
    record: Sequence[torch.Tensor],
    slopes: Sequence[Optional[torch.Tensor]],
    hidden_slope: Optional[torch.Tensor],
    cell_slope: Optional[torch.Tensor],
    shares: Optional[torch.Tensor],
) -> Tuple[Any, ...]:
    """Step before the products, back in time, for `fused`."""
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
        recurrent = torch.cat([pre, by_gate(pre, layout.gates) * hidden_slope], 1)
    elif hidden_slope is not None:
        recurrent = pre + pre * hidden_slope
    grad_c = grad_c * f
    inner = None if cell_slope is None else grad_c * cell_slope
    of_gates = None if shares is None else torch.cat(uppers, 1)
    separate = None if hidden_slope is None else recurrent
    return grad_c, pre, separate, inner, of_gates, mixed


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
