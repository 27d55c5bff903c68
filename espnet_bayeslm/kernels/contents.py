"""Whether tensors were written to, noticed without reading them."""

from __future__ import annotations

import itertools
from typing import Any, List, Optional, Sequence, Tuple

import torch

_numbers = itertools.count()


def content_number(tensor: torch.Tensor) -> Optional[Tuple[Any, ...]]:
    """Number of a tensor's content, another one after each write to its memory.

    Torch's version counter sees neither `tensor.data.copy_(x)` nor what was made in
    `torch.inference_mode`. But torch marks the memory of a lazy clone, and takes the mark away
    before anybody writes there: through `.data`, another view, NumPy. Some that only read
    do so too, as torch's fused LSTM; then a number is new without need. What writes through an
    address that it took earlier (an old NumPy array) is not seen.

    Returns:
        None where torch cannot mark the memory, as that of a mapped file.
    """
    storage: Any = tensor.untyped_storage()  # it gets an attribute of ours
    try:
        is_marked = torch._C._is_cow_tensor(tensor)  # type: ignore[attr-defined]  # no stub
        if not (is_marked and hasattr(storage, "content_number")):
            torch._lazy_clone(tensor.detach())
            storage.content_number = next(_numbers)
    except (AttributeError, RuntimeError):
        return None
    view = (tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype)
    return (storage.content_number, *view)


class Contents:
    """What tensors hold now, to be asked later whether they still do.

    Args:
        tensors: Those that torch cannot watch are copied.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]):
        self._numbers = [content_number(tensor) for tensor in tensors]
        self._copies = [
            tensor.detach().clone() if number is None else None
            for tensor, number in zip(tensors, self._numbers, strict=True)
        ]

    def are_those_of(self, tensors: List[torch.Tensor]) -> bool:
        """Whether these tensors hold the same."""
        if len(tensors) != len(self._copies):
            return False
        return all(
            content_number(tensor) == number if copy is None else _are_equal(tensor, copy)
            for tensor, number, copy in zip(tensors, self._numbers, self._copies, strict=True)
        )


def _are_equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    return (a.dtype, a.device) == (b.dtype, b.device) and torch.equal(a, b)
