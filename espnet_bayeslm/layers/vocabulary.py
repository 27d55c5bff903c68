"""The cross-entropy of a large vocabulary, whose logits never exist all at once."""

from __future__ import annotations

from typing import Any, Optional, Tuple

import torch
from torch.autograd.function import once_differentiable

from espnet_bayeslm.layers.product import product

# Tokens whose logits are computed together: on a CPU they should stay in its cache ...
CPU_ROWS = 256
# ... on other devices a block should be large: 2^27 logits are 512 MB in single precision.
DEVICE_SIZE = 1 << 27
# From so many tokens on packed weights pay, in single precision; larger ones than that would take
# more memory than they are worth.
PACK_TOKENS, PACK_SIZE = 512, 1 << 24


def summed_nll(
    outputs: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    targets: torch.Tensor,
    *,
    rows: Optional[int] = None,
) -> torch.Tensor:
    """Return the sum over tokens of -ln softmax(outputs weight^T + bias)[target], in nats, ().

    Gradients are computed with the loss, block by block, so that no block's logits are needed
    again. Under autocast the products are in its precision; log-sum-exp, sums and gradients are
    in single precision or better. The gradients are given once: a second backward pass through
    the same call is an error.

    Args:
        outputs: What the output projection gets, (N, M).
        weight: (V, M).
        bias: (V,).
        targets: Token ids, (N,).
        rows: Tokens per block; default: what suits the device.
    """
    device = outputs.device.type
    if rows is None:
        rows = CPU_ROWS if device == "cpu" else max(CPU_ROWS, DEVICE_SIZE // len(weight))
    low = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
    wanted = torch.is_grad_enabled()
    with torch.autocast(device, enabled=False):
        total: torch.Tensor = _SummedNLL.apply(outputs, weight, bias, targets, rows, low, wanted)
    return total


class _SummedNLL(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        outputs: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor,
        targets: torch.Tensor,
        rows: int,
        low: Optional[torch.dtype],
        wants_gradients: bool,
    ) -> torch.Tensor:
        exact = torch.promote_types(torch.promote_types(outputs.dtype, weight.dtype), torch.float32)
        low = low or torch.promote_types(outputs.dtype, weight.dtype)
        total = torch.zeros((), dtype=exact, device=outputs.device)
        used = weight.detach().to(low)
        packs = low == exact and len(outputs) >= PACK_TOKENS and used.numel() <= PACK_SIZE
        project = product(used, rows) if packs else (lambda x: x @ used.t())
        d_outputs = torch.empty_like(outputs) if wants_gradients else None
        d_weight = torch.zeros_like(weight, dtype=exact) if wants_gradients else None
        d_bias = torch.zeros_like(bias, dtype=exact) if wants_gradients else None
        for first in range(0, len(outputs), rows):
            block = slice(first, first + rows)
            x, target = outputs[block].to(low), targets[block].unsqueeze(1)
            logits = project(x).to(exact).add_(bias)
            nll, logits = _softmax_(logits, target)
            total += nll.sum()
            if d_outputs is None or d_weight is None or d_bias is None:
                continue
            # softmax - one-hot: d nll / d logits
            logits.scatter_add_(1, target, logits.new_full(target.shape, -1.0))
            d_bias += logits.sum(0)
            d_logits = logits.to(low)
            d_outputs[block] = d_logits @ used
            if low == exact:
                d_weight.addmm_(d_logits.t(), x)
            else:
                d_weight += d_logits.t() @ x
        ctx.gradients = d_outputs, d_weight, d_bias
        ctx.dtypes = outputs.dtype, weight.dtype, bias.dtype
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> Tuple[Optional[torch.Tensor], ...]:  # type: ignore[override]
        gradients, ctx.gradients = ctx.gradients, None
        if gradients is None:
            raise RuntimeError("summed_nll: the gradients were used, call it again")
        # in place, since a pass over a vocabulary's weights takes milliseconds
        scaled = (g.mul_(gradient).to(t) for g, t in zip(gradients, ctx.dtypes, strict=True))
        return *scaled, *(None,) * 4


def _softmax_(logits: torch.Tensor, target: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:
    """Return -ln p(target) (N, 1), and the softmax (N, V) in the logits' place."""
    greatest = logits.amax(1, keepdim=True)
    chosen = logits.gather(1, target) - greatest
    # in place, since a pass over the logits costs as much as their product with few units
    logits.sub_(greatest).exp_()
    total = logits.sum(1, keepdim=True)
    return total.log() - chosen, logits.div_(total)
