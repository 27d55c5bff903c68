"""Keys and values of a beam search's prefixes, each distinct prefix once.

The hypotheses of a search share most of their prefixes. All tokens have rows in one table that
grows; a hypothesis refers to the rows of its tokens. A step attends from each hypothesis to the
whole table, under a mask: nothing is copied, and a row whose last hypothesis was pruned is used
again.
"""

from __future__ import annotations

import heapq
from typing import Any, List, Optional, Sequence, Tuple

import numpy as np
import torch
import torch.nn.functional as F

CAPACITY = 64


class Prefix:
    """A hypothesis' tokens so far: the state that a beam search keeps.

    The prefix gives its own rows back to the cache when neither the search nor a longer prefix
    refers to it any more.

    Attributes:
        cache: Where its keys and values are.
        rows: Rows of all tokens, as the bits of a number.
        length: Number of tokens.
    """

    __slots__ = ("_own", "_parent", "cache", "length", "rows")

    def __init__(self, cache: KeyValueCache, own: List[int], parent: Optional[Prefix] = None):
        self.cache, self._own, self._parent = cache, own, parent
        self.rows: int = 0 if parent is None else parent.rows
        self.length: int = len(own) + (0 if parent is None else parent.length)
        for row in own:
            self.rows |= 1 << row

    def __len__(self) -> int:
        return self.length

    def __del__(self) -> None:
        self.cache.release(self._own)

    def __reduce__(self) -> Tuple[Any, ...]:
        # rows have one owner: a copy, also a pickled one, is alone in a cache of its own
        return _alone, (self.keys_values(),)

    def keys_values(self) -> torch.Tensor:
        """Keys and values of its tokens, (num_layers, 2, head, L, M / head)."""
        return self.cache.table[:, :, :, membership([self])[0].nonzero()[0]]


def _alone(keys_values: torch.Tensor) -> Prefix:
    """Prefix in a cache of its own; as `Prefix.keys_values`."""
    num_layers, _, head, _, size = keys_values.shape
    return KeyValueCache(num_layers, head, head * size, keys_values).add(keys_values)


class KeyValueCache:
    """Keys and values of the tokens of a search, M for all heads, in type and device as `like`.

    Attributes:
        table: (num_layers, 2, head, capacity, M / head).
        end: All rows in use are before it.
    """

    def __init__(self, num_layers: int, head: int, size: int, like: torch.Tensor):
        self.table = like.new_zeros(num_layers, 2, head, CAPACITY, size // head)
        self.end = 0
        self._free: List[int] = []

    def __len__(self) -> int:
        """Number of rows in use."""
        return self.end - len(self._free)

    def empty(self) -> Prefix:
        """Prefix without a token."""
        return Prefix(self, [])

    def allocate(self, count: int) -> List[int]:
        """Rows that are free, the first ones, so that the table stays dense."""
        again = min(count, len(self._free))
        rows = [heapq.heappop(self._free) for _ in range(again)]
        rows += range(self.end, self.end + count - again)
        self.end += count - again
        capacity = self.table.size(3)
        if self.end > capacity:
            self.table = F.pad(self.table, (0, 0, 0, max(self.end, 2 * capacity) - capacity))
        return rows

    def release(self, rows: List[int]) -> None:
        """Take back rows that no prefix refers to."""
        for row in rows:
            heapq.heappush(self._free, row)

    def add(self, keys_values: torch.Tensor) -> Prefix:
        """Prefix with a copy of these keys and values, as `Prefix.keys_values` gives them."""
        rows = self.allocate(keys_values.size(3))
        self.table[:, :, :, rows] = keys_values.to(self.table)
        return Prefix(self, rows)


def membership(prefixes: Sequence[Prefix]) -> np.ndarray:
    """Mask of the rows of one cache that are each prefix's, bool (B, end)."""
    end = prefixes[0].cache.end
    size = -(-end // 8)
    packed = b"".join(prefix.rows.to_bytes(size, "little") for prefix in prefixes)
    bits = np.unpackbits(np.frombuffer(packed, np.uint8), bitorder="little")
    return bits.reshape(len(prefixes), 8 * size)[:, :end].astype(bool)


class CachedStep:
    """One more token for each of B hypotheses, whose states are prefixes.

    The longest one's cache gets copies of prefixes of other caches.

    Attributes:
        prefixes: New states, which count the new token.
        positions: (B,), how many tokens each had before.
        end: All positions are below it.
    """

    def __init__(self, prefixes: Sequence[Prefix]):
        cache = self.cache = max(prefixes, key=len).cache
        prefixes = [p if p.cache is cache else cache.add(p.keys_values()) for p in prefixes]
        new = cache.allocate(len(prefixes))
        self.prefixes = [
            Prefix(cache, [row], before) for row, before in zip(new, prefixes, strict=True)
        ]
        table = cache.table
        lengths = [len(prefix) for prefix in prefixes]
        self.end = max(lengths) + 1
        # (B, end): a row that is not the hypothesis' own is not seen
        hidden = ~membership(self.prefixes)
        self.positions, self._new, moved = (
            torch.from_numpy(numbers).to(table.device, non_blocking=True)
            for numbers in (np.array(lengths), np.array(new), hidden)
        )
        mask = torch.zeros(hidden.shape, dtype=table.dtype, device=table.device)
        self._mask = mask.masked_fill_(moved, float("-inf"))

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> torch.Tensor:
        """Attention of the new tokens over their prefixes and themselves, (B, M).

        The layer is counted from 0; key and value, (B, M) as the query, are kept.
        """
        # (head, capacity, M / head); (B, M) -> (head, B, M / head)
        keys, values = self.cache.table[layer].unbind(0)
        heads = [x.unflatten(1, (len(keys), -1)).transpose(0, 1) for x in (query, key, value)]
        keys.index_copy_(1, self._new, heads[1])
        values.index_copy_(1, self._new, heads[2])
        end = self._mask.size(1)
        found = F.scaled_dot_product_attention(
            heads[0].unsqueeze(0),
            keys[:, :end].unsqueeze(0),
            values[:, :end].unsqueeze(0),
            attn_mask=self._mask,
        )
        return found[0].transpose(0, 1).flatten(1)
