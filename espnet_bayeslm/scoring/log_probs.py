"""Ln p of tokens from logits or inputs of the output layer, and batches of prefix trees.

The logits of many contexts never exist all at once: the targets' logits are looked up, and ln Z is
summed in blocks. Over a prefix tree each distinct prefix goes through the LM once.
"""

from __future__ import annotations

import math
from typing import Optional, Tuple

import torch

from espnet_bayeslm.kernels.product import product

# Contexts and tokens of a block of logits: on a CPU it stays in the cache while its exponentials
# are summed, on a GPU it is worth a kernel's start.
BLOCKS = {"cpu": (512, 1024), "cuda": (4096, 8192)}
# Contexts whose targets' weights are looked up at once.
ROWS = 1024


def log_probs_of_logits(
    logits: torch.Tensor, targets: torch.Tensor
) -> Tuple[torch.Tensor, torch.Tensor]:
    """Ln p of one token after each context, and the context's ln Z, in float32 or better.

    The logits are (..., V), the targets and both results (...).
    """
    # half precision would lose the sum
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    log_z = logits.logsumexp(-1)
    return logits.gather(-1, targets.unsqueeze(-1)).squeeze(-1) - log_z, log_z


def log_probs_of_outputs(
    outputs: torch.Tensor,
    contexts: torch.Tensor,
    targets: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    *,
    log_z: Optional[float] = None,
    openings: Optional[torch.Tensor] = None,
) -> torch.Tensor:
    """Ln p of one token after each of some contexts, (N,), in float32 or better.

    With `openings` (2, N), the second row being ln P(one of these tokens) in the same contexts.

    Args:
        outputs: Input of the output projection, (T, M).
        contexts: Rows of `outputs`, (N,).
        targets: Tokens, (N,).
        weight: (V, M).
        bias: (V,).
        log_z: Constant that replaces every context's ln Z; None: ln Z is computed.
        openings: (V,) bool, True for the tokens that end the word before them; or None.
    """
    dtype = torch.promote_types(outputs.dtype, torch.float32)
    parts = [
        (outputs[rows] * weight[tokens]).sum(1, dtype=dtype) + bias[tokens]
        for rows, tokens in zip(contexts.split(ROWS), targets.split(ROWS), strict=True)
    ]
    logits = torch.cat(parts)
    if openings is None:
        if log_z is not None:
            return logits - log_z
        return logits - log_normalizers(outputs, weight, bias)[contexts]
    masses = log_normalizers(outputs, weight[openings], bias[openings])
    logits = torch.stack([logits, masses[contexts]])
    if log_z is not None:
        return logits - log_z
    # the two parts cost what the whole costs
    others = log_normalizers(outputs, weight[~openings], bias[~openings])
    return logits - torch.logaddexp(masses, others)[contexts]


def log_normalizers(
    outputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    """Ln Z = ln sum_v exp(weight_v output + bias_v) of each context, (T,), in float32 or better."""
    dtype = torch.promote_types(outputs.dtype, torch.float32)
    if not len(weight):
        return outputs.new_full((len(outputs),), -math.inf, dtype=dtype)
    height, width = BLOCKS.get(outputs.device.type, BLOCKS["cuda"])
    parts = []
    for rows, offsets in zip(weight.split(width), bias.split(width), strict=True):
        # the weights are packed once for all contexts
        logits = product(rows, min(height, len(outputs)), offsets)
        sums = [_log_sum_exp_(logits(block).to(dtype)) for block in outputs.split(height)]
        parts.append(torch.cat(sums))
    return torch.stack(parts).logsumexp(0)


def _log_sum_exp_(logits: torch.Tensor) -> torch.Tensor:
    """Ln sum exp of each row, (N,), overwriting the logits (N, C)."""
    top = logits.amax(1, keepdim=True)
    return logits.sub_(top).exp_().sum(1).log_().add_(top.squeeze(1))
