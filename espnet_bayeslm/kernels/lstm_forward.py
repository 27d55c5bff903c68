"""One LSTM layer over time, with Gaussian-process activations, latent outputs and parallel paths.

Where torch's fused LSTM cannot be used (an activation function is a mixture, a latent output
feeds the next step, or a gate is searched) a step is one product with the recurrent weights and a
few elementwise kernels.
"""

from __future__ import annotations

from typing import Optional, Tuple

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
    mix_cell = None
    if inputs.cell_state is not None:
        mix_cell = Mix(inputs.cell_state, layout.cell_state)
    outputs, cells_used = record.outputs.unbind(0), record.cell_used.unbind(0)
    cells, hidden, tanh_cells = (
        x.unbind(0) for x in (record.cell, record.hidden, record.tanh_cell)
    )
    for t, (gates_in, pre) in enumerate(zip(inputs.gates_in, record.pre, strict=True)):
        recurrent = recur(hidden[t])
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
