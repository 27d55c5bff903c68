"""Prefix trees of token sequences, for LMs that compute each distinct prefix once."""

from __future__ import annotations

import itertools
from typing import List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
import torch
import torch.nn.functional as F

Ids = Tuple[int, ...]
BLOCK = 64
# The most keys that are gathered at once: long sentences would need much memory
MAX_KEYS = 1 << 16


class TokenTree(NamedTuple):
    """The distinct prefixes of some sequences, as T nodes; shallow nodes come first.

    Attributes:
        tokens: (T,), each node's own token; <sos/eos> for a root.
        parents: (T,), the node before it; -1 for a root.
        depths: (T,), 0 for a root.
        sizes: (T,), number of nodes of the subtree of a node, the node included.
        preorder: (T,), the nodes depth first, tree by tree.
        levels: The nodes of each depth.
    """

    tokens: torch.Tensor
    parents: torch.Tensor
    depths: torch.Tensor
    sizes: torch.Tensor
    preorder: torch.Tensor
    levels: Tuple[slice, ...]


def build_tree(
    groups: Sequence[Sequence[Sequence[int]]], sos: int, device: Optional[torch.device] = None
) -> Tuple[TokenTree, List[np.ndarray]]:
    """Prefix trees of groups of sequences, a tree for each group.

    Args:
        groups: Token ids without <sos/eos>; within a group in lexical order.
        sos: The token of the roots.
        device: Where the trees are put; None: on the CPU.

    Returns:
        The trees; for each sequence of all groups its n + 1 nodes, the root first.
    """
    rows = [ids for group in groups for ids in group]
    number = np.repeat(np.arange(len(groups)), [len(group) for group in groups])
    lengths = np.array([len(ids) for ids in rows])
    # (S, L + 1): the first column tells the groups apart
    table = np.full((len(rows), int(lengths.max(initial=0)) + 1), -1)
    table[:, 0] = number
    valid = np.arange(table.shape[1]) <= lengths[:, None]
    table[:, 1:][valid[:, 1:]] = np.fromiter((t for ids in rows for t in ids), int)
    new = valid.copy()
    new[1:] &= np.logical_or.accumulate(table[1:] != table[:-1], axis=1)
    ends = np.cumsum(new.sum(axis=0))
    # nodes are numbered level by level; a row's node is the last new one of its column
    ids = np.cumsum(new, axis=0) - 1 + [0, *ends[:-1]]
    level, row = np.nonzero(new.T)
    parents = np.where(level > 0, ids[row, level - 1], -1)
    sizes = np.ones_like(parents)
    levels = tuple(itertools.starmap(slice, itertools.pairwise([0, *ends.tolist()])))
    # from the deepest level up
    for nodes in levels[:0:-1]:
        np.add.at(sizes, parents[nodes], sizes[nodes])
    fields = (np.where(level > 0, table[row, level], sos), parents, level, sizes, ids[new])
    tensors = (torch.from_numpy(np.ascontiguousarray(field)).to(device) for field in fields)
    tree = TokenTree(*tensors, levels)  # type: ignore
    return tree, [ids[s, : length + 1] for s, length in enumerate(lengths)]


class TreeAttention:
    """Self-attention of the T nodes of some trees, from each node to its ancestors and itself.

    The nodes are taken depth first, and cut into blocks. An ancestor outside of its node's block is
    an ancestor of the block's first node too. So a block needs its own keys and the keys on the
    path from the root to its first node, however large the trees are.

    Args:
        tree: The trees.
        dtype: Type of the layers' inputs.
        heads: Number of heads.

    Attributes:
        order: (R,), a node for each row; the rows after T, up to a whole block, are padding.
        rows: (T,), where each node is among them.
    """

    def __init__(self, tree: TokenTree, dtype: torch.dtype, heads: int):
        self.heads = heads
        preorder, count, device = tree.preorder, len(tree.tokens), tree.preorder.device
        self.order = F.pad(preorder, (0, -count % BLOCK))
        own = torch.arange(count, device=device)
        self.rows = torch.empty_like(preorder)
        self.rows[preorder] = own
        before = tree.parents[preorder]
        before = torch.where(before < 0, before, self.rows[before])
        # queries: (blocks, BLOCK); keys: (blocks, K), the path to the first node and the block
        queries = torch.arange(len(self.order), device=device).view(-1, BLOCK)
        path: List[torch.Tensor] = []
        ancestor, on_cpu = queries[:, 0], device.type == "cpu"
        # on a CPU as few as possible; elsewhere the depth is known without waiting
        while bool((ancestor >= 0).any()) if on_cpu else len(path) < len(tree.levels):
            ancestor = torch.where(ancestor < 0, ancestor, before[ancestor])
            path.append(ancestor)
        # kernels want whole vectors
        path += [torch.full_like(ancestor, -1)] * (-len(path) % 8)
        keys = torch.cat([torch.stack(path, dim=1), queries], dim=1)
        exists = (keys >= 0) & (keys < count)
        self.keys = keys.clamp(0, count - 1)
        ends = (own + tree.sizes[preorder])[self.keys]  # of their subtrees
        query, key = queries.unsqueeze(2), keys.unsqueeze(1)
        seen = exists.unsqueeze(1) & (key <= query) & (query < ends.unsqueeze(1))
        # a row of padding that saw nothing would be divided by zero
        seen |= key == query
        # an additive mask: a mask of bools would be converted in each layer
        added = torch.zeros_like(seen, dtype=dtype).masked_fill_(~seen, float("-inf"))
        self.mask = added.unsqueeze(1)

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> torch.Tensor:
        """Attention of each node over its ancestors and itself; all are (R, M), of any layer."""
        key_value = torch.cat([key, value], dim=1)
        # (blocks, heads, BLOCK, M / heads)
        query = query.unflatten(1, (self.heads, -1)).unflatten(0, (-1, BLOCK)).transpose(1, 2)
        at_once = max(1, MAX_KEYS // self.keys.size(1))
        parts = (x.split(at_once) for x in (query, self.keys, self.mask))
        found = []
        for queries, keys, mask in zip(*parts, strict=True):
            # key and value: (blocks, heads, K, M / heads)
            taken = key_value[keys].unflatten(2, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)
            y = F.scaled_dot_product_attention(queries, taken[0], taken[1], attn_mask=mask)
            found.append(y.transpose(1, 2).flatten(2).flatten(0, 1))
        return torch.cat(found)
