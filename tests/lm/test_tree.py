"""Prefix trees against a naive trie, and every LM over them against its forward pass."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lm_cases import CASES, LSTM, RANDOM, TRANSFORMER, VOCAB, build, make_generic
from lm_cases import name as case_name

from espnet_bayeslm.lm import BayesLSTMLM, BayesTransformerLM
from espnet_bayeslm.lm.tree import build_tree

EOS = VOCAB - 1
SEQUENCES = st.lists(st.lists(st.integers(0, 3), max_size=5).map(tuple), min_size=1, unique=True)


def naive_trie(groups):
    """Return the set of (number of the group, prefix) of all prefixes."""
    return {
        (number, ids[:length])
        for number, group in enumerate(groups)
        for ids in group
        for length in range(len(ids) + 1)
    }


def prefix_of(tree, node):
    """Return (number of the tree, tokens from the root to a node)."""
    tokens = []
    while tree.depths[node] > 0:
        tokens.append(int(tree.tokens[node]))
        node = int(tree.parents[node])
    assert tree.parents[node] == -1 and tree.tokens[node] == EOS
    return node, tuple(reversed(tokens))


@settings(max_examples=25)
@given(groups=st.lists(SEQUENCES.map(sorted), min_size=1, max_size=4))
def test_trees_equal_a_naive_trie(groups):
    tree, paths = build_tree(groups, EOS)
    prefixes = [prefix_of(tree, node) for node in range(len(tree))]
    assert len(set(prefixes)) == len(prefixes) and set(prefixes) == naive_trie(groups)
    assert [len(prefix) for _, prefix in prefixes] == tree.depths.tolist()
    # level by level, each level a run of nodes, parents before them
    assert tree.depths.tolist() == sorted(tree.depths.tolist())
    assert tuple(tree.depths.bincount().tolist()) == tree.level_sizes
    for depth, level in enumerate(tree.levels()):
        assert set(tree.depths[level].tolist()) == {depth}
    # depth first: sorted by tree and prefix; a subtree is a run
    ordered = [prefixes[node] for node in tree.preorder]
    assert ordered == sorted(prefixes)
    for place, (node, (number, prefix)) in enumerate(zip(tree.preorder, ordered, strict=True)):
        below = [p for n, p in prefixes if n == number and p[: len(prefix)] == prefix]
        assert tree.sizes[node] == len(below)
        assert ordered[place : place + len(below)] == sorted((number, p) for p in below)
    rows = [(number, ids) for number, group in enumerate(groups) for ids in group]
    assert len(paths) == len(rows)
    for (number, ids), path in zip(rows, paths, strict=True):
        assert [prefixes[node] for node in path] == [(number, ids[:n]) for n in range(len(ids) + 1)]


def sequences():
    """Return sequences with many common prefixes, in groups, sorted."""
    texts = {tuple(torch.randint(1, 4, (int(n),)).tolist()) for n in torch.randint(0, 7, (50,))}
    texts = sorted({*texts, (), (5,) * 12})
    return [texts[:12], texts[12:13], texts[13:]]


def assert_equals_forward(lm, groups, **tolerance):
    tree, paths = build_tree(groups, EOS)
    logits = lm.decoder(lm.tree_outputs(tree))
    assert len(logits) == len(tree)
    texts = [torch.tensor([EOS, *ids]) for group in groups for ids in group]
    expected = lm(torch.nn.utils.rnn.pad_sequence(texts, batch_first=True))[0]
    for row, path in zip(expected, paths, strict=True):
        found = logits[torch.from_numpy(path)]
        torch.testing.assert_close(found, row[: len(path)], rtol=0, **tolerance)


@pytest.mark.parametrize("case", CASES, ids=map(case_name, CASES))
@torch.inference_mode()
def test_each_node_has_the_output_of_its_prefix(case):
    assert_equals_forward(make_generic(build(case)).eval(), sequences(), atol=1e-9)


@pytest.mark.parametrize("case", RANDOM, ids=map(case_name, RANDOM))
@torch.inference_mode()
def test_each_node_has_the_output_of_its_prefix_in_a_held_draw(case):
    lm = make_generic(build(case)).eval()
    with lm.sampled(2):
        assert_equals_forward(lm, sequences(), atol=1e-9)


@pytest.mark.parametrize("dtype, atol", [(torch.float32, 1e-4), (torch.bfloat16, 0.2)])
@pytest.mark.parametrize(
    "sizes", [LSTM | dict(unit=256), TRANSFORMER | dict(att_unit=256, unit=300)]
)
@torch.inference_mode()
def test_widths_at_which_weights_are_packed(sizes, dtype, atol):
    """Tiny LMs never reach the packed products."""
    cls = BayesLSTMLM if "nlayers" in sizes else BayesTransformerLM
    lm = build((cls, sizes, {})).to(dtype).eval()
    groups = [sorted({tuple(torch.randint(1, EOS, (6,)).tolist()) for _ in range(150)})]
    assert_equals_forward(lm, groups, atol=atol)
