"""The LSTM loop of `lstm_forward.py` as one autograd function, its backward pass written out."""

from __future__ import annotations

from typing import Any, List, Optional, Sequence, Tuple

import torch
from torch.autograd.function import once_differentiable

from espnet_bayeslm.kernels.draw import pass_inside
from espnet_bayeslm.kernels.fused import compiles, fused
from espnet_bayeslm.kernels.gp import coefficient_gradients, slope
from espnet_bayeslm.kernels.lstm_forward import run_loop
from espnet_bayeslm.kernels.lstm_steps import latent_backward, lstm_backward, run_steps
from espnet_bayeslm.kernels.lstm_tensors import (
    Layout,
    LoopInputs,
    Record,
    by_gate,
    chunks_of,
    given,
)
from espnet_bayeslm.kernels.product import product, weight_gradient
from espnet_bayeslm.utils.log_std import clamp_log_std

ATEN = torch.ops.aten
NUM_INPUTS = len(LoopInputs._fields)


class LoopGradients:
    """The backward pass of the loop.

    Args:
        inputs: The loop's tensors.
        layout: What they mean.
        record: What the forward pass left.
    """

    def __init__(self, inputs: LoopInputs, layout: Layout, record: Record):
        self.inputs, self.layout, self.record = inputs, layout, record
        paths = layout.paths
        self.pre = torch.empty_like(record.pre)
        self.recurrent = self.pre
        self.cell_pre: Optional[torch.Tensor] = None
        self.grad_cell: Optional[torch.Tensor] = None
        # Each activation's slope for all steps at once; the loop only multiplies.
        pres = record.pre.chunk(len(paths), dim=2)
        parts = zip(layout.split(inputs.coefficients), paths, pres, strict=True)
        self.slopes = [
            None if coefficients is None else slope(pre, coefficients, path.basis)
            for coefficients, path, pre in parts
        ]
        # gradients of the mixtures' values
        self.mixed = [None if s is None else torch.empty_like(s) for s in self.slopes]
        self.shares = None if inputs.shares is None else inputs.shares.unbind(0)
        self.gates = None if inputs.shares is None else torch.empty_like(record.gates)
        self.hidden_slope: Optional[torch.Tensor] = None
        self.cell_slope: Optional[torch.Tensor] = None
        if inputs.hidden_input is not None:
            u = given(record.recurrent)
            self.hidden_slope = slope(u, inputs.hidden_input, layout.hidden_input)
            size = len(inputs.recurrent_weight)
            self.recurrent = self.pre.new_empty(*self.pre.shape[:2], size)
        if inputs.cell_state is not None:
            u = given(record.cell_pre)
            self.cell_pre, self.grad_cell = torch.empty_like(u), torch.empty_like(u)
            self.cell_slope = slope(u, inputs.cell_state, layout.cell_state)

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
        inputs, record = self.inputs, self.record
        steps, batch, _ = grad_output.shape
        back = product(inputs.recurrent_weight.t(), batch)
        infer_back = None
        if grad_latent is not None:
            assert inputs.latent_weight is not None
            grad_latent = grad_latent.clone()
            infer_back = product(inputs.latent_weight.t(), batch)
        grad_c, recurred = grad_c.clone(), grad_h
        gates, count = chunks_of(record.gates, 4), len(self.layout.paths)
        acts, grads = chunks_of(record.act, count), chunks_of(self.pre, count)
        for t in range(steps - 1, -1, -1):
            grad = grad_output[t]
            if infer_back is not None:
                grad = grad + infer_back(self._latent(t, recurred, given(grad_latent)))
            else:
                grad = grad + recurred
            uppers = self._gates(t, grad, grad_c, gates[t])
            self._paths(t, uppers, acts[t], grads[t])
            grad_c = self._previous_cell(t, grad_c, gates[t][1])
            if inputs.hidden_input is not None:
                self._hidden_input(t)
            recurred = back(self.recurrent[t])
        return self._collect(recurred, grad_c, grad_latent)

    def _latent(self, t: int, recurred: torch.Tensor, grad_latent: torch.Tensor) -> torch.Tensor:
        """Add what z_t's use in the next step gives to the gradient of its mean and log std."""
        mean, log_std = grad_latent[t].chunk(2, dim=1)
        mean += recurred
        if self.inputs.noise is not None:
            value = given(self.record.latent)[t].chunk(2, dim=1)[1]
            std = clamp_log_std(value).exp_()
            log_std += pass_inside(std.mul_(self.inputs.noise[t]).mul_(recurred), value)
        return grad_latent[t]

    def _gates(
        self, t: int, grad: torch.Tensor, grad_c: torch.Tensor, gates: Tuple[torch.Tensor, ...]
    ) -> List[torch.Tensor]:
        """Add h_t's gradient to the cells' and return those of the four gates, each (B, H)."""
        i, _, g, o = gates
        tanh_cell = self.record.tanh_cell[t]
        grad_c += ATEN.tanh_backward(grad * o, tanh_cell)
        factors = ((grad_c, g), (grad_c, self.record.cell_used[t]), (grad_c, i), (grad, tanh_cell))
        if self.gates is None:
            return [torch.mul(*factor) for factor in factors]
        outs = self.gates[t].chunk(4, dim=1)
        return [torch.mul(*factor, out=out) for factor, out in zip(factors, outs, strict=True)]

    def _paths(
        self,
        t: int,
        uppers: Sequence[torch.Tensor],
        acts: Tuple[torch.Tensor, ...],
        grads: Tuple[torch.Tensor, ...],
    ) -> None:
        """Write the gradients of what the paths' activations are applied to, from the gates'."""
        for n, path in enumerate(self.layout.paths):
            upper = uppers[path.gate]
            if self.shares is not None:
                upper = upper * self.shares[n]
            slopes, mixed = self.slopes[n], self.mixed[n]
            if slopes is not None and mixed is not None:
                mixed[t] = upper
                torch.mul(upper, slopes[t], out=grads[n])
            elif path.gate == 2:
                ATEN.tanh_backward.grad_input(upper, acts[n], grad_input=grads[n])
            else:
                ATEN.sigmoid_backward.grad_input(upper, acts[n], grad_input=grads[n])

    def _hidden_input(self, t: int) -> None:
        """Write the gradient of what the recurrent weights give."""
        pre, out, hidden_slope = self.pre[t], self.recurrent[t], given(self.hidden_slope)[t]
        if self.inputs.hidden_weight is None:
            torch.addcmul(pre, pre, hidden_slope, out=out)
        else:
            out[:, : pre.size(1)] = pre
            upper = by_gate(pre, self.layout.gates)
            torch.mul(upper, hidden_slope, out=out[:, pre.size(1) :])

    def _previous_cell(self, t: int, grad_c: torch.Tensor, forget: torch.Tensor) -> torch.Tensor:
        """Gradient of the cells before step t."""
        grad_c = grad_c.mul_(forget)
        if self.cell_pre is None:
            return grad_c
        given(self.grad_cell)[t] = grad_c
        inner = torch.mul(grad_c, given(self.cell_slope)[t], out=self.cell_pre[t])
        return grad_c.addmm_(inner, given(self.inputs.cell_weight))

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
                upper = by_gate(upper, self.layout.gates)
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
        if grad_latent is not None:
            result = result._replace(
                latent_weight=weight_gradient(grad_latent, record.outputs),
                latent_bias=grad_latent.sum((0, 1)),
            )
        return result

    def _share_gradients(self) -> Optional[torch.Tensor]:
        """Gradient of the shares: gate's gradient times the path's activation, (P,)."""
        if self.gates is None:
            return None
        gates, acts = (
            self.gates.chunk(4, dim=2),
            self.record.act.chunk(len(self.layout.gates), dim=2),
        )
        terms = [(gates[k] * act).sum() for k, act in zip(self.layout.gates, acts, strict=True)]
        return torch.stack(terms)

    def _coefficient_gradients(self) -> Optional[torch.Tensor]:
        """Gradient of the gates' coefficients, (sum of J, H)."""
        pres = self.record.pre.chunk(len(self.layout.gates), dim=2)
        parts = [
            coefficient_gradients(grad, pre, path.basis)
            for grad, pre, path in zip(self.mixed, pres, self.layout.paths, strict=True)
            if grad is not None
        ]
        return torch.cat(parts) if parts else None


