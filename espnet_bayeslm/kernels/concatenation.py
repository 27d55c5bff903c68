"""Concatenation of parameters, whose gradients have a memory each."""

from __future__ import annotations

from typing import Any, Sequence, Tuple

import torch
from torch.autograd.function import once_differentiable


def concatenate(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """`torch.cat` along the first dimension, for parameters.

    The gradients of `torch.cat` are views of one tensor, and parameters keep them as they are:
    where two concatenations are added, two parameters would have one gradient between them, which
    clipping then scales twice. Here each is a copy.
    """
    if not torch.is_grad_enabled():
        return torch.cat(list(tensors))
    result: torch.Tensor = _Concatenation.apply(*tensors)
    return result


class _Concatenation(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *tensors: torch.Tensor) -> torch.Tensor:
        ctx.lengths = [len(tensor) for tensor in tensors]
        return torch.cat(tensors)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> Tuple[torch.Tensor, ...]:  # type: ignore[override]
        return tuple(part.clone() for part in grad.split(ctx.lengths))
