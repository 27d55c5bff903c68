"""Dropout whose random numbers cost little on a CPU."""

from __future__ import annotations

import torch
import torch.nn.functional as F

# A unit is dropped by 16 random bits, so its probability is a multiple of 2^-16.
LEVELS = 1 << 16
BITS = 64


def quantized(rate: float) -> float:
    """Probability nearest to a dropout rate that `dropped` can have."""
    return round(rate * LEVELS) / LEVELS


def dropped(like: torch.Tensor, rate: float) -> torch.Tensor:
    """Mask, 1 for each unit to drop and 0 for the others, in the type and shape of `like`.

    The probability is `quantized(rate)`. `bernoulli_` takes six times as long on a CPU: it makes
    64 random bits for each unit.
    """
    mask = torch.empty_like(like, memory_format=torch.contiguous_format)
    level = round(rate * LEVELS)
    if like.device.type != "cpu" or level >= LEVELS:
        return mask.bernoulli_(level / LEVELS)
    words = -(-like.numel() // (BITS // 16))
    # from the least number on: all 64 bits are random
    bits = torch.empty(words, dtype=torch.int64).random_(-(1 << (BITS - 1)), None)
    numbers = bits.view(torch.int16)[: like.numel()].view(like.shape)
    return torch.lt(numbers, level - LEVELS // 2, out=mask)


def dropout(x: torch.Tensor, p: float) -> torch.Tensor:
    """Dropout in training, by `dropped` on a CPU, (...) -> (...)."""
    rate = quantized(p)
    if x.device.type != "cpu" or not 0 < rate < 1:
        return F.dropout(x, p)
    # in place: 0 where dropped, else what keeps the mean
    kept = dropped(x, rate).sub_(1.0).mul_(1 / (rate - 1))
    return x * kept
