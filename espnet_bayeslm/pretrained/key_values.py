"""Keys and values of a causal LM of `transformers` at the prefixes of a search."""

from __future__ import annotations

from typing import Any, List, Sequence, Tuple

import torch


class KeyValues:
    """Keys and values of each layer, a row for each prefix: those of the prefix's last token.

    Attributes:
        size: Number of rows.
    """

    def __init__(self) -> None:
        self.size = 0
        # of each layer: keys and values, (capacity, heads, size of a head) each
        self._layers: List[Tuple[torch.Tensor, torch.Tensor]] = []

    def cache(self, paths: Sequence[Sequence[int]], device: torch.device) -> Any:
        """Cache of `transformers` of B prefixes of L tokens, from the rows of their tokens."""
        from transformers import DynamicCache  # takes a while

        found, rows = DynamicCache(), torch.tensor(paths, device=device)
        if rows.numel():
            for number, (keys, values) in enumerate(self._layers):
                # (B, L, heads, size) -> (B, heads, L, size)
                taken = keys[rows].transpose(1, 2), values[rows].transpose(1, 2)
                found.update(*taken, number)
        return found

    def add(self, cache: Any) -> List[int]:
        """Rows of B more prefixes, whose last tokens are the last of a cache."""
        new = [(layer.keys[:, :, -1], layer.values[:, :, -1]) for layer in cache.layers]
        count = len(new[0][0])
        if not self._layers:
            self._layers = [(keys[:0], values[:0]) for keys, values in new]
        end = self.size + count
        if end > len(self._layers[0][0]):
            # doubled, so that few copies are made
            self._layers = [(_grown(k, 2 * end), _grown(v, 2 * end)) for k, v in self._layers]
        for (keys, values), (k, v) in zip(self._layers, new, strict=True):
            keys[self.size : end], values[self.size : end] = k, v
        self.size = end
        return list(range(end - count, end))


def _grown(rows: torch.Tensor, capacity: int) -> torch.Tensor:
    """Copy with room for more rows."""
    found = rows.new_empty((capacity, *rows.shape[1:]))
    found[: len(rows)] = rows
    return found
