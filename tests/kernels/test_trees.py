"""Attention over prefix trees against a full mask."""

import pytest
import torch
from torch import nn

from espnet_bayeslm.lm import tree as tree_module
from espnet_bayeslm.lm.tree import TreeAttention, build_tree


def make_tree(length=90, num=60):
    """Return two trees, of some depth, and the nodes of their sequences."""
    base = torch.randint(3, (length,))
    texts = set()
    for _ in range(num):
        ids = base[: int(torch.randint(0, length + 1, ()))].clone()
        ids[torch.rand(len(ids)) < 0.02] = 5
        texts.add(tuple(ids.tolist()))
    texts = sorted(texts)
    return build_tree([texts[: num // 3], texts[num // 3 :]], 9)


def ancestors(tree):
    """Return which node sees which, (T, T)."""
    seen = torch.eye(len(tree), dtype=torch.bool)
    for node, parent in enumerate(tree.parents.tolist()):
        if parent >= 0:
            seen[node] |= seen[parent]
    return seen


@pytest.mark.parametrize("block, max_keys", [(64, 1 << 16), (64, 1), (8, 500), (1, 300)])
def test_attention_equals_that_with_a_full_mask(monkeypatch, block, max_keys):
    monkeypatch.setattr(tree_module, "BLOCK", block)
    monkeypatch.setattr(tree_module, "MAX_KEYS", max_keys)
    tree, _ = make_tree()
    assert len(tree) > 300
    x = torch.randn(len(tree), 3 * 12, dtype=torch.float64)
    heads = [t.unflatten(1, (3, 4)).transpose(0, 1) for t in x.chunk(3, dim=1)]
    expected = nn.functional.scaled_dot_product_attention(*heads, attn_mask=ancestors(tree))
    attention = TreeAttention(tree, x.dtype)
    found = attention.attend(*x[attention.order].chunk(3, dim=1), heads=3)[attention.rows]
    torch.testing.assert_close(found, expected.transpose(0, 1).flatten(1), rtol=0, atol=1e-12)
    assert torch.equal(attention.order[attention.rows], torch.arange(len(tree)))
