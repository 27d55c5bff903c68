"""Running text: each sentence is scored after those before it."""

import numpy as np
import pytest
import torch

from espnet_bayeslm.lm import BayesLSTMLM, BayesTransformerLM
from espnet_bayeslm.scoring.running_text import running_log_probs
from espnet_bayeslm.scoring.sequences import token_log_probs

VOCAB, END = 11, 10
TEXT = [[3, 4], [5], [], [6, 7, 8], [2, 2], [9, 3, 3, 4], [5, 5]]


def lms():
    torch.manual_seed(4)
    yield BayesLSTMLM(VOCAB, unit=8).double()
    yield BayesTransformerLM(VOCAB, att_unit=8, head=2, unit=16, layer=2).double()


def oracle(lm, before, sentence):
    """Score the sentence token by token after the sentences before it."""
    prefix = [END]
    for ids in before:
        prefix += [*ids, END]
    with torch.no_grad():
        logits, _ = lm.eval()(torch.tensor([prefix + sentence]), None)
    log_probs = logits[0, len(prefix) - 1 :].log_softmax(-1)
    return log_probs.gather(1, torch.tensor([*sentence, END])[:, None])[:, 0].numpy()


@pytest.mark.parametrize("lm", list(lms()), ids=["lstm", "transformer"])
@pytest.mark.parametrize("context", [1, 2, 3, 10])
def test_each_sentence_sees_those_before_it(lm, context):
    found = running_log_probs(lm, TEXT, context=context)
    assert len(found) == len(TEXT)
    for index, (sentence, values) in enumerate(zip(TEXT, found, strict=True)):
        first = max(0, (index // context - 1) * context)
        assert index == 0 or index - first >= min(index, context)
        expected = oracle(lm, TEXT[first:index], sentence)
        np.testing.assert_allclose(values, expected, rtol=0, atol=1e-9)


def test_the_first_sentence_is_as_by_itself():
    lm = next(lms())
    found = running_log_probs(lm, TEXT, context=2)
    alone = token_log_probs(lm, TEXT)
    np.testing.assert_allclose(found[0], alone[0], atol=1e-12)
    assert any(np.abs(a - b).max() > 1e-3 for a, b in zip(found, alone, strict=True))


def test_no_text():
    assert running_log_probs(next(lms()), [], context=3) == []
