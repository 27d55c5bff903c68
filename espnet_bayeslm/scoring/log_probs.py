"""Ln p of tokens from logits or inputs of the output layer, and sums over words.

The logits of many contexts never exist all at once: the targets' logits are looked up, and ln Z is
summed in blocks.
"""

from __future__ import annotations

import math
from typing import Any, Optional, Sequence

import numpy as np
import torch
import torch.nn.functional as F

from espnet_bayeslm.kernels.product import product
from espnet_bayeslm.utils.errors import InputError

# Contexts and tokens of a block of logits: on a CPU it stays in the cache while its exponentials
# are summed, on a GPU it is worth a kernel's start.
BLOCKS = {"cpu": (512, 1024), "cuda": (4096, 8192)}
# Contexts whose targets' weights are looked up at once.
ROWS = 1024
# From so many contexts on packing the weights costs less than it gains
PACKED = 192
# Rows of logits whose ln Z is summed at a time
LOGIT_ROWS = 128


def log_probs_of_outputs(
    outputs: torch.Tensor,
    contexts: torch.Tensor,
    targets: torch.Tensor,
    weight: Optional[torch.Tensor] = None,
    bias: Optional[torch.Tensor] = None,
    *,
    openings: Optional[torch.Tensor] = None,
) -> torch.Tensor:
    """Ln p of one token after each of some contexts, (N,), in float32 or better.

    With `openings` (2, N), the second row being ln P(one of these tokens) in the same contexts.

    Args:
        outputs: Input of the output projection, (T, M), or logits, (T, V).
        contexts: Rows of `outputs`, (N,).
        targets: Tokens, (N,).
        weight: (V, M); None: the outputs are logits.
        bias: (V,); None: zero.
        openings: True for the tokens that end the word before them; or None. A tokenizer may have
            fewer or more tokens than its model.
    """
    dtype = torch.promote_types(outputs.dtype, torch.float32)
    masses: Any = None
    if openings is not None:
        size = outputs.size(1) if weight is None else len(weight)
        openings = F.pad(openings, (0, size - len(openings))).to(outputs.device)
    if weight is not None and bias is None:
        bias = weight.new_zeros(len(weight))
    if weight is None or bias is None or len(outputs) < PACKED:
        logits = outputs if weight is None else F.linear(outputs, weight, bias)
        found = logits[contexts, targets].to(dtype)
        blocks = logits.split(LOGIT_ROWS)
        z = torch.cat([rows.to(dtype).logsumexp(1) for rows in blocks])
        if openings is not None:
            masses = torch.cat([rows[:, openings].to(dtype).logsumexp(1) for rows in blocks])
    else:
        parts = [
            (outputs[rows] * weight[tokens]).sum(1, dtype=dtype) + bias[tokens]
            for rows, tokens in zip(contexts.split(ROWS), targets.split(ROWS), strict=True)
        ]
        found = torch.cat(parts)
        if openings is not None:
            masses = log_normalizers(outputs, weight[openings], bias[openings])
        # the two parts cost what the whole costs
        rest = slice(None) if openings is None else ~openings
        z = log_normalizers(outputs, weight[rest], bias[rest])
        z = z if masses is None else torch.logaddexp(masses, z)
    if openings is not None:
        found = torch.stack([found, masses[contexts]])
    return found - z[contexts]


def word_sums(
    values: np.ndarray, starts: Sequence[int], openings: Optional[np.ndarray] = None
) -> np.ndarray:
    """(..., n + 1) sums over the tokens of each word and of `</s>`; of ln p the words' ln p.

    Args:
        values: Values of the tokens and `</s>`, (..., number of tokens + 1), such as ln p.
        starts: Where each word, and `</s>`, begins. A word without tokens has the sum 0.
        openings: Ln e in the context of each token, as `values`; None: e is 1.
    """
    sums = np.add.reduceat(values, starts, axis=-1)
    # reduceat takes the next value for an empty run
    sums[..., :-1][..., np.diff(starts) == 0] = 0
    if openings is not None:
        ends = np.where(np.array(starts) > 0, openings[..., starts], 0.0)
        sums += np.diff(ends, axis=-1, append=0.0)
    return sums


def diverged_error() -> InputError:
    """Error of an LM whose log-probabilities are not all finite."""
    return InputError(
        "a log-probability of the LM is not a finite number",
        remedy="Its training has diverged: use an earlier checkpoint.",
    )


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
        sums = []
        for block in outputs.split(height):
            own = logits(block).to(dtype)
            top = own.amax(1, keepdim=True)
            # ln sum exp in place
            sums.append(own.sub_(top).exp_().sum(1).log_().add_(top.squeeze(1)))
        parts.append(torch.cat(sums))
    return torch.stack(parts).logsumexp(0)
