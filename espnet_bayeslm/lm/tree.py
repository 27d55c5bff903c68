"""Prefix trees of token sequences, for LMs that compute each distinct prefix once."""

from __future__ import annotations

from typing import List, NamedTuple, Sequence, Tuple

import numpy as np
import torch


class TokenTree(NamedTuple):
    """The distinct prefixes of some sequences, as T nodes; shallow nodes come first.

    Attributes:
        tokens: (T,), each node's own token; <sos/eos> for a root.
        parents: (T,), the node before it; -1 for a root.
        depths: (T,), 0 for a root.
        sizes: (T,), number of nodes of the subtree of a node, the node included.
        preorder: (T,), the nodes depth first, tree by tree.
        level_sizes: Number of nodes of each depth.
    """

    tokens: torch.Tensor
    parents: torch.Tensor
    depths: torch.Tensor
    sizes: torch.Tensor
    preorder: torch.Tensor
    level_sizes: Tuple[int, ...]

    def __len__(self) -> int:
        return len(self.tokens)

    def to(self, device: torch.device) -> TokenTree:
        """Tree with its tensors on a device."""
        return TokenTree(*(t.to(device) for t in self[:-1]), self.level_sizes)  # type: ignore

    def levels(self) -> List[slice]:
        """Nodes of each depth."""
        ends = np.cumsum(self.level_sizes)
        return [slice(int(e) - n, int(e)) for e, n in zip(ends, self.level_sizes, strict=True)]


def build_tree(
    groups: Sequence[Sequence[Sequence[int]]], sos: int
) -> Tuple[TokenTree, List[np.ndarray]]:
    """Prefix trees of groups of sequences, a tree for each group.

    Args:
        groups: Token ids without <sos/eos>; within a group in lexical order.
        sos: The token of the roots.

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
    differs = np.ones_like(valid)
    differs[1:] = np.logical_or.accumulate(table[1:] != table[:-1], axis=1)
    new = differs & valid
    level_sizes = new.sum(axis=0)
    # nodes are numbered level by level; a row's node is the last new one of its column
    ids = np.cumsum(new, axis=0) - 1 + (np.cumsum(level_sizes) - level_sizes)
    level, row = np.nonzero(new.T)
    fields = (
        np.where(level > 0, table[row, level], sos),
        np.where(level > 0, ids[row, level - 1], -1),
        level,
        _subtree_sizes(new, differs)[row, level],
        ids[new],
    )
    tokens, parents, depths, sizes, preorder = map(
        torch.from_numpy, map(np.ascontiguousarray, fields)
    )
    tree = TokenTree(tokens, parents, depths, sizes, preorder, tuple(level_sizes.tolist()))
    return tree, [ids[s, : length + 1] for s, length in enumerate(lengths)]


def _subtree_sizes(new: np.ndarray, differs: np.ndarray) -> np.ndarray:
    """Number of nodes at and below the node that is new in a row and a column, (S, L + 1).

    `new` marks where nodes begin, and `differs` where a row has not the prefix of the row before.
    """
    num_rows = len(new)
    # (S + 1, L + 1): the first row from here on that has another prefix
    following = np.where(differs, np.arange(num_rows)[:, None], num_rows)
    following = np.vstack([following, np.full_like(following[:1], num_rows)])
    following = np.minimum.accumulate(following[::-1], axis=0)[::-1]
    before = np.concatenate([[0], np.cumsum(new.sum(axis=1))])  # new nodes before a row
    place = np.cumsum(new, axis=1) - new  # and, within the row, before a column
    return before[following[1:]] - before[:-1, None] - place
