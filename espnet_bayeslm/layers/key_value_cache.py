"""Keys and values of a beam search's prefixes, each distinct prefix once.

The hypotheses of an utterance share most of their prefixes, and those of two utterances share none.
Each first state begins a lane of a table that grows: one row for each token of the hypotheses that
continue it. A hypothesis refers to the rows of its tokens. A step attends from each hypothesis to
its whole lane, under a mask, in all lanes at once: nothing is copied, and a row whose last
hypothesis was pruned is used again.
"""

from __future__ import annotations

import collections
import heapq
import weakref
from typing import Any, Counter, List, Optional, Sequence, Tuple

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
        return _alone, (self.keys_values(),)

    def keys_values(self) -> torch.Tensor:
        """Keys and values of its tokens, (num_layers, 2, head, L, M / head)."""
        rows = membership([self], self.lane.end)[0].nonzero()[0]
        return self.lane.cache.table[:, :, self.lane.number][:, :, :, rows]


def _alone(keys_values: torch.Tensor) -> Prefix:
    """Prefix in a cache of its own; as `Prefix.keys_values`."""
    num_layers, _, head, _, size = keys_values.shape
    return KeyValueCache(num_layers, head, head * size, keys_values).add(keys_values)


class Lane:
    """Rows of the hypotheses that continue one first state: an utterance's.

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

    def allocate(self, count: int) -> List[int]:
        """Rows that are free, the first ones, so that the lane stays dense."""
        again = min(count, len(self._free))
        rows = [heapq.heappop(self._free) for _ in range(again)]
        rows += range(self.end, self.end + count - again)
        self.end += count - again
        return rows

    def release(self, rows: List[int]) -> None:
        """Take back rows that no prefix refers to."""
        for row in rows:
            heapq.heappush(self._free, row)


class KeyValueCache:
    """Keys and values of the tokens of a search, M for all heads, in type and device as `like`.

    Attributes:
        table: (num_layers, 2, lanes, head, capacity, M / head).
    """

    def __init__(self, num_layers: int, head: int, size: int, like: torch.Tensor):
        self.table = like.new_zeros(num_layers, 2, 0, head, 0, size // head)
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
        rows = lane.allocate(keys_values.size(3))
        self.fit()
        self.table[:, :, lane.number, :, : len(rows)] = keys_values.to(self.table)
        return Prefix(lane, rows)

    def fit(self) -> None:
        """Make room for all rows in use; where half of the lanes have ended, release these."""
        lanes, (num_lanes, _, capacity) = self.lanes(), self.table.shape[2:5]
        end = max(lane.end for lane in lanes)
        if len(self._lanes) <= num_lanes < 2 * len(lanes) and end <= capacity:
            return
        kept = [lane.number for lane in lanes if lane.number < num_lanes]
        rows = max(end, 2 * capacity) - capacity if end > capacity else 0
        self.table = F.pad(self.table[:, :, kept], (0, 0, 0, rows, 0, 0, 0, len(lanes) - len(kept)))
        self._lanes = [weakref.ref(lane) for lane in lanes]
        for number, lane in enumerate(lanes):
            lane.number = number


def membership(prefixes: Sequence[Prefix], end: int) -> np.ndarray:
    """Mask of the rows below `end` of its lane that are each prefix's, bool (B, end)."""
    size = -(-end // 8)
    packed = b"".join(prefix.rows.to_bytes(size, "little") for prefix in prefixes)
    bits = np.unpackbits(np.frombuffer(packed, np.uint8), bitorder="little")
    return bits.reshape(len(prefixes), 8 * size)[:, :end].astype(bool)


def in_one_cache(prefixes: Sequence[Prefix]) -> List[Prefix]:
    """Prefixes in the longest one's cache, each of another cache copied into a lane of its own.

    Where others have tokens, a new prefix without a token goes to the longest one's lane: it is a
    transducer's of the same utterance. The utterances of a batch begin together.
    """
    longest = max(prefixes, key=len)
    cache = longest.lane.cache

    def placed(prefix: Prefix) -> Prefix:
        if prefix.lane.cache is cache:
            return prefix
        if len(prefix):
            return cache.add(prefix.keys_values())
        return Prefix(longest.lane, []) if len(longest) else cache.empty()

    return [placed(prefix) for prefix in prefixes]


class CachedStep:
    """One more token for each of B hypotheses, whose states are prefixes.

    Each lane gets as many queries as the fullest has hypotheses.

    Attributes:
        prefixes: New states, which count the new token.
        positions: (B,), how many tokens each had before.
        end: All positions are below it.
    """

    def __init__(self, prefixes: Sequence[Prefix]):
        prefixes = in_one_cache(prefixes)
        lengths = [len(prefix) for prefix in prefixes]
        self.end = max(lengths) + 1
        rows = [prefix.lane.allocate(1) for prefix in prefixes]
        self.prefixes = [
            Prefix(before.lane, own, before) for own, before in zip(rows, prefixes, strict=True)
        ]
        cache = prefixes[0].lane.cache
        cache.fit()
        numbers = [prefix.lane.number for prefix in prefixes]
        first, last = min(numbers), max(numbers)
        # (lanes, 2, head, capacity, M / head) of each layer
        self._table = cache.table[:, :, first : last + 1]
        counts: Counter[int] = collections.Counter()
        places = []
        for number in numbers:
            places.append(counts[number])
            counts[number] += 1
        self._width = max(counts.values())
        lanes = np.array(numbers) - first
        end = max(prefix.lane.end for prefix in prefixes)
        # (lanes, width, end): a row that is not the hypothesis' own is not seen
        hidden = np.zeros((last + 1 - first, self._width, end), bool)
        hidden[lanes, places] = ~membership(self.prefixes, end)
        self.positions, self._lanes, self._rows, self._queries, moved = (
            torch.from_numpy(array).to(cache.table.device, non_blocking=True)
            for array in (
                np.array(lengths),
                lanes,
                np.array(rows)[:, 0],
                lanes * self._width + np.array(places),
                hidden[:, None],
            )
        )
        mask = torch.zeros(moved.shape, dtype=cache.table.dtype, device=cache.table.device)
        self._mask = mask.masked_fill_(moved, float("-inf"))

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> torch.Tensor:
        """Attention of the new tokens over their prefixes and themselves, (B, M).

        The layer is counted from 0; key and value, (B, M) as the query, are kept.
        """
        keys, values = self._table[layer]  # (lanes, head, capacity, M / head)
        num_lanes, head = keys.shape[:2]
        for kept, new in ((keys, key), (values, value)):
            kept[self._lanes, :, self._rows] = new.unflatten(1, (head, -1))
        # (B, M) -> (lanes width, M) -> (lanes, head, width, M / head)
        queries = query.new_zeros(num_lanes * self._width, query.size(1))
        queries.index_copy_(0, self._queries, query)
        end = self._mask.size(-1)
        found = F.scaled_dot_product_attention(
            queries.view(num_lanes, self._width, head, -1).transpose(1, 2),
            keys[:, :, :end],
            values[:, :, :end],
            attn_mask=self._mask,
        )
        return found.transpose(1, 2).reshape(queries.shape).index_select(0, self._queries)
