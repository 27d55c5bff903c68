"""Concatenation of parameters, whose gradients have a memory each."""

from __future__ import annotations

from typing import Sequence

import torch


def concatenate(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """`torch.cat` along the first dimension, for parameters.

    The gradients of `torch.cat` are views of one tensor, and parameters keep them as they are:
    where two concatenations are added, two parameters would have one gradient between them, which
    clipping then scales twice. The gradients of products have a memory each.
    """
    return torch.cat([1.0 * tensor for tensor in tensors])
