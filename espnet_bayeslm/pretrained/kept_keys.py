"""Keys and values that a causal LM of `transformers` has computed for the prefixes of a search."""

from __future__ import annotations

from typing import Any, List, Sequence, Tuple

import torch


class KeyValues:
    """Keys and values at the prefixes of a search, a row for each: those of its last token.

    Attributes:
        size: Number of rows.
    """

    def __init__(self) -> None:
        self.size = 0
        # of each layer: keys and values, (capacity, heads, size of a head) each
        self._layers: List[Tuple[torch.Tensor, torch.Tensor]] = []

    def cache(self, rows: Sequence[int]) -> Any:
        """Cache of `transformers` of one sequence, whose places are these rows."""
        from transformers import DynamicCache  # takes a while

        found = DynamicCache()
        for number, (keys, values) in enumerate(self._layers if rows else ()):
            places = torch.tensor(rows, device=keys.device)
            # (P, heads, size) -> (1, heads, P, size)
            found.update(
                keys[places].transpose(0, 1)[None], values[places].transpose(0, 1)[None], number
            )
        return found

    def add(self, cache: Any, count: int) -> None:
        """Add rows of the last `count` places of a cache."""
        new = [(x.keys[0, :, -count:], x.values[0, :, -count:]) for x in cache.layers]
        parts = [(keys.transpose(0, 1), values.transpose(0, 1)) for keys, values in new]
        if not self._layers:
            self._layers = [(keys[:0], values[:0]) for keys, values in parts]
        end = self.size + count
        if end > len(self._layers[0][0]):
            # doubled, so that few copies are made
            self._layers = [(_grown(k, 2 * end), _grown(v, 2 * end)) for k, v in self._layers]
        for (keys, values), (k, v) in zip(self._layers, parts, strict=True):
            keys[self.size : end], values[self.size : end] = k, v
        self.size = end


def _grown(rows: torch.Tensor, capacity: int) -> torch.Tensor:
    """Copy with room for more rows."""
    found = rows.new_empty((capacity, *rows.shape[1:]))
    found[: len(rows)] = rows
    return found
