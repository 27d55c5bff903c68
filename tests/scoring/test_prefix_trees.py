"""Batches of prefix trees, and ln Z of their nodes."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from espnet_bayeslm.scoring.log_probs import BLOCKS, log_normalizers, log_probs_of_outputs
from espnet_bayeslm.scoring.tree_lm import Passage, TreeLM

SEQUENCES = st.lists(st.lists(st.integers(0, 2), max_size=6).map(tuple), unique=True).map(sorted)


def distinct_prefixes(sequences):
    return len({ids[:n] for ids in sequences for n in range(len(ids) + 1)})


@given(sequences=SEQUENCES, max_tokens=st.integers(1, 40))
def test_batches_hold_all_sequences_in_order_and_keep_to_their_budget(sequences, max_tokens):
    passages = [Passage(0, (*ids, 0), 1) for ids in sequences]
    # the root is a prefix too
    runs = list(TreeLM().batches(passages, max_tokens + 1))
    assert [passage for run in runs for passage in run] == sorted(passages)
    batches = [[passage.tokens[:-1] for passage in run] for run in runs]
    for batch in batches:
        assert distinct_prefixes(batch) <= max_tokens or len(batch) == 1
    # none ends before it has to
    for batch, following in itertools.pairwise(batches):
        assert distinct_prefixes([*batch, following[0]]) > max_tokens


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("contexts, vocab", [(1, 3), (5, 9), (7, 8), (20, 31)])
def test_log_normalizers_equal_logsumexp(monkeypatch, contexts, vocab, dtype):
    monkeypatch.setitem(BLOCKS, "cpu", (3, 4))
    monkeypatch.setattr("espnet_bayeslm.scoring.log_probs.ROWS", 5)
    monkeypatch.setattr("espnet_bayeslm.scoring.log_probs.PACKED", 1)
    outputs, weight = torch.randn(contexts, 6, dtype=dtype), torch.randn(vocab, 6, dtype=dtype)
    bias = 50 * torch.randn(vocab, dtype=dtype)
    logits = torch.nn.functional.linear(outputs, weight, bias)
    exact = {"atol": 0.5 if dtype == torch.bfloat16 else 1e-5, "rtol": 0}
    wide = torch.promote_types(dtype, torch.float32)
    found = log_normalizers(outputs, weight, bias)
    assert found.dtype == wide
    assert log_normalizers(outputs, weight[:0], bias[:0]).tolist() == [-float("inf")] * contexts
    torch.testing.assert_close(found, logits.to(wide).logsumexp(1), **exact)
    rows, tokens = torch.randint(contexts, (13,)), torch.randint(vocab, (13,))
    picked = log_probs_of_outputs(outputs, rows, tokens, weight, bias) + found[rows]
    torch.testing.assert_close(picked, logits.to(wide)[rows, tokens], **exact)


def test_log_normalizers_with_packed_blocks():
    """More contexts and tokens than a block has, and weights large enough to be packed."""
    outputs, weight = torch.randn(700, 64), torch.randn(2500, 64) / 8
    bias = torch.randn(2500)
    expected = (outputs.double() @ weight.double().t() + bias).logsumexp(1)
    found = log_normalizers(outputs, weight, bias).double()
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
