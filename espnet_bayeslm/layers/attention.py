"""Self-attention over prefix trees and a beam's prefixes."""

from __future__ import annotations

from typing import Any, List, Sequence

import torch
import torch.nn.functional as F

from espnet_bayeslm.kernels import has_kernel, key_value_cache, tree_attention


def split_heads(x: torch.Tensor, heads: int) -> torch.Tensor:
    """Each head's part, (..., L, M) -> (..., heads, L, M / heads)."""
    return x.unflatten(-1, (heads, -1)).transpose(-2, -3)


class TreeAttention:
    """Attention over the nodes of prefix trees, from each to its ancestors and itself.

    Args:
        tree: A `TokenTree` of T nodes.
        dtype: Type of the queries, keys and values.

    Attributes:
        order: (R,), a node for each row.
        rows: (T,), where each node is among them.
    """

    def __init__(self, tree: Any, dtype: torch.dtype):
        self.order = self.rows = torch.arange(len(tree), device=tree.parents.device)
        self.mask = torch.eye(len(tree), dtype=torch.bool, device=tree.parents.device)  # (T, T)
        for node, parent in enumerate(tree.parents.tolist()):  # which comes before its children
            if parent >= 0:
                self.mask[node] |= self.mask[parent]

    def attend(self, projected: torch.Tensor, heads: int) -> torch.Tensor:
        """Attention of each node over its ancestors and itself, (R, M).

        Args:
            projected: Query, key and value of each row, side by side, (R, 3 M).
            heads: Number of heads.
        """
        query, key, value = (split_heads(x, heads) for x in projected.chunk(3, dim=1))
        found = F.scaled_dot_product_attention(query, key, value, self.mask)
        return found.transpose(0, 1).flatten(1)


class Prefix:
    """A hypothesis' tokens so far, with keys and values of its own.

    Args:
        keys_values: (num_layers, 2, head, L, M / head).
    """

    def __init__(self, keys_values: torch.Tensor):
        self._keys_values = keys_values

    def __len__(self) -> int:
        return self._keys_values.size(3)

    def keys_values(self) -> torch.Tensor:
        """Keys and values of its tokens, (num_layers, 2, head, L, M / head)."""
        return self._keys_values


class KeyValueCache:
    """Makes the prefixes that a beam search starts from.

    Args:
        num_layers: Number of layers.
        head: Number of attention heads.
        size: M, the size of keys and values of all heads together.
        like: A tensor with the type and device of the keys and values.
    """

    def __init__(self, num_layers: int, head: int, size: int, like: torch.Tensor):
        self.head = head
        self.nothing = like.new_zeros(num_layers, 2, head, 0, size // head)

    def empty(self) -> Prefix:
        """The prefix without a token."""
        return Prefix(self.nothing)

    def begin(self, keys_values: Sequence[torch.Tensor]) -> List[Prefix]:
        """Prefixes of equal length whose keys and values are known.

        Args:
            keys_values: Keys and values of each layer, (B, 2, L, M).
        """
        layers = torch.stack([split_heads(x, self.head) for x in keys_values])
        return [Prefix(own) for own in layers.unbind(1)]


class CachedStep:
    """One more token for each of B hypotheses.

    Attributes:
        positions: (B,), how many tokens each had before.
        end: All positions are below it.
    """

    def __init__(self, prefixes: Sequence[Prefix]):
        self._before = [prefix.keys_values() for prefix in prefixes]
        self._after: List[List[torch.Tensor]] = [[] for _ in prefixes]
        lengths = [len(prefix) for prefix in prefixes]
        self.positions = torch.tensor(lengths, device=self._before[0].device)
        self.end = max(lengths) + 1

    @property
    def prefixes(self) -> List[Prefix]:
        """New states, which count the new token, after `attend` in all layers."""
        return [Prefix(torch.stack(layers)) for layers in self._after]

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> torch.Tensor:
        """Attention of the new tokens over their prefixes and themselves, (B, M).

        Args:
            layer: From 0.
            query: (B, M).
            key: (B, M); it is kept.
            value: (B, M); it is kept.
        """
        found = []
        for own, layers, *heads in zip(self._before, self._after, query, key, value, strict=True):
            # (M,) -> (head, 1, M / head)
            q, k, v = (split_heads(x.unsqueeze(0), own.size(2)) for x in heads)
            layers.append(torch.cat([own[layer], torch.stack([k, v]).to(own)], dim=2))
            found.append(F.scaled_dot_product_attention(q, *layers[-1].to(q)).flatten())
        return torch.stack(found)


@has_kernel(tree_attention.TreeAttention)
def make_tree_attention(tree: Any, dtype: torch.dtype) -> TreeAttention:
    """Attention over the nodes of prefix trees: a `TreeAttention`."""
    return TreeAttention(tree, dtype)


@has_kernel(key_value_cache.KeyValueCache)
def make_cache(num_layers: int, head: int, size: int, like: torch.Tensor) -> KeyValueCache:
    """Maker of a beam search's prefixes: a `KeyValueCache`."""
    return KeyValueCache(num_layers, head, size, like)


@has_kernel(key_value_cache.CachedStep)
def make_step(prefixes: Sequence[Prefix]) -> CachedStep:
    """One more token for each of B hypotheses."""
    return CachedStep(prefixes)
