"""Packed rows hold each token once, and a token sees its own sentence up to itself."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from espnet_bayeslm.lm import BayesTransformerLM
from espnet_bayeslm.lm.packing import Packing


@settings(deadline=None)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=40))
def test_rows_hold_each_token_once_with_its_own_sentence(lengths):
    packing = Packing(torch.tensor(lengths), max(lengths) + 2, torch.device("cpu"))
    tokens, slots, seen = packing.rows
    sentences = [k for k, n in enumerate(lengths) for _ in range(n)]
    positions = [t for n in lengths for t in range(n)]
    assert packing.positions.tolist() == positions
    width = max(lengths) + 2
    assert packing.places.tolist() == [
        k * width + t for k, t in zip(sentences, positions, strict=True)
    ]
    assert len(set(slots.tolist())) == len(slots) == sum(lengths)
    assert tokens.flatten()[slots].tolist() == list(range(sum(lengths)))
    mask = torch.block_diag(*seen[:, 0])[slots][:, slots] > 0
    before = torch.tensor(sentences)[:, None] == torch.tensor(sentences)
    before &= torch.tensor(positions)[:, None] >= torch.tensor(positions)
    assert torch.equal(mask, before)
    # a softmax over nothing would be no number
    assert seen.any(-1).all()


def test_rows_have_little_padding():
    lengths = torch.randint(1, 40, (200,), generator=torch.Generator().manual_seed(0))
    tokens, _, _ = Packing(lengths, 40, torch.device("cpu")).rows
    assert tokens.numel() < 1.05 * int(lengths.sum())


@settings(deadline=None)
@given(st.lists(st.integers(1, 300), min_size=1, max_size=40))
def test_rows_have_no_more_slots_than_a_padded_batch(lengths):
    tokens, _, _ = Packing(torch.tensor(lengths), max(lengths), torch.device("cpu")).rows
    assert tokens.numel() <= len(lengths) * max(lengths)


def test_wide_rows_take_the_rest_of_few_sentences():
    lengths = torch.tensor([30, 18, 17, 16, 16, 15, 14, 14, 12, 10])
    tokens, _, _ = Packing(lengths, 30, torch.device("cpu")).rows
    assert tokens.numel() < 1.05 * int(lengths.sum())


def test_sentences_that_are_alike_in_length_are_not_put_two_in_a_row():
    # as ESPnet's sampler sorts them: seven rows of two would be 7 x 54 slots
    lengths = torch.tensor([32, 31, 30, 29, 28, 28, 27, 26])
    tokens, _, _ = Packing(lengths, 32, torch.device("cpu")).rows
    assert tokens.shape == (8, 32)


def test_layers_of_a_transformer_compute_no_padding():
    lm = BayesTransformerLM(9, att_unit=8, head=2, unit=8, layer=1)
    lengths = torch.tensor([1, 20, 3])
    rows = []
    lm.blocks[0].norm2.register_forward_hook(lambda _, inputs, output: rows.append(output))
    lm.outputs(torch.ones(3, 20, dtype=torch.long), Packing(lengths, 20, torch.device("cpu")))
    assert [row.shape for row in rows] == [(24, 8)]
