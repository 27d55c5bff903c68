"""Detection of writes to tensors, without reading the tensors."""

from __future__ import annotations

import itertools
from typing import Any, List, Optional, Sequence, Tuple

import torch

_numbers = itertools.count()


def content_number(tensor: torch.Tensor) -> Optional[Tuple[Any, ...]]:
    """Number of a tensor's content, another one after each write to its memory.

    Torch's version counter sees neither `tensor.data.copy_(x)` nor tensors made in
    `torch.inference_mode`. But torch marks the memory of a lazy clone, and takes the mark away
    before anybody writes there: through `.data`, another view, NumPy. Some readers take it away
    too, as torch's fused LSTM; then a number is new without need. Writes through an older address
    (an old NumPy array) are not seen. None where torch cannot mark the memory, as of a mapped file.
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
    """Snapshot of the content of tensors, to be compared later.

    Args:
        tensors: The tensors; only where torch cannot watch one is it copied.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]):
        self._numbers = [content_number(tensor) for tensor in tensors]
        self._copies = [
            tensor.detach().clone() if number is None else None
            for tensor, number in zip(tensors, self._numbers, strict=True)
        ]

    def are_those_of(self, tensors: List[torch.Tensor]) -> bool:
        """True if the tensors hold the content of the snapshot."""
        if len(tensors) != len(self._copies):
            return False
        return all(
            content_number(tensor) == number
            if copy is None
            else (tensor.dtype, tensor.device) == (copy.dtype, copy.device)
            and torch.equal(tensor, copy)
            for tensor, number, copy in zip(tensors, self._numbers, self._copies, strict=True)
        )
