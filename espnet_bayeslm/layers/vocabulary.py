"""The cross-entropy of a vocabulary."""

from __future__ import annotations

from typing import Optional

import torch
import torch.nn.functional as F

from espnet_bayeslm.kernels import has_kernel, vocabulary


@has_kernel(vocabulary.summed_nll)
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
