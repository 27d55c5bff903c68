"""Running text: each sentence is scored after those before it."""

import numpy as np
import pytest
import torch
from oracles.one_sequence import naive

from espnet_bayeslm.lm import BayesLSTMLM, BayesTransformerLM
from espnet_bayeslm.scoring.sequences import running_log_probs

VOCAB, END = 11, 10
TEXT = [[3, 4], [5], [], [6, 7, 8], [2, 2], [9, 3, 3, 4], [5, 5]]


def lms():
    torch.manual_seed(4)
    yield BayesLSTMLM(VOCAB, unit=8).double()
    yield BayesTransformerLM(VOCAB, att_unit=8, head=2, unit=16, layer=2).double()


@pytest.mark.parametrize("lm", list(lms()), ids=["lstm", "transformer"])
@pytest.mark.parametrize("context", [1, 2, 3, 10])
def test_each_sentence_sees_those_before_it(lm, context):
    found = running_log_probs(lm, TEXT, context=context)
    assert len(found) == len(TEXT)
    for index, (sentence, values) in enumerate(zip(TEXT, found, strict=True)):
        first = max(0, (index // context - 1) * context)
        assert index == 0 or index - first >= min(index, context)
        before = [token for ids in TEXT[first:index] for token in (END, *ids)]
        expected = naive(lm, sentence, END, before)
        np.testing.assert_allclose(values, expected, rtol=0, atol=1e-9)


def test_no_text():
    assert running_log_probs(next(lms()), [], context=3) == []
