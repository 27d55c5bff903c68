"""The LSTM loop of `lstm_steps.py` as one autograd function, its backward pass written out."""

from __future__ import annotations

from typing import Any, List, Optional, Tuple

import torch
from torch.autograd.function import once_differentiable

from espnet_bayeslm.kernels.fused import fused
from espnet_bayeslm.kernels.gp import coefficient_gradients, slope
from espnet_bayeslm.kernels.lstm_steps import Flips, backward_step, latent_backward, run_steps
from espnet_bayeslm.kernels.lstm_tensors import (
    Layout,
    LoopInputs,
    Record,
    by_gate,
    given,
)
from espnet_bayeslm.kernels.product import product, weight_gradient

ATEN = torch.ops.aten
NUM_INPUTS = len(LoopInputs._fields)


class LoopGradients:
    """The backward pass of the loop: two products and a few elementwise kernels a step.

    Args:
        inputs: The loop's tensors.
        layout: What they mean.
        record: What the forward pass left.
    """

    def __init__(self, inputs: LoopInputs, layout: Layout, record: Record):
        self.inputs, self.layout, self.record = inputs, layout, record
        # Each activation's slope for all steps at once; the loop only multiplies.
        pres = record.pre.chunk(len(layout.paths), dim=2)
        parts = zip(layout.split(inputs.coefficients), layout.paths, pres, strict=True)
        self.slopes = [
            None if coefficients is None else slope(pre, coefficients, path.basis)
            for coefficients, path, pre in parts
        ]
        self.flips = None if inputs.deviation is None else Flips(inputs, layout)
        self.hidden_slope: Optional[torch.Tensor] = None
        self.cell_slope: Optional[torch.Tensor] = None
        if inputs.hidden_input is not None:
            u = given(record.recurrent)
            self.hidden_slope = slope(u, inputs.hidden_input, layout.hidden_input)
        if inputs.cell_state is not None:
            self.cell_slope = slope(given(record.cell_pre), inputs.cell_state, layout.cell_state)

    def run(
        self,
        grad_output: torch.Tensor,
        grad_h: torch.Tensor,
        grad_c: torch.Tensor,
        grad_latent: Optional[torch.Tensor],
    ) -> LoopInputs:
        """Gradient of each input.

        Args:
            grad_output: Of h_t, (L, B, H).
            grad_h: Of what recurred last, (B, H).
            grad_c: Of the last cells, (B, H).
            grad_latent: Of mean and log standard deviation of z_t, (L, B, 2H).
        """
        inputs, record, device = self.inputs, self.record, grad_output.device
        step = fused(backward_step(self.layout, inputs.hidden_weight is not None), device)
        add_latent = fused(latent_backward, device)
        back, recurred = product(inputs.recurrent_weight.t(), len(grad_h)), grad_h
        rows, latents = [], []
        for t in range(len(grad_output) - 1, -1, -1):
            if grad_latent is not None:
                noise = None if inputs.noise is None else inputs.noise[t]
                latent = given(record.latent)[t]
                latents.append(add_latent(grad_latent[t], recurred, latent, noise))
                recurred = latents[-1] @ given(inputs.latent_weight)
            kept = (record.act[t], record.gates[t], record.tanh_cell[t], record.cell_used[t])
            slopes = [None if slope is None else slope[t] for slope in self.slopes]
            whole = (None if x is None else x[t] for x in (self.hidden_slope, self.cell_slope))
            grad_c, *row = step(
                grad_output[t], recurred, grad_c, kept, slopes, *whole, inputs.shares
            )
            pre, recurrent, inner, of_gates, mixed = row
            rows.append(
                (pre, recurrent, inner, of_gates, grad_c if inner is not None else None, *mixed)
            )
            if inner is not None:
                grad_c = torch.addmm(grad_c, inner, given(inputs.cell_weight))
            upper = pre if recurrent is None else recurrent
            recurred = back(upper)
            if self.flips is not None:
                recurred = self.flips.add_gradient(upper, recurred)
        columns = [
            None if column[0] is None else torch.stack(column[::-1])
            for column in zip(*rows, strict=True)
        ]
        whole_pre, recurrent, self.cell_pre, self.gates, self.grad_cell, *self.mixed = columns
        self.pre = given(whole_pre)
        self.recurrent = self.pre if recurrent is None else recurrent
        return self._collect(recurred, grad_c, torch.stack(latents[::-1]) if latents else None)

    def _collect(
        self, grad_h: torch.Tensor, grad_c: torch.Tensor, grad_latent: Optional[torch.Tensor]
    ) -> LoopInputs:
        """Gradients of the inputs; those of weights are one product over all steps."""
        record, layout = self.record, self.layout
        weights = weight_gradient(self.recurrent, record.hidden[:-1])
        size = self.pre.size(2)
        result = LoopInputs(
            self.pre,
            grad_h,
            grad_c,
            weights[:size],
            shares=self._share_gradients(),
            coefficients=self._coefficient_gradients(),
        )
        if self.inputs.hidden_input is not None:
            apart = self.inputs.hidden_weight is not None
            upper, u = self.pre, given(record.recurrent)
            if apart:
                upper = by_gate(upper, self.path_gates)
            result = result._replace(
                hidden_input=coefficient_gradients(upper, u, layout.hidden_input),
                hidden_bias=self.recurrent[..., size if apart else 0 :].sum((0, 1)),
                hidden_weight=weights[size:] if apart else None,
            )
        if self.cell_pre is not None:
            upper, u = given(self.grad_cell), given(record.cell_pre)
            result = result._replace(
                cell_state=coefficient_gradients(upper, u, layout.cell_state),
                cell_weight=weight_gradient(self.cell_pre, record.cell[:-1]),
                cell_bias=self.cell_pre.sum((0, 1)),
            )
        if self.flips is not None:
            upper = self.flips.upper(self.recurrent)
            result = result._replace(
                deviation=weight_gradient(upper, self.flips.signs_in * record.hidden[:-1]),
                deviation_bias=upper.sum((0, 1)),
            )
        if grad_latent is not None:
            result = result._replace(
                latent_weight=weight_gradient(grad_latent, record.outputs),
                latent_bias=grad_latent.sum((0, 1)),
            )
        return result

    @property
    def path_gates(self) -> List[int]:
        """The gate of each path."""
        return [path.gate for path in self.layout.paths]

    def _share_gradients(self) -> Optional[torch.Tensor]:
        """Gradient of the shares: gate's gradient times the path's activation, (P,)."""
        if self.gates is None:
            return None
        gates, acts = self.gates.chunk(4, dim=2), self.record.act.chunk(len(self.path_gates), dim=2)
        terms = [(gates[k] * act).sum() for k, act in zip(self.path_gates, acts, strict=True)]
        return torch.stack(terms)

    def _coefficient_gradients(self) -> Optional[torch.Tensor]:
        """Gradient of the gates' coefficients, (sum of J, H)."""
        pres = self.record.pre.chunk(len(self.path_gates), dim=2)
        parts = [
            coefficient_gradients(grad, pre, path.basis)
            for grad, pre, path in zip(self.mixed, pres, self.layout.paths, strict=True)
            if grad is not None
        ]
        return torch.cat(parts) if parts else None


