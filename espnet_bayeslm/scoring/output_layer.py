"""ln p of tokens from logits, or from what the output layer gets: the one place for both.

The logits of many contexts never exist all at once: those of the targets are looked up, and ln Z is
summed in blocks.
"""

from __future__ import annotations

from typing import Callable, List, NamedTuple, Optional, Tuple

import torch

from espnet_bayeslm.layers.product import product

# Contexts and tokens of a block of logits: on a CPU it stays in the cache while its exponentials
# are summed, on a GPU it is worth a kernel's start.
BLOCKS = {"cpu": (512, 1024), "cuda": (4096, 8192)}
# Contexts whose targets' weights are looked up at once.
ROWS = 1024


def log_probs_of_logits(
    logits: torch.Tensor, targets: torch.Tensor
) -> Tuple[torch.Tensor, torch.Tensor]:
    """Ln p of one token after each context, and the context's ln Z, in float32 or better.

    Args:
        logits: (..., V).
        targets: Tokens, (...).

    Returns:
        Two tensors (...).
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
) -> Tuple[torch.Tensor, torch.Tensor]:
    """Ln p of one token after each of some contexts, and every context's ln Z.

    Args:
        outputs: What the output projection gets, (T, M).
        contexts: Rows of `outputs`, (N,).
        targets: Tokens, (N,).
        weight: (V, M).
        bias: (V,).
        log_z: What is taken for every context's ln Z; None: it is computed.

    Returns:
        (N,) and (T,), in float32 or better.
    """
    logits = target_logits(outputs, contexts, targets, weight, bias)
    if log_z is not None:
        return logits - log_z, logits.new_full((len(outputs),), log_z)
    normalizers = log_normalizers(outputs, weight, bias)
    return logits - normalizers[contexts], normalizers


class Blocks(NamedTuple):
    """The blocks of a (T, V) matrix of logits: contexts are its rows, tokens its columns."""

    contexts: List[slice]
    tokens: List[slice]

    @classmethod
    def of(cls, outputs: torch.Tensor, weight: torch.Tensor) -> Blocks:
        """Return the blocks of the logits of outputs (T, M) with a weight (V, M)."""
        height, width = BLOCKS.get(outputs.device.type, BLOCKS["cuda"])
        return cls(_slices(len(outputs), height), _slices(len(weight), width))

    def logits(
        self, weight: torch.Tensor, bias: torch.Tensor, tokens: slice
    ) -> Callable[[torch.Tensor], torch.Tensor]:
        """Return (N, M) -> (N, tokens), for many calls: the weights are packed once."""
        rows = self.contexts[0].stop if self.contexts else 0
        return product(weight[tokens], rows, bias[tokens])


def _slices(total: int, size: int) -> List[slice]:
    return [slice(start, min(start + size, total)) for start in range(0, total, size)]


def log_normalizers(
    outputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    """Return ln Z = ln sum_v exp(weight_v output + bias_v) of each context, in float32 or better.

    Args:
        outputs: What the output projection gets, (T, M).
        weight: (V, M).
        bias: (V,).

    Returns:
        (T,).
    """
    dtype = torch.promote_types(outputs.dtype, torch.float32)
    blocks = Blocks.of(outputs, weight)
    parts = outputs.new_empty(len(blocks.tokens), len(outputs), dtype=dtype)
    for part, tokens in zip(parts, blocks.tokens, strict=True):
        logits = blocks.logits(weight, bias, tokens)
        for contexts in blocks.contexts:
            part[contexts] = _log_sum_exp_(logits(outputs[contexts]).to(dtype))
    return parts.logsumexp(0)


def _log_sum_exp_(logits: torch.Tensor) -> torch.Tensor:
    """Return ln sum exp of each row, (N,), overwriting the logits (N, C)."""
    top = logits.amax(1, keepdim=True)
    return logits.sub_(top).exp_().sum(1).log_().add_(top.squeeze(1))


def target_logits(
    outputs: torch.Tensor,
    contexts: torch.Tensor,
    targets: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
) -> torch.Tensor:
    """Return the logit of one token after each of some contexts, in float32 or better.

    Args:
        outputs: What the output projection gets, (T, M).
        contexts: Rows of `outputs`, (N,).
        targets: Tokens, (N,).
        weight: (V, M).
        bias: (V,).

    Returns:
        (N,).
    """
    dtype = torch.promote_types(outputs.dtype, torch.float32)
    parts = [
        (outputs[rows] * weight[tokens]).sum(1, dtype=dtype) + bias[tokens]
        for rows, tokens in zip(contexts.split(ROWS), targets.split(ROWS), strict=True)
    ]
    return torch.cat(parts)
