"""Keys and values of a beam search's prefixes, each distinct prefix once.

The hypotheses of an utterance share most of their prefixes, and those of two utterances share none.
Each first state begins a lane of a table that grows: one row for each token of the hypotheses that
continue it. A hypothesis refers to the rows of its tokens. A step attends from each hypothesis to
its whole lane, under a mask, in all lanes at once: nothing is copied, and a row whose last
hypothesis was pruned is used again.
"""

from __future__ import annotations

import heapq
import weakref
from operator import attrgetter
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np
import torch
import torch.nn.functional as F


class Prefix:
    """A hypothesis' tokens so far: the state that a beam search keeps.

    The prefix gives its own rows back to the lane when neither the search nor a longer prefix
    refers to it any more.

    Attributes:
        lane: Where its keys and values are.
        rows: Rows of all tokens, as the bits of a number.
        length: Number of tokens.
    """

    __slots__ = ("_own", "_parent", "lane", "length", "rows")

    def __init__(self, lane: Lane, own: List[int], parent: Optional[Prefix] = None):
        self.lane, self._own, self._parent = lane, own, parent
        self.rows: int = 0 if parent is None else parent.rows
        self.length: int = len(own) + (0 if parent is None else parent.length)
        for row in own:
            self.rows |= 1 << row

    def __len__(self) -> int:
        return self.length

    def __del__(self) -> None:
        self.lane.release(self._own)

    def __reduce__(self) -> Tuple[Any, ...]:
        # rows have one owner: a copy, also a pickled one, is alone in a cache of its own
        return _alone, (self.lane.cache.head, self.keys_values())

    def keys_values(self) -> torch.Tensor:
        """Keys and values of its tokens, (num_layers, 2, L, M)."""
        rows = membership([self], self.lane.end)[0].nonzero()[0]
        return self.lane.cache.table[:, :, self.lane.number, rows]


def _alone(head: int, keys_values: torch.Tensor) -> Prefix:
    """Prefix in a cache of its own; as `Prefix.keys_values`."""
    num_layers, _, _, size = keys_values.shape
    return KeyValueCache(num_layers, head, size, keys_values).add(keys_values)


class Lane:
    """Rows of a batch that hold one utterance's hypotheses.

    Attributes:
        cache: Where the keys and values are.
        number: Index of the lane in the cache's table, until the table is next fitted.
        end: All rows in use are before it.
    """

    __slots__ = ("__weakref__", "_free", "cache", "end", "number")

    def __init__(self, cache: KeyValueCache, number: int):
        self.cache, self.number = cache, number
        self.end = 0
        self._free: List[int] = []

    def __len__(self) -> int:
        """Number of rows in use."""
        return self.end - len(self._free)

    def allocate(self) -> int:
        """The first row that is free, so that the lane stays dense."""
        if self._free:
            return heapq.heappop(self._free)
        self.end += 1
        return self.end - 1

    def release(self, rows: List[int]) -> None:
        """Take back rows that no prefix refers to."""
        for row in rows:
            heapq.heappush(self._free, row)


class KeyValueCache:
    """Keys and values of the tokens of a search, M for all heads, in type and device as `like`.

    Attributes:
        head: Number of attention heads.
        table: (num_layers, 2, lanes, capacity, M).
    """

    def __init__(self, num_layers: int, head: int, size: int, like: torch.Tensor):
        self.head = head
        self.table = like.new_zeros(num_layers, 2, 0, 0, size)
        self._lanes: List[weakref.ref[Lane]] = []

    def lanes(self) -> List[Lane]:
        """The lanes that a prefix refers to."""
        return [lane for reference in self._lanes if (lane := reference()) is not None]

    def empty(self) -> Prefix:
        """Prefix without a token, in a new lane."""
        lane = Lane(self, len(self._lanes))
        self._lanes.append(weakref.ref(lane))
        return Prefix(lane, [])

    def add(self, keys_values: torch.Tensor) -> Prefix:
        """Prefix with a copy of these keys and values, in a new lane; as `Prefix.keys_values`."""
        lane = self.empty().lane
        rows = [lane.allocate() for _ in range(keys_values.size(2))]
        self.fit()
        self.table[:, :, lane.number, : len(rows)] = keys_values.to(self.table)
        return Prefix(lane, rows)

    def fit(self) -> None:
        """Make room for all rows in use; where half of the lanes have ended, release these."""
        lanes, (num_lanes, capacity) = self.lanes(), self.table.shape[2:4]
        end = max(lane.end for lane in lanes)
        if len(self._lanes) <= num_lanes < 2 * len(lanes) and end <= capacity:
            return
        kept = [lane.number for lane in lanes if lane.number < num_lanes]
        rows = max(end, 2 * capacity) - capacity if end > capacity else 0
        self.table = F.pad(self.table[:, :, kept], (0, 0, 0, rows, 0, len(lanes) - len(kept)))
        self._lanes = [weakref.ref(lane) for lane in lanes]
        for number, lane in enumerate(lanes):
            lane.number = number