class LSTMLoop(torch.autograd.Function):
    """The loop as one function of `LoopInputs`."""

    @staticmethod
    def forward(ctx: Any, layout: Layout, *tensors: Optional[torch.Tensor]) -> Tuple[Any, ...]:
        """h_t (L, B, H), what recurs and the cells (B, H), and z_t's parameters or None."""
        inputs = LoopInputs(*tensors)  # type: ignore[arg-type]
        record = run_steps(inputs, layout)
        ctx.layout = layout
        ctx.save_for_backward(*tensors, *record)
        latent = None if record.latent is None else record.latent.clone()
        return record.outputs.clone(), record.hidden[-1].clone(), record.cell[-1].clone(), latent

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> Tuple[Any, ...]:  # type: ignore[override]
        """Gradients of `forward`'s arguments."""
        saved = ctx.saved_tensors
        inputs, record = LoopInputs(*saved[:NUM_INPUTS]), Record(*saved[NUM_INPUTS:])
        output, h, c, latent = grads
        latent = None if inputs.latent_weight is None else latent
        return (None, *LoopGradients(inputs, ctx.layout, record).run(output, h, c, latent))


def lstm_loop(inputs: LoopInputs, layout: Layout) -> Tuple[torch.Tensor, ...]:
    """See `layers.lstm.lstm_loop`."""
    # in the precision of its tensors, whatever autocast says
    with torch.autocast(inputs.weight.device.type, enabled=False):
        return LSTMLoop.apply(layout, *inputs)
