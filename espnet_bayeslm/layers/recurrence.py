"""The LSTM loop of `loop.py` as one autograd function, its backward pass written out."""

from __future__ import annotations

from typing import Any, Optional, Tuple

import torch
from torch.autograd.function import once_differentiable

from espnet_bayeslm.bayes.gaussian import clamp_log_std, pass_inside
from espnet_bayeslm.layers.activation import coefficient_gradients, slope
from espnet_bayeslm.layers.loop import Bases, LoopInputs, Record, gates_of, run_loop
from espnet_bayeslm.layers.product import product, weight_gradient

ATEN = torch.ops.aten
NUM_INPUTS = len(LoopInputs._fields)


class LoopGradients:
    """The backward pass of the loop.

    Args:
        inputs: The loop's tensors.
        bases: The basis functions.
        record: What the forward pass left.
    """

    def __init__(self, inputs: LoopInputs, bases: Bases, record: Record):
        self.inputs, self.bases, self.record = inputs, bases, record
        self.pre = torch.empty_like(record.pre)
        self.recurrent, self.cell_pre, self.grad_cell = self.pre, None, None
        # Each activation's slope for all steps at once; the loop only multiplies.
        gates, pres = zip(inputs.gates, bases.gates, strict=True), record.pre.chunk(4, dim=2)
        self.slopes = [
            None if coefficients is None else slope(pre, coefficients, basis)
            for (coefficients, basis), pre in zip(gates, pres, strict=True)
        ]
        # gradients of the mixed gates' values
        self.mixed = [None if s is None else torch.empty_like(s) for s in self.slopes]
        if inputs.hidden_input is not None:
            self.recurrent = torch.empty_like(self.pre)
            hidden_slope = slope(record.recurrent, inputs.hidden_input, bases.hidden_input)
            self.hidden_slope = hidden_slope.add_(1.0)
        if inputs.cell_state is not None:
            self.cell_pre = torch.empty_like(record.cell_pre)
            self.grad_cell = torch.empty_like(record.cell_pre)
            self.cell_slope = slope(record.cell_pre, inputs.cell_state, bases.cell_state)

    def run(
        self,
        grad_output: torch.Tensor,
        grad_h: torch.Tensor,
        grad_c: torch.Tensor,
        grad_latent: Optional[torch.Tensor],
    ) -> LoopInputs:
        """Return the gradient of each input.

        Args:
            grad_output: Of h_t, (L, B, H).
            grad_h: Of what recurred last, (B, H).
            grad_c: Of the last cells, (B, H).
            grad_latent: Of mean and log standard deviation of z_t, (L, B, 2H).
        """
        inputs, record = self.inputs, self.record
        steps, batch, _ = grad_output.shape
        back = product(inputs.weight.t(), batch)
        infer_back = None
        if grad_latent is not None:
            assert inputs.latent_weight is not None
            grad_latent = grad_latent.clone()
            infer_back = product(inputs.latent_weight.t(), batch)
        grad_c, recurred = grad_c.clone(), grad_h
        acts, grads = gates_of(record.act), gates_of(self.pre)
        for t in range(steps - 1, -1, -1):
            grad = grad_output[t]
            if infer_back is not None:
                grad = grad + infer_back(self._latent(t, recurred, grad_latent))
            else:
                grad = grad + recurred
            self._gates(t, grad, grad_c, acts[t], grads[t])
            grad_c = self._previous_cell(t, grad_c, acts[t][1])
            if inputs.hidden_input is not None:
                torch.mul(self.pre[t], self.hidden_slope[t], out=self.recurrent[t])
            recurred = back(self.recurrent[t])
        return self._collect(recurred, grad_c, grad_latent)

    def _latent(self, t: int, recurred: torch.Tensor, grad_latent: torch.Tensor) -> torch.Tensor:
        """Add what z_t's use in the next step gives to the gradient of its mean and log std."""
        mean, log_std = grad_latent[t].chunk(2, dim=1)
        mean += recurred
        if self.inputs.noise is not None:
            value = self.record.latent[t].chunk(2, dim=1)[1]
            std = clamp_log_std(value).exp_()
            log_std += pass_inside(std.mul_(self.inputs.noise[t]).mul_(recurred), value)
        return grad_latent[t]

    def _gates(
        self,
        t: int,
        grad: torch.Tensor,
        grad_c: torch.Tensor,
        act: Tuple[torch.Tensor, ...],
        grad_pre: Tuple[torch.Tensor, ...],
    ) -> None:
        """Add h_t's gradient to the cells' and write those of the gates' inputs."""
        i, _, g, o = act
        tanh_cell = self.record.tanh_cell[t]
        grad_c += ATEN.tanh_backward(grad * o, tanh_cell)
        factors = ((grad_c, g), (grad_c, self.record.cell_used[t]), (grad_c, i), (grad, tanh_cell))
        for k, (factor, out) in enumerate(zip(factors, grad_pre, strict=True)):
            if self.slopes[k] is not None:
                upper = torch.mul(*factor, out=self.mixed[k][t])
                torch.mul(upper, self.slopes[k][t], out=out)
            elif k == 2:
                ATEN.tanh_backward.grad_input(torch.mul(*factor), g, grad_input=out)
            else:
                ATEN.sigmoid_backward.grad_input(torch.mul(*factor), act[k], grad_input=out)

    def _previous_cell(self, t: int, grad_c: torch.Tensor, forget: torch.Tensor) -> torch.Tensor:
        """Return the gradient of the cells before step t."""
        grad_c = grad_c.mul_(forget)
        if self.cell_pre is None:
            return grad_c
        self.grad_cell[t] = grad_c
        inner = torch.mul(grad_c, self.cell_slope[t], out=self.cell_pre[t])
        return grad_c.addmm_(inner, self.inputs.cell_weight)

    def _collect(
        self, grad_h: torch.Tensor, grad_c: torch.Tensor, grad_latent: Optional[torch.Tensor]
    ) -> LoopInputs:
        """Return all gradients; those of weights are one product over all steps."""
        record, bases = self.record, self.bases
        gates = [
            None if grad is None else coefficient_gradients(grad, pre, basis)
            for grad, pre, basis in zip(
                self.mixed, record.pre.chunk(4, dim=2), bases.gates, strict=True
            )
        ]
        result = LoopInputs(
            self.pre, grad_h, grad_c, weight_gradient(self.recurrent, record.hidden[:-1]), *gates
        )
        if self.inputs.hidden_input is not None:
            result = result._replace(
                hidden_input=coefficient_gradients(self.pre, record.recurrent, bases.hidden_input),
                hidden_bias=self.recurrent.sum((0, 1)),
            )
        if self.cell_pre is not None:
            result = result._replace(
                cell_state=coefficient_gradients(self.grad_cell, record.cell_pre, bases.cell_state),
                cell_weight=weight_gradient(self.cell_pre, record.cell[:-1]),
                cell_bias=self.cell_pre.sum((0, 1)),
            )
        if grad_latent is not None:
            result = result._replace(
                latent_weight=weight_gradient(grad_latent, record.outputs),
                latent_bias=grad_latent.sum((0, 1)),
            )
        return result


