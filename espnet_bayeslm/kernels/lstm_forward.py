"""One LSTM layer over time, with Gaussian-process activations, latent outputs and parallel paths.

Where torch's fused LSTM cannot be used (an activation function is a mixture, a latent output
feeds the next step, or a gate is searched) a step is one product with the recurrent weights and a
few elementwise kernels.
"""

from __future__ import annotations

import functools
from typing import Callable, Optional, Tuple

import torch

from espnet_bayeslm.kernels.gp import Mix, tanh
from espnet_bayeslm.kernels.lstm_tensors import (
    Layout,
    LoopInputs,
    Record,
    by_path,
    chunks_of,
    empty_record,
    given,
)
from espnet_bayeslm.kernels.product import product
from espnet_bayeslm.utils.log_std import clamp_log_std


class Gates:
    """Computes gates from what goes into them, step by step.

    Args:
        inputs: The loop's tensors.
        layout: What they mean.
        record: Where the results go.
    """

    def __init__(self, inputs: LoopInputs, layout: Layout, record: Record):
        self.record, self.paths = record, layout.paths
        coefficients = layout.split(inputs.coefficients)
        self.mixes = [
            None if part is None else Mix(part, path.basis)
            for part, path in zip(coefficients, layout.paths, strict=True)
        ]
        self.shares = None if inputs.shares is None else inputs.shares.unbind(0)
        self.pre, self.act = (chunks_of(x, len(layout.paths)) for x in (record.pre, record.act))
        self.values = self.act if self.shares is None else chunks_of(record.gates, 4)

    def __call__(self, t: int) -> Tuple[torch.Tensor, ...]:
        """Four gates of step t, each (B, H)."""
        torch.sigmoid(self.record.pre[t], out=self.record.act[t])
        for path, mix, pre, act in zip(
            self.paths, self.mixes, self.pre[t], self.act[t], strict=True
        ):
            if mix is not None:
                mix(pre, out=act)
            elif path.gate == 2:
                tanh(pre, out=act)
        values = self.values[t]
        if self.shares is not None:
            for n, (path, share) in enumerate(zip(self.paths, self.shares, strict=True)):
                value, act = values[path.gate], self.act[t][n]
                if n < 4:
                    torch.mul(act, share, out=value)
                else:
                    value.addcmul_(act, share)
        return values


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


def run_loop(inputs: LoopInputs, layout: Layout) -> Record:
    """Run the loop (Eq. 4-9, 35)."""
    record = empty_record(inputs)
    batch = inputs.gates_in.size(1)
    recur = product(inputs.recurrent_weight, batch)
    infer = None if inputs.latent_weight is None else product(inputs.latent_weight, batch)
    gates = Gates(inputs, layout, record)
    mix_hidden = None
    if inputs.hidden_input is not None:
        mix_hidden = Mix(inputs.hidden_input, layout.hidden_input)
    flips = None if inputs.deviation is None else Flips(inputs, layout)
    mix_cell = None
    if inputs.cell_state is not None:
        mix_cell = Mix(inputs.cell_state, layout.cell_state)
    outputs, cells_used = record.outputs.unbind(0), record.cell_used.unbind(0)
    cells, hidden, tanh_cells = (
        x.unbind(0) for x in (record.cell, record.hidden, record.tanh_cell)
    )
    for t, (gates_in, pre) in enumerate(zip(inputs.gates_in, record.pre, strict=True)):
        recurrent = recur(hidden[t])
        if flips is not None:
            recurrent = flips.add(hidden[t], recurrent)
        if mix_hidden is not None:
            u = given(record.recurrent)[t]
            recurrent = _hidden_input(recurrent, inputs, layout, mix_hidden, out=u)
        torch.add(gates_in, recurrent, out=pre)
        i, f, g, o = gates(t)
        if mix_cell is not None:
            bias, weight = given(inputs.cell_bias), given(inputs.cell_weight)
            u = torch.addmm(bias, cells[t], weight.t(), out=given(record.cell_pre)[t])
            mix_cell(u, out=cells_used[t]).add_(cells[t])
        torch.mul(f, cells_used[t], out=cells[t + 1]).addcmul_(i, g)
        h = torch.mul(o, tanh(cells[t + 1], out=tanh_cells[t]), out=outputs[t])
        if infer is not None:
            q = torch.add(infer(h), given(inputs.latent_bias), out=given(record.latent)[t])
            _sample(q, inputs.noise, t, out=hidden[t + 1])
    return record


def _hidden_input(
    recurrent: torch.Tensor, inputs: LoopInputs, layout: Layout, mix: Mix, *, out: torch.Tensor
) -> torch.Tensor:
    """The h-Gate: (B, PH) or (B, PH + 4H), what the recurrent weights give, to (B, PH).

    Its u goes to `out`.
    """
    bias, size = given(inputs.hidden_bias), inputs.gates_in.size(2)
    if inputs.hidden_weight is None:
        u = torch.add(recurrent, bias, out=out)
        return mix(u).add_(u)
    u = torch.add(recurrent[:, size:], bias, out=out)
    return recurrent[:, :size] + by_path(mix(u), layout.gates)


def _sample(q: torch.Tensor, noise: Optional[torch.Tensor], t: int, *, out: torch.Tensor) -> None:
    """Write z_t = mean + std * noise (Eq. 22) into `out`."""
    mean, log_std = q.chunk(2, dim=1)
    out.copy_(mean)
    if noise is not None:
        out.addcmul_(clamp_log_std(log_std).exp_(), noise[t])
