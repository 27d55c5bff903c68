"""Sums of dataclasses."""

from __future__ import annotations

import dataclasses
from typing import TypeVar

T = TypeVar("T", bound="Addable")


@dataclasses.dataclass(frozen=True)
class Addable:
    """Base of dataclasses that add field by field."""

    def __add__(self: T, other: T) -> T:
        if type(other) is not type(self):
            return NotImplemented
        names = [field.name for field in dataclasses.fields(self)]
        return type(self)(*(getattr(self, name) + getattr(other, name) for name in names))
