"""Linear layers, and the cross-entropy of a large vocabulary without all its logits at once."""

from __future__ import annotations

from typing import Any, Optional, Tuple

import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.function import once_differentiable

from espnet_bayeslm.bayes.posterior import is_random, refuse_mean
from espnet_bayeslm.kernels import has_kernel
from espnet_bayeslm.kernels.product import linear, multiply, weight_gradient

# The most tokens whose logits are computed together on a CPU, of half precision twice as many: more
# would gain nothing there ...
CPU_ROWS = 384
# ... on other devices a block should be large: 2^27 logits are 512 MB in single precision.
DEVICE_SIZE = 1 << 27
# On a CPU so many go through the softmax together, and stay in a core's cache meanwhile.
CACHE_SIZE = 1 << 18


class _SummedNLL(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        outputs: torch.Tensor,
        weight: torch.Tensor,
        bias: Optional[torch.Tensor],
        targets: torch.Tensor,
        rows: int,
        low: Optional[torch.dtype],
        wants_gradients: bool,
    ) -> torch.Tensor:
        exact = torch.promote_types(torch.promote_types(outputs.dtype, weight.dtype), torch.float32)
        low = low or torch.promote_types(outputs.dtype, weight.dtype)
        total = torch.zeros((), dtype=exact, device=outputs.device)
        used = weight.detach().to(low)
        d_outputs, d_weight, d_bias = [], None, None
        wants_weight = wants_gradients and ctx.needs_input_grad[1]
        if bias is not None and wants_gradients and ctx.needs_input_grad[2]:
            d_bias = torch.zeros_like(bias, dtype=exact)
        cached = max(CACHE_SIZE // len(weight), 1) if outputs.device.type == "cpu" else rows
        # blocks of one size, since a small one reads the weights as often as a large one
        blocks = max(-(-len(outputs) // rows), 1)
        for x, target in zip(outputs.to(low).chunk(blocks), targets.chunk(blocks), strict=True):
            logits = multiply(x, used)
            for part, chosen in zip(logits.split(cached), target.split(cached), strict=True):
                probs = part.to(exact)
                probs = probs if bias is None else probs.add_(bias)
                total += _softmax_(probs, chosen.unsqueeze(1), wants_gradients)
                if d_bias is not None:
                    d_bias += probs.sum(0)
                part.copy_(probs)  # d nll / d logits
            if wants_gradients:
                d_outputs.append(multiply(logits, used.t()))
            if wants_weight:
                product = weight_gradient(logits, x).to(exact)
                d_weight = product if d_weight is None else d_weight.add_(product)
        ctx.gradients = None
        if wants_gradients:
            ctx.gradients = torch.cat(d_outputs).to(exact), d_weight, d_bias
        ctx.dtypes = outputs.dtype, weight.dtype, exact if bias is None else bias.dtype
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> Tuple[Optional[torch.Tensor], ...]:  # type: ignore[override]
        gradients, ctx.gradients = ctx.gradients, None
        if gradients is None:
            raise RuntimeError("summed_nll: the gradients were used, call it again")
        # in place, since a pass over a vocabulary's weights takes milliseconds
        pairs = zip(gradients, ctx.dtypes, strict=True)
        scaled = (None if g is None else g.mul_(gradient).to(t) for g, t in pairs)
        return *scaled, *(None,) * 4


def _softmax_(logits: torch.Tensor, target: torch.Tensor, wants_gradient: bool) -> torch.Tensor:
    """Sum of -ln p(target), (); its gradient, softmax - one-hot, in the place of logits (N, V)."""
    greatest = logits.amax(1, keepdim=True)
    chosen = logits.gather(1, target) - greatest
    logits.sub_(greatest).exp_()
    total = logits.sum(1, keepdim=True)
    if wants_gradient:
        logits.div_(total).scatter_add_(1, target, logits.new_full(target.shape, -1.0))
    return (total.log() - chosen).sum()


def _fast_nll(
    outputs: torch.Tensor,
    weight: torch.Tensor,
    bias: Optional[torch.Tensor],
    targets: torch.Tensor,
) -> torch.Tensor:
    """Fast twin of `summed_nll`.

    Gradients are computed with the loss, block by block, so that no block's logits are needed
    again. Under autocast the products are in its precision; log-sum-exp, sums and gradients are
    in single precision or better. The gradients are given once: a second backward pass through
    the same call is an error.
    """
    device = outputs.device.type
    low = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
    rows = CPU_ROWS if low is None else 2 * CPU_ROWS
    rows = rows if device == "cpu" else max(rows, DEVICE_SIZE // len(weight))
    wanted = torch.is_grad_enabled()
    with torch.autocast(device, enabled=False):
        total: torch.Tensor = _SummedNLL.apply(outputs, weight, bias, targets, rows, low, wanted)
    return total


@has_kernel(_fast_nll)
def summed_nll(
    outputs: torch.Tensor,
    weight: torch.Tensor,
    bias: Optional[torch.Tensor],
    targets: torch.Tensor,
) -> torch.Tensor:
    """The sum over tokens of -ln softmax(outputs weight^T + bias)[target], in nats, () (Eq. 10).

    Shapes: outputs (N, M), weight (V, M), bias (V,) or None, targets (N,).
    """
    logits = F.linear(outputs, weight, bias)  # (N, V)
    # half precision would lose the sum
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return F.cross_entropy(logits, targets, reduction="sum")


class Linear(nn.Linear):
    """`torch.nn.Linear` by `linear`, which is faster where no gradient is wanted."""

    def weights(self) -> Tuple[torch.Tensor, torch.Tensor]:
        """Weight and bias for another function than `forward`, whose output is linear in them."""
        if is_random(self):
            refuse_mean(self)
        return self.weight, self.bias

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Map (..., in_features) to (..., out_features)."""
        return linear(input, self.weight, self.bias)
