"""Keys and values that a causal LM of `transformers` has computed, to go on from them."""

from __future__ import annotations

from typing import Any, Dict, List, Sequence, Tuple

import torch

from espnet_bayeslm.lm.tree import Ids


class KeyValues:
    """Keys and values at the prefixes of a search, a row for each: those of its last token.

    Attributes:
        size: Number of rows.
    """

    def __init__(self) -> None:
        self.size = 0
        # of each layer: keys and values, (capacity, heads, size of a head) each
        self._layers: List[Tuple[torch.Tensor, torch.Tensor]] = []

    def rows(self, rows: Sequence[int]) -> List[Tuple[torch.Tensor, torch.Tensor]]:
        """Keys and values (P, heads, size of a head) of some rows, for each layer."""
        places = torch.tensor(rows, dtype=torch.long)
        return [(k[places.to(k.device)], v[places.to(v.device)]) for k, v in self._layers]

    def add(self, cache: Any, places: slice | torch.Tensor) -> None:
        """Add rows of some places of a cache of one sequence."""
        new = [(x.keys[0, :, places], x.values[0, :, places]) for x in cache.layers]
        self.append([(keys.transpose(0, 1), values.transpose(0, 1)) for keys, values in new])

    def append(self, parts: Sequence[Tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Add rows (N, heads, size of a head) of each layer."""
        if not self._layers:
            self._layers = [(keys[:0], values[:0]) for keys, values in parts]
        end = self.size + len(parts[0][0])
        if end > len(self._layers[0][0]):
            # doubled, so that few copies are made
            self._layers = [(_grown(k, 2 * end), _grown(v, 2 * end)) for k, v in self._layers]
        for (keys, values), (k, v) in zip(self._layers, parts, strict=True):
            keys[self.size : end], values[self.size : end] = k, v
        self.size = end


class KeptText:
    """Keys and values of a recording's tokens, and of the hypotheses that may come next.

    Attributes:
        keys: Their rows.
        path: Rows of the tokens that are read already, before those of the next pass.
    """

    def __init__(self) -> None:
        self.keys = KeyValues()
        self.path: List[int] = []
        # (row before, or -1; token) -> row
        self._next: Dict[Tuple[int, int], int] = {}

    def rows_of(self, tokens: Sequence[int]) -> List[int]:
        """Rows of a text's first tokens, as far as they are known."""
        found: List[int] = []
        for token in tokens:
            row = self._next.get((found[-1] if found else -1, token))
            if row is None:
                break
            found.append(row)
        return found

    def add(self, cache: Any, places: torch.Tensor, tokens: Ids, parents: Sequence[int]) -> None:
        """Add nodes that come after the path.

        Args:
            cache: The cache of a pass.
            places: Their places in it.
            tokens: Their tokens.
            parents: For each the number of the node before it, an earlier one; -1: the path's end.
        """
        last = self.path[-1] if self.path else -1
        for n, (token, parent) in enumerate(zip(tokens, parents, strict=True)):
            before = last if parent < 0 else self.keys.size + parent
            self._next.setdefault((before, token), self.keys.size + n)
        self.keys.add(cache, places)

    def part(self, tokens: Sequence[int]) -> KeptText:
        """A copy that has the first tokens of a text alone, as far as they are known."""
        found, rows = KeptText(), self.rows_of(tokens)
        if rows:
            found.keys.append(self.keys.rows(rows))
        found._next = {(n - 1, token): n for n, token in enumerate(tokens[: len(rows)])}
        return found


def cache_of(kept: Sequence[Tuple[KeyValues, Sequence[int]]]) -> Any:
    """Cache of `transformers` of one sequence, whose places are rows of some keys and values."""
    from transformers import DynamicCache  # takes a while

    found = DynamicCache()
    every = [keys.rows(rows) for keys, rows in kept if rows]
    for number, parts in enumerate(zip(*every, strict=True)):
        # (P, heads, size) -> (1, heads, P, size)
        keys, values = (torch.cat(both).transpose(0, 1)[None] for both in zip(*parts, strict=True))
        found.update(keys, values, number)
    return found


def _grown(rows: torch.Tensor, capacity: int) -> torch.Tensor:
    """Copy with room for more rows."""
    found = rows.new_empty((capacity, *rows.shape[1:]))
    found[: len(rows)] = rows
    return found