class StepGradients(LoopGradients):
    """The backward pass of the loop, on a device: two products and one kernel a step."""

    def run(
        self,
        grad_output: torch.Tensor,
        grad_h: torch.Tensor,
        grad_c: torch.Tensor,
        grad_latent: Optional[torch.Tensor],
    ) -> LoopInputs:
        """Gradient of each input; arguments as those of `LoopGradients.run`."""
        inputs, record, device = self.inputs, self.record, grad_output.device
        step = fused(lstm_backward, device, self.layout, inputs.hidden_weight is not None)
        add_latent = fused(latent_backward, device)
        weight, recurred = inputs.recurrent_weight, grad_h
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
            recurred = (pre if recurrent is None else recurrent) @ weight
        columns = [
            None if column[0] is None else torch.stack(column[::-1])
            for column in zip(*rows, strict=True)
        ]
        whole_pre, recurrent, self.cell_pre, self.gates, self.grad_cell, *self.mixed = columns
        self.pre = given(whole_pre)
        self.recurrent = self.pre if recurrent is None else recurrent
        return self._collect(recurred, grad_c, torch.stack(latents[::-1]) if latents else None)


class LSTMLoop(torch.autograd.Function):
    """The loop as one function of `LoopInputs`."""

    @staticmethod
    def forward(ctx: Any, layout: Layout, *tensors: Optional[torch.Tensor]) -> Tuple[Any, ...]:
        """h_t (L, B, H), what recurs and the cells (B, H), and z_t's parameters or None."""
        inputs = LoopInputs(*tensors)  # type: ignore[arg-type]
        run = run_steps if compiles(inputs.h.device) else run_loop
        record = run(inputs, layout)
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
        gradients = StepGradients if compiles(inputs.h.device) else LoopGradients
        return (None, *gradients(inputs, ctx.layout, record).run(output, h, c, latent))


def lstm_loop(inputs: LoopInputs, layout: Layout) -> Tuple[torch.Tensor, ...]:
    """See `layers.lstm.lstm_loop`."""
    # in the precision of its tensors, whatever autocast says
    with torch.autocast(inputs.weight.device.type, enabled=False):
        return LSTMLoop.apply(layout, *inputs)
