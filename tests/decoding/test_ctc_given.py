"""Ln P of given texts by CTC, against all paths through the logits."""

import itertools

import numpy as np
import pytest

from espnet_bayeslm import build_ctcdecoder
from espnet_bayeslm.decoding.ctc_given import text_log_prob
from espnet_bayeslm.decoding.ctc_search import BeamOptions, CTCSearch
from espnet_bayeslm.decoding.ctc_tokens import CTCTokens
from espnet_bayeslm.decoding.ctc_words import CTCFusion

LETTERS = ["<blank>", "a", "b", "<space>"]
PIECES = ["▁a", "▁ab", "b", "a", "<blank>", "<unk>"]


def texts_of(log_probs, tokens, marks=()):
    """Return {words: ln P} of all paths; marks are left out of their texts."""
    found = {}
    for path in itertools.product(range(log_probs.shape[1]), repeat=len(log_probs)):
        said = [token for token, _ in itertools.groupby(path)]
        said = [token for token in said if token not in (tokens.blank, *marks)]
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


@pytest.mark.parametrize(
    "marks", [["<eng>", "<notimestamps>"], ["<nolang>", "<asr>"], ["<|en|>", "<|withitn|>"]]
)
def test_marks_within_a_text_are_as_blanks(marks):
    """As OWSM-CTC and SenseVoice write them."""
    labels = ["<blank>", "▁a", "<unk>", *marks, "b"]
    tokens, columns = CTCTokens(labels), [*map(labels.index, marks)]
    logits = np.random.default_rng(0).normal(scale=2, size=(5, len(labels)))
    log_probs = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
    expected, fitted = texts_of(log_probs, tokens, columns), tokens.fitted(log_probs)
    wide = BeamOptions(beam_size=10**6, beam_prune_logp=-np.inf, token_min_logp=-np.inf)
    found = {text.words: text.am_score for text in CTCSearch(tokens, CTCFusion(), wide)(fitted)}
    assert found == pytest.approx(expected) and len(found) > 50
    for words, total in expected.items():
        assert text_log_prob(fitted, words, tokens) == pytest.approx(total), words
    logits = np.full((7, len(labels)), -4.0)
    logits[range(7), [*columns, 1, columns[0], 5, 0, 1]] = 9.0
    assert build_ctcdecoder(labels).decode(logits) == "ab a"
