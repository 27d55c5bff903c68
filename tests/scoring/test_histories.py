"""Context across utterances against the recording as one text."""

import numpy as np
import pytest
import torch
from espnet2.lm.seq_rnn_lm import SequentialRNNLM
from lm_cases import LSTM, SOME, TRANSFORMER, VOCAB, build, make_generic
from lm_cases import name as case_name
from oracles.one_sequence import naive

from espnet_bayeslm.lm import BayesLSTMLM, BayesTransformerLM
from espnet_bayeslm.scoring.sequences import History, extend, score_in_context
from espnet_bayeslm.utils.errors import InputError

EOS = VOCAB - 1
SIMPLE = {"lstm": (BayesLSTMLM, LSTM, {}), "transformer": (BayesTransformerLM, TRANSFORMER, {})}
# what was said in three recordings, and the hypotheses of the next utterance of each
SAID = [[[1, 2, 3], [], [4, 4]], [[5]], []]
HYPOTHESES = [[[7, 8], [7], [], [7, 8, 9], [7, 8]], [[1, 2], [3]], [[6, 7, 8, 9, 1]]]


def all_naive(lm, max_context=10_000):
    """Return ln p of all hypotheses, each after its recording, from the logits of whole texts."""
    texts = [[token for ids in said for token in (EOS, *ids)] for said in SAID]
    return [
        [naive(lm, ids, EOS, text[max(0, len(text) - max_context) :]) for ids in hyps]
        for text, hyps in zip(texts, HYPOTHESES, strict=True)
    ]


def histories_of(lm, recordings, **options):
    """Return the histories after all that was said, one utterance after the other."""
    histories = [None] * len(recordings)
    for n, said in enumerate(recordings):
        for ids in said:
            histories[n : n + 1] = extend(lm, histories[n : n + 1], [ids], **options)
    return histories


def assert_same(found, expected, **tolerance):
    for values, wanted in zip(found, expected, strict=True):
        for a, b in zip(values, wanted, strict=True):
            np.testing.assert_allclose(a, b, rtol=0, **tolerance)


@pytest.mark.parametrize("case", SOME, ids=map(case_name, SOME))
def test_equals_the_whole_text(case):
    lm = make_generic(build(case))
    expected = all_naive(lm)
    histories = histories_of(lm, SAID)
    for max_tokens in (1, 7, 4096):
        found = score_in_context(lm, HYPOTHESES, histories, max_tokens=max_tokens)
        assert_same(found, expected, atol=1e-9)


@pytest.mark.parametrize("case", [c for c in SOME if len(c[2]) > 1], ids=case_name)
def test_each_draw_has_a_history_of_its_own(case):
    lm, expected = make_generic(build(case)), []
    for index in range(3):
        with lm.sampled(index):
            expected.append(all_naive(lm))
    expected = [
        [np.log(np.mean(np.exp(values), axis=0)) for values in zip(*hyps, strict=True)]
        for hyps in zip(*expected, strict=True)
    ]
    histories = histories_of(lm, SAID, num_samples=3)
    found = score_in_context(lm, HYPOTHESES, histories, num_samples=3)
    assert_same(found, expected, atol=1e-9)


@pytest.mark.parametrize("max_context", [0, 1, 3, 5, 100])
def test_a_transformer_reads_the_last_tokens_again(max_context):
    lm = make_generic(build(SIMPLE["transformer"]))
    histories = histories_of(lm, SAID, max_context=max_context)
    assert all(h is None or len(h.tokens) <= max_context for h in histories)
    expected = all_naive(lm, max_context=max_context)
    assert_same(score_in_context(lm, HYPOTHESES, histories), expected, atol=1e-9)


@pytest.mark.parametrize("family", SIMPLE)
def test_several_recordings_are_extended_at_once(family):
    lm = make_generic(build(SIMPLE[family]))
    both = extend(lm, extend(lm, [None, None], [[1, 2, 3], [5]]), [[], [9, 9]])
    one, other = (histories_of(lm, [said])[0] for said in ([[1, 2, 3], []], [[5], [9, 9]]))
    for a, b in zip(both, (one, other), strict=True):
        assert a.tokens == b.tokens
        for (h, c), (g, d) in zip(a.states, b.states, strict=True):
            torch.testing.assert_close((h, c), (g, d), rtol=0, atol=1e-12)


def test_empty_input_and_errors():
    lm = build(SIMPLE["lstm"])
    assert score_in_context(lm, [], []) == [] and extend(lm, [], []) == []
    assert score_in_context(lm, [[], [[1]]], [None, None])[0] == []
    with pytest.raises(InputError, match="but the LM has 0 to"):
        score_in_context(lm, [[[VOCAB]]], [None])
    with pytest.raises(InputError, match="but the LM has 0 to"):
        extend(lm, [None], [[-1]])
    with pytest.raises(InputError, match="context needs an LM of espnet_bayeslm"):
        extend(SequentialRNNLM(VOCAB, unit=4), [None], [[1]])
    with pytest.raises(ValueError):
        score_in_context(lm, [[[1]]], [None, History()])
