"""Sentences of a batch without their padding, packed into rows for attention."""

from __future__ import annotations

import functools
import heapq
from typing import List, NamedTuple, Sequence, Tuple

import torch


class Rows(NamedTuple):
    """Sentences in rows.

    Attributes:
        number: Number of rows.
        width: Slots of the longest one.
        starts: Row and first slot of each sentence.
    """

    number: int
    width: int
    starts: Sequence[Tuple[int, int]]

    @property
    def cost(self) -> float:
        """Slots; a slot of a row of twice the width counts 7 % more, for the attention."""
        return self.number * self.width**1.1


def as_even(lengths: Sequence[int], number: int) -> Rows:
    """Sentences in so many rows: the longest first, each into the row that has the least."""
    rows = [(0, row) for row in range(number)]  # by their loads
    starts: List[Tuple[int, int]] = [(0, 0)] * len(lengths)
    for sentence in sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True):
        load, row = rows[0]
        starts[sentence] = row, load
        heapq.heapreplace(rows, (load + lengths[sentence], row))
    return Rows(number, max(load for load, _ in rows), starts)


class Packing:
    """The N tokens of the sentences of a padded batch, sentence by sentence.

    It is made of lengths on the host, so that a device is not waited for.

    Args:
        lengths: Number of tokens of each sentence, on the host, (B,).
        width: L, the length with padding.
        device: Device of the tensors.

    Attributes:
        places: Where the tokens are among the B L of the batch, (N,).
        positions: The tokens' positions in their sentences, (N,).
    """

    def __init__(self, lengths: torch.Tensor, width: int, device: torch.device):
        counts = torch.arange(width) < lengths.unsqueeze(1)
        self._lengths, self._width = lengths, width
        self._places = counts.flatten().nonzero().squeeze(1)
        self.places = self._places.to(device, non_blocking=True)
        self.positions = self.places % width

    def pick(self, values: torch.Tensor) -> torch.Tensor:
        """The tokens' values of those of the padded batch, (B, L, ...) -> (N, ...)."""
        return values.flatten(0, 1).index_select(0, self.places)

    @functools.cached_property
    def rows(self) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """R rows of W slots, few of which are empty.

        Sentences that are alike in length have a row each; others have as many rows as the longest
        one fills, or half as many of twice the width, where that leaves clearly fewer slots empty.

        Returns:
            Which of the N tokens is in a slot, the first one in padding, (R, W); where each token
            is among the R W slots, (N,); True from a token to itself and to earlier ones of its
            sentence, (R, 1, W, W).
        """
        lengths = self._lengths.tolist()
        most = max(sum(lengths) // max(lengths), 1)
        numbers = {max(most // 2, 1), most, len(lengths)}
        tried = [as_even(lengths, number) for number in sorted(numbers, reverse=True)]
        number, width, starts = min(tried, key=lambda rows: rows.cost)
        firsts = torch.tensor([row * width + first for row, first in starts])
        slots = firsts.repeat_interleave(self._lengths) + self._places % self._width
        slots = slots.to(self.places.device, non_blocking=True)
        tokens = slots.new_zeros(number * width)
        tokens[slots] = torch.arange(len(slots), device=slots.device)
        owners = torch.full_like(tokens, -1)
        owners[slots] = self.places // self._width
        owners = owners.view(number, width)
        seen = (owners.unsqueeze(2) == owners.unsqueeze(1)).tril()
        return tokens.view(number, width), slots, seen.unsqueeze(1)
