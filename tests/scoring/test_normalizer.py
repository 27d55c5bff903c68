"""Scores without the softmax, and the mean of ln Z that they take instead."""

import logging

import numpy as np
import pytest
import torch
from espnet2.lm.seq_rnn_lm import SequentialRNNLM
from test_neural import SENTENCES, make
from test_sequences import VOCAB, build, sentences

from espnet_bayeslm.scoring import NeuralScorer, score_hypotheses, token_log_probs
from espnet_bayeslm.scoring.neural import measure_normalizer
from espnet_bayeslm.scoring.sequences import Normalizer
from espnet_bayeslm.utils.errors import InputError


@pytest.fixture(params=["lstm", "bayes", "transformer"])
def lm(request):
    return build(request.param).double()


@torch.no_grad()
def log_z(lm, ids):
    """Return the logits' ln Z of each context of a sequence."""
    return lm.eval()(torch.tensor([[VOCAB - 1, *ids]]))[0][0].logsumexp(-1).numpy()


def test_mean_and_deviation_of_all_contexts(lm):
    sequences = sentences(40)
    values = {tuple(ids[:n]): value for ids in sequences for n, value in enumerate(log_z(lm, ids))}
    expected = np.array(list(values.values()))
    found = measure_normalizer(lm, sequences, num_contexts=10_000)
    # each tree of a batch has a root of its own; here it is one tree
    np.testing.assert_allclose(found, (expected.mean(), expected.std()), atol=1e-9)
    assert measure_normalizer(lm, sequences[::-1] * 2, num_contexts=10_000) == found


@pytest.mark.parametrize("num_contexts", [1, 20])
def test_a_sample_does_not_depend_on_the_order(lm, num_contexts):
    sequences = sentences(40)
    found = measure_normalizer(lm, sequences, num_contexts=num_contexts)
    assert found == measure_normalizer(lm, sequences[::-1], num_contexts=num_contexts)
    assert found != measure_normalizer(lm, sequences, num_contexts=10_000)


def test_scores_are_logits_minus_the_constant(lm):
    sequences = sentences(40)
    normalizer = measure_normalizer(lm, sequences)
    exact = token_log_probs(lm, sequences)
    found = token_log_probs(lm, sequences, normalizer=normalizer)
    for ids, a, b in zip(sequences, exact, found, strict=True):
        np.testing.assert_allclose(b, a + log_z(lm, ids) - normalizer.mean, atol=1e-9)
    total = score_hypotheses(lm, [sequences], normalizer=normalizer)[0]
    np.testing.assert_allclose(total, [values.sum() for values in found])


def test_draws_share_the_constant():
    lm = build("bayes").double()
    normalizer, parts = Normalizer(1.25, 0.1), []
    for index in range(3):
        with lm.sampled(index), torch.no_grad():
            logits = lm.eval()(torch.tensor([[VOCAB - 1, 1, 2]]))[0][0]
            parts.append(logits[range(3), [1, 2, VOCAB - 1]].numpy() - 1.25)
    (found,) = token_log_probs(lm, [[1, 2]], num_samples=3, normalizer=normalizer)
    np.testing.assert_allclose(found, np.log(np.mean(np.exp(parts), axis=0)), atol=1e-9)
    drawn = measure_normalizer(lm, sentences(40), num_samples=3)
    assert drawn != measure_normalizer(lm, sentences(40))


def test_a_wide_spread_is_a_warning(caplog):
    lm = build("lstm")
    with torch.no_grad():
        lm.encoder.weight.mul_(200)
        lm.rnn.weight_ih_l0.mul_(20)
    with caplog.at_level(logging.INFO):
        found = measure_normalizer(lm, sentences(40))
    assert found.std > 1
    assert "train the LM with self_normalization" in caplog.text and "ln Z is" in caplog.text


def test_the_scorer_measures_once_and_tells(tmp_path):
    trained = make("word", tmp_path)
    scorer = NeuralScorer(trained, self_normalized=True)
    assert scorer.normalizer is None
    scored = scorer.word_scores(SENTENCES)
    sequences = [trained.ids(words) for words in SENTENCES]
    assert scorer.normalizer == measure_normalizer(trained.lm, sequences)
    expected = token_log_probs(trained.lm, sequences, normalizer=scorer.normalizer)
    for a, b in zip(scored, expected, strict=True):
        np.testing.assert_allclose(a.log_probs, b)
    kept = scorer.normalizer
    (alone,) = scorer.word_scores([["mat"]])
    assert scorer.normalizer == kept
    np.testing.assert_allclose(alone.log_probs[0], scorer.word_scores([["mat", "a"]])[0][0][0])
    exact = NeuralScorer(trained)
    exact.word_scores(SENTENCES)
    assert exact.normalizer is None


def test_other_lms_are_refused():
    lm = SequentialRNNLM(VOCAB, unit=4)
    flat = Normalizer(0.0, 0.0)
    for score in (measure_normalizer, lambda *args: token_log_probs(*args, normalizer=flat)):
        with pytest.raises(InputError, match="self-normalised scoring needs an LM of espnet_bayes"):
            score(lm, [[1]])
    with pytest.raises(InputError, match="but the LM has 0 to"):
        measure_normalizer(build("lstm"), [[VOCAB]])
