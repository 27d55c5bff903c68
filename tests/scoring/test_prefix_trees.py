"""Batches of prefix trees, and scores over them against one sequence at a time, for every LM."""

import itertools

import numpy as np
import pytest
import torch
from espnet2.lm.seq_rnn_lm import SequentialRNNLM
from espnet2.lm.transformer_lm import TransformerLM
from hypothesis import given, settings
from hypothesis import strategies as st
from lm_cases import SOME, VOCAB, build, make_generic, one_sequence
from lm_cases import name as case_name

from espnet_bayeslm.lm import BayesLSTMLM, BayesTransformerLM
from espnet_bayeslm.scoring import score_hypotheses, token_log_probs
from espnet_bayeslm.scoring.log_probs import (
    BLOCKS,
    log_normalizers,
    log_probs_of_outputs,
    tree_batches,
)

EOS = VOCAB - 1
SEQUENCES = st.lists(st.lists(st.integers(0, 2), max_size=6).map(tuple), unique=True).map(sorted)


def distinct_prefixes(sequences):
    return len({ids[:n] for ids in sequences for n in range(len(ids) + 1)})


@given(sequences=SEQUENCES, max_tokens=st.integers(1, 40))
def test_batches_hold_all_sequences_in_order_and_keep_to_their_budget(sequences, max_tokens):
    batches = list(tree_batches(sequences, max_tokens=max_tokens))
    assert [ids for batch in batches for ids in batch] == sequences
    for batch in batches:
        assert distinct_prefixes(batch) <= max_tokens or len(batch) == 1
    # none ends before it has to
    for batch, following in itertools.pairwise(batches):
        assert distinct_prefixes([*batch, following[0]]) > max_tokens


def texts(num=12, seed=0):
    """Return sequences with many common prefixes; some of them are equal."""
    rng = np.random.default_rng(seed)
    base = rng.integers(1, EOS, 12)
    found = []
    for _ in range(num):
        ids = base[: rng.integers(0, 13)].copy()
        ids[rng.random(len(ids)) < 0.15] = 3
        found.append(ids.tolist())
    return found


@pytest.mark.parametrize("case", SOME, ids=map(case_name, SOME))
def test_every_lm_equals_one_sequence_at_a_time(case):
    lm = make_generic(build(case))
    for max_tokens in (20, 4096):
        found = token_log_probs(lm, texts(), max_tokens=max_tokens)
        for ids, values in zip(texts(), found, strict=True):
            assert values.dtype == np.float64 and values.shape == (len(ids) + 1,)
            np.testing.assert_allclose(values, one_sequence(lm, ids, EOS), atol=1e-9, rtol=0)


@pytest.mark.parametrize("case", [c for c in SOME if len(c[2]) > 1], ids=case_name)
def test_draws_are_averaged_with_any_batches(case):
    lm = make_generic(build(case))
    draws = []
    for index in range(2):
        with lm.sampled(index):
            draws.append([np.exp(one_sequence(lm, ids, EOS)) for ids in texts()])
    expected = [np.log((a + b) / 2) for a, b in zip(*draws, strict=True)]
    for max_tokens in (20, 4096):
        found = token_log_probs(lm, texts(), num_samples=2, max_tokens=max_tokens)
        for values, wanted in zip(found, expected, strict=True):
            np.testing.assert_allclose(values, wanted, atol=1e-9, rtol=0)
    totals = score_hypotheses(lm, [texts()], num_samples=2)[0]
    assert totals == pytest.approx([values.sum() for values in expected], abs=1e-6)
    means = token_log_probs(lm, texts())
    assert max(np.abs(a - b).max() for a, b in zip(means, expected, strict=True)) > 1e-5


LMS = {
    "lstm": lambda: BayesLSTMLM(VOCAB, unit=16),
    "transformer": lambda: BayesTransformerLM(VOCAB, att_unit=16, head=4, unit=32, layer=2),
    "seq_rnn": lambda: SequentialRNNLM(VOCAB, unit=16, nlayers=2),
    "espnet transformer": lambda: TransformerLM(VOCAB, embed_unit=8, att_unit=16, head=4, unit=32),
}


@pytest.mark.parametrize("name", LMS)
@settings(max_examples=8)
@given(random=st.randoms(use_true_random=False), copies=st.integers(1, 3))
def test_order_and_copies_change_nothing_at_all(name, random, copies):
    torch.manual_seed(0)
    lm, sequences = LMS[name](), texts(10)
    before = {tuple(i): v for i, v in zip(sequences, token_log_probs(lm, sequences), strict=True)}
    sequences = sequences * copies
    random.shuffle(sequences)
    for ids, values in zip(sequences, token_log_probs(lm, sequences), strict=True):
        assert np.array_equal(values, before[tuple(ids)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("contexts, vocab", [(1, 3), (5, 9), (7, 8), (20, 31)])
def test_log_normalizers_equal_logsumexp(monkeypatch, contexts, vocab, dtype):
    monkeypatch.setitem(BLOCKS, "cpu", (3, 4))
    monkeypatch.setattr("espnet_bayeslm.scoring.log_probs.ROWS", 5)
    outputs, weight = torch.randn(contexts, 6, dtype=dtype), torch.randn(vocab, 6, dtype=dtype)
    bias = 50 * torch.randn(vocab, dtype=dtype)
    logits = torch.nn.functional.linear(outputs, weight, bias)
    exact = {"atol": 0.5 if dtype == torch.bfloat16 else 1e-5, "rtol": 0}
    wide = torch.promote_types(dtype, torch.float32)
    found = log_normalizers(outputs, weight, bias)
    assert found.dtype == wide
    torch.testing.assert_close(found, logits.to(wide).logsumexp(1), **exact)
    rows, tokens = torch.randint(contexts, (13,)), torch.randint(vocab, (13,))
    picked, _ = log_probs_of_outputs(outputs, rows, tokens, weight, bias, log_z=0.0)
    torch.testing.assert_close(picked, logits.to(wide)[rows, tokens], **exact)


def test_log_normalizers_with_packed_blocks():
    """More contexts and tokens than a block has, and weights large enough to be packed."""
    outputs, weight = torch.randn(700, 64), torch.randn(2500, 64) / 8
    bias = torch.randn(2500)
    expected = (outputs.double() @ weight.double().t() + bias).logsumexp(1)
    found = log_normalizers(outputs, weight, bias).double()
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