def membership(prefixes: Sequence[Prefix], end: int) -> np.ndarray:
    """Mask of the rows below `end` of its lane that are each prefix's, bool (B, end)."""
    size = -(-end // 8)
    packed = b"".join(prefix.rows.to_bytes(size, "little") for prefix in prefixes)
    bits = np.unpackbits(np.frombuffer(packed, np.uint8), bitorder="little")
    return bits.reshape(len(prefixes), 8 * size)[:, :end].astype(bool)


def in_one_cache(prefixes: Sequence[Prefix]) -> Sequence[Prefix]:
    """Prefixes in the longest one's cache, each of another cache copied into a lane of its own.

    Where others have tokens, a new prefix without a token goes to the longest one's lane: it is a
    transducer's, of the same utterance. The utterances of a batch begin together.
    """
    longest = max(prefixes, key=attrgetter("length"))
    cache = longest.lane.cache

    def placed(prefix: Prefix) -> Prefix:
        if prefix.length:
            return cache.add(prefix.keys_values())
        return Prefix(longest.lane, []) if longest.length else cache.empty()

    return [p if p.lane.cache is cache else placed(p) for p in prefixes]


def _places(numbers: Sequence[int]) -> List[int]:
    """Place of each hypothesis in its lane, from the numbers of the lanes."""
    counts: Dict[int, int] = {}
    places = []
    for number in numbers:
        places.append(counts.get(number, 0))
        counts[number] = places[-1] + 1
    return places


class CachedStep:
    """One more token for each of B hypotheses, whose states are prefixes.

    Each lane has as many queries as the fullest one: `width`.

    Attributes:
        prefixes: New states, which count the new token.
        positions: (B,), how many tokens each had before.
        end: All positions are below it.
    """

    def __init__(self, prefixes: Sequence[Prefix]):
        prefixes = in_one_cache(prefixes)
        lengths = [prefix.length for prefix in prefixes]
        self.end = max(lengths) + 1
        rows = [prefix.lane.allocate() for prefix in prefixes]
        self.prefixes = [
            Prefix(before.lane, [row], before) for row, before in zip(rows, prefixes, strict=True)
        ]
        self._cache = prefixes[0].lane.cache
        self._cache.fit()
        numbers = [prefix.lane.number for prefix in prefixes]
        first, last = min(numbers), max(numbers)
        # (num_layers, 2, lanes, capacity, M): from the first lane of the step to the last
        self._table = self._cache.table[:, :, first : last + 1]
        num_lanes, capacity = self._table.shape[2:4]
        lanes, places = [number - first for number in numbers], _places(numbers)
        self._width = max(places) + 1
        queries = [lane * self._width + place for lane, place in zip(lanes, places, strict=True)]
        own = [lane * capacity + row for lane, row in zip(lanes, rows, strict=True)]
        # a row that is not the hypothesis' own is not seen
        seen = membership(self.prefixes, max(prefix.lane.end for prefix in prefixes))
        mask = np.zeros((num_lanes * self._width, seen.shape[1]), np.float32)
        mask[queries] = np.where(seen, 0, -np.inf)
        self.positions, self._rows, self._queries = self._to(np.array((lengths, own, queries)))
        self._mask = self._to(mask.reshape(num_lanes, 1, self._width, -1)).to(self._table.dtype)
        self._in_order = queries == list(range(num_lanes * self._width))

    def _to(self, array: np.ndarray) -> torch.Tensor:
        """Tensor of an array on the cache's device."""
        return torch.from_numpy(array).to(self._table.device, non_blocking=True)

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> torch.Tensor:
        """Attention of the new tokens over their prefixes and themselves, (B, M).

        The layer is counted from 0; key and value, (B, M) as the query, are kept.
        """
        keys, values = self._table[layer]  # (lanes, capacity, M)
        num_lanes, _, size = keys.shape
        keys.view(-1, size).index_copy_(0, self._rows, key)
        values.view(-1, size).index_copy_(0, self._rows, value)
        if not self._in_order:
            shuffled, query = query, query.new_zeros(num_lanes * self._width, size)
            query.index_copy_(0, self._queries, shuffled)
        end = self._mask.size(3)
        found = F.scaled_dot_product_attention(
            self._heads(query.unflatten(0, (num_lanes, self._width))),
            self._heads(keys[:, :end]),
            self._heads(values[:, :end]),
            attn_mask=self._mask,
        )
        found = found.transpose(1, 2).reshape(-1, size)
        return found if self._in_order else found.index_select(0, self._queries)

    def _heads(self, x: torch.Tensor) -> torch.Tensor:
        """(lanes, L, M) -> (lanes, head, L, M / head)."""
        return x.view(*x.shape[:2], self._cache.head, -1).transpose(1, 2)