class LSTMLoop(torch.autograd.Function):
    """The loop as one function of `LoopInputs`."""

    @staticmethod
    def forward(ctx: Any, bases: Bases, *tensors: Optional[torch.Tensor]) -> Tuple[Any, ...]:
        """Return h_t (L, B, H), what recurs and the cells (B, H), and z_t's parameters or None."""
        record = run_loop(LoopInputs(*tensors), bases)  # type: ignore[arg-type]
        ctx.bases = bases
        ctx.save_for_backward(*tensors, *record)
        latent = None if record.latent is None else record.latent.clone()
        return record.outputs.clone(), record.hidden[-1].clone(), record.cell[-1].clone(), latent

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> Tuple[Any, ...]:  # type: ignore[override]
        """Return the gradients of `forward`'s arguments."""
        saved = ctx.saved_tensors
        inputs, record = LoopInputs(*saved[:NUM_INPUTS]), Record(*saved[NUM_INPUTS:])
        output, h, c, latent = grads
        latent = None if inputs.latent_weight is None else latent
        return (None, *LoopGradients(inputs, ctx.bases, record).run(output, h, c, latent))


def lstm_loop(inputs: LoopInputs, bases: Bases) -> Tuple[torch.Tensor, ...]:
    """Return h_t (L, B, H), what recurs and the cells after the last step, and z_t's parameters.

    The last is mean and log standard deviation of q(z_t), (L, B, 2H), or None.
    """
    # in the precision of its tensors, whatever autocast says
    with torch.autocast(inputs.weight.device.type, enabled=False):
        return LSTMLoop.apply(bases, *inputs)
