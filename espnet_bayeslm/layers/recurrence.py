"""The LSTM loop of `loop.py` as one autograd function, its backward pass written out."""

from __future__ import annotations

from typing import Any, Optional, Tuple

import torch
from torch.autograd.function import once_differentiable

from espnet_bayeslm.bayes.posterior import LOG_STD_MAX, LOG_STD_MIN
from espnet_bayeslm.layers.activation import mix_gradients
from espnet_bayeslm.layers.loop import Bases, LoopInputs, Record, gates_of, product, run_loop

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
        with_hidden = inputs.hidden_input is not None
        self.recurrent = torch.empty_like(record.pre) if with_hidden else self.pre
        self.cell_pre = None if record.cell_pre is None else torch.empty_like(record.cell_pre)
        self.gate_coefficients = [None if c is None else torch.zeros_like(c) for c in inputs.gates]
        self.hidden_input, self.cell_state = (
            None if c is None else torch.zeros_like(c)
            for c in (inputs.hidden_input, inputs.cell_state)
        )

    def run(
        self,
        grad_output: torch.Tensor,
        grad_h: Optional[torch.Tensor],
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
        acts, pres, grads = gates_of(record.act), gates_of(record.pre), gates_of(self.pre)
        for t in range(steps - 1, -1, -1):
            grad = grad_output[t]
            if infer_back is not None:
                grad = grad + infer_back(self._latent(t, recurred, grad_latent))
            elif recurred is not None:
                grad = grad + recurred
            self._gates(t, grad, grad_c, acts[t], pres[t], grads[t])
            grad_c = self._previous_cell(t, grad_c, acts[t][1])
            recurred = back(self._recurrent(t))
        assert recurred is not None
        return self._collect(recurred, grad_c, grad_latent)

    def _latent(self, t: int, recurred: torch.Tensor, grad_latent: torch.Tensor) -> torch.Tensor:
        """Add what z_t's use in the next step gives to the gradient of its mean and log std."""
        mean, log_std = grad_latent[t].chunk(2, dim=1)
        mean += recurred
        if self.inputs.noise is not None:
            value = self.record.latent[t].chunk(2, dim=1)[1]
            inside = (value >= LOG_STD_MIN) & (value <= LOG_STD_MAX)
            log_std.addcmul_(recurred * inside, value.exp() * self.inputs.noise[t])
        return grad_latent[t]

    def _gates(
        self,
        t: int,
        grad: torch.Tensor,
        grad_c: torch.Tensor,
        act: Tuple[torch.Tensor, ...],
        pre: Tuple[torch.Tensor, ...],
        grad_pre: Tuple[torch.Tensor, ...],
    ) -> None:
        """Add h_t's gradient to the cells' and write those of the gates' inputs."""
        i, _, g, o = act
        tanh_cell = self.record.tanh_cell[t]
        grad_c += ATEN.tanh_backward(grad * o, tanh_cell)
        used = (grad_c * g, grad_c * self.record.cell_used[t], grad_c * i, grad * tanh_cell)
        for k, (upper, out) in enumerate(zip(used, grad_pre, strict=True)):
            coefficients = self.inputs.gates[k]
            if coefficients is not None:
                rest = (coefficients, self.bases.gates[k], self.gate_coefficients[k])
                out.copy_(mix_gradients(upper, pre[k], *rest))
            elif k == 2:
                ATEN.tanh_backward.grad_input(upper, g, grad_input=out)
            else:
                ATEN.sigmoid_backward.grad_input(upper, act[k], grad_input=out)

    def _previous_cell(self, t: int, grad_c: torch.Tensor, forget: torch.Tensor) -> torch.Tensor:
        """Return the gradient of the cells before step t."""
        grad_c = grad_c.mul_(forget)
        if self.cell_pre is None:
            return grad_c
        inputs, bases = self.inputs, self.bases.cell_state
        inner = mix_gradients(
            grad_c, self.record.cell_pre[t], inputs.cell_state, bases, self.cell_state
        )
        self.cell_pre[t] = inner
        return grad_c.addmm_(inner, inputs.cell_weight)

    def _recurrent(self, t: int) -> torch.Tensor:
        """Return the gradient of the product with the recurrent weights at step t."""
        grad = self.pre[t]
        if self.hidden_input is None:
            return grad
        inputs, bases = self.inputs, self.bases.hidden_input
        x = self.record.recurrent[t]
        inner = mix_gradients(grad, x, inputs.hidden_input, bases, self.hidden_input)
        return torch.add(inner, grad, out=self.recurrent[t])

    def _collect(
        self, grad_h: torch.Tensor, grad_c: torch.Tensor, grad_latent: Optional[torch.Tensor]
    ) -> LoopInputs:
        """Return all gradients; those of weights are one product over all steps."""
        record = self.record
        i, f, g, o = self.gate_coefficients
        result = LoopInputs(
            self.pre,
            grad_h,
            grad_c,
            _weight_gradient(self.recurrent, record.hidden[:-1]),
            *(i, f, g, o),
            hidden_input=self.hidden_input,
            cell_state=self.cell_state,
        )
        if self.hidden_input is not None:
            result = result._replace(hidden_bias=self.recurrent.sum((0, 1)))
        if self.cell_pre is not None:
            result = result._replace(
                cell_weight=_weight_gradient(self.cell_pre, record.cell[:-1]),
                cell_bias=self.cell_pre.sum((0, 1)),
            )
        if grad_latent is not None:
            result = result._replace(
                latent_weight=_weight_gradient(grad_latent, record.outputs),
                latent_bias=grad_latent.sum((0, 1)),
            )
        return result


def _weight_gradient(grad: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """(L, B, out), (L, B, in) -> (out, in)."""
    return grad.flatten(0, 1).t() @ x.flatten(0, 1)


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
    return LSTMLoop.apply(bases, *inputs)
