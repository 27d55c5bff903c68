"""Sums of dataclasses."""

from __future__ import annotations

import dataclasses
import operator
from typing import TypeVar

T = TypeVar("T", bound="Addable")


@dataclasses.dataclass(frozen=True)
class Addable:
    """Base of dataclasses that add field by field."""

    def __add__(self: T, other: T) -> T:
        if type(other) is not type(self):
            return NotImplemented
        return type(self)(*map(operator.add, vars(self).values(), vars(other).values()))
