"""Ln P of given texts by CTC, against all paths through the logits."""

import itertools

import numpy as np
import pytest

from espnet_bayeslm.decoding.ctc_given import text_log_prob
from espnet_bayeslm.decoding.ctc_tokens import CTCTokens

LETTERS = ["<blank>", "a", "b", "<space>"]
PIECES = ["▁a", "▁ab", "b", "a", "<blank>", "<unk>"]


def texts_of(log_probs, tokens):
    """Return {words: ln P} of all paths."""
    found = {}
    for path in itertools.product(range(log_probs.shape[1]), repeat=len(log_probs)):
        said = [token for token, _ in itertools.groupby(path) if token != tokens.blank]
        if all(tokens.spoken[token] for token in said):
            words = tuple(tokens.words.words(said))
            total = log_probs[range(len(path)), path].sum()
            found[words] = np.logaddexp(found.get(words, -np.inf), total)
    return found


@pytest.mark.parametrize("labels", [LETTERS, PIECES])
@pytest.mark.parametrize("seed", range(3))
def test_the_sum_over_all_paths_that_write_a_text(labels, seed):
    tokens = CTCTokens(labels)
    logits = np.random.default_rng(seed).normal(scale=2, size=(5, len(labels)))
    log_probs = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
    expected = texts_of(log_probs, tokens)
    assert len(expected) > 50 and () in expected
    for words, total in expected.items():
        assert text_log_prob(log_probs, words, tokens) == pytest.approx(total), words
    assert text_log_prob(log_probs, ["aaa", "bbb"], tokens) == -np.inf
    assert text_log_prob(log_probs, ["c"], tokens) == -np.inf


def test_many_frames_do_not_underflow():
    tokens = CTCTokens(LETTERS)
    log_probs = np.full((3000, 4), np.log(1e-3))
    log_probs[:, 0] = np.log(1 - 3e-3)
    total = text_log_prob(log_probs, ["ab"], tokens)
    assert np.isfinite(total) and total < -5
