"""The probability of `<unk>` is shared among the words that it stands for."""

import math
from collections import Counter

import numpy as np
import pytest
from test_neural import make

from espnet_bayeslm.ngram.estimation import build_ngram
from espnet_bayeslm.ngram.query import NgramScorer
from espnet_bayeslm.scoring import NeuralScorer
from espnet_bayeslm.scoring.unknown_words import (
    ZIPF_SHARE,
    unknown_words,
    usual_unk_size,
)
from espnet_bayeslm.utils.errors import InputError

SENTENCES = [["the", "zebra", "sat"], ["the", "cat"], [], ["zebra", "gnu"]]


def test_by_hand():
    counts = Counter(["a", "a", "a", "b", "b", "c", "d", "e"])
    found = unknown_words(counts, {"a", "b", "<unk>"})
    assert found == {"unk_size": 3 + 3**2 / 2, "left_out": 3, "seen_once": 3, "seen_twice": 1}
    # none twice: the bias-corrected form
    assert unknown_words(Counter("abc"), set("abc"))["unk_size"] == 3 * 2 / 2
    assert unknown_words(Counter({"a": 9}), {"a"})["unk_size"] == 1.0
    # where nothing was counted
    assert usual_unk_size(500) == ZIPF_SHARE * 500


def test_each_unknown_word_has_its_share_and_known_ones_all_of_theirs(tmp_path):
    trained = make("word", tmp_path)
    whole = NeuralScorer(trained).word_scores(SENTENCES)
    shared = NeuralScorer(trained, unk_size=50).word_scores(SENTENCES)
    for a, b in zip(whole, shared, strict=True):
        np.testing.assert_array_equal(a.oov, b.oov)
        np.testing.assert_allclose(a.log_probs - b.log_probs, math.log(50) * a.oov, atol=1e-12)
    # the probabilities of the known words, of 50 unknown ones and of </s> after "the" sum to 1
    words = [w for w in trained.token_list if w not in ("<blank>", "<unk>", "<sos/eos>")]
    scorer = NeuralScorer(trained, unk_size=50)
    first = scorer.word_scores([["the", w] for w in (*words, "zebra")])
    total = sum(math.exp(s.log_probs[1]) * (50 if s.oov[1] else 1) for s in first)
    total += math.exp(scorer.word_scores([["the"]])[0].log_probs[1])
    blank = NeuralScorer(trained).word_scores([["the", "<blank>"]])[0].log_probs[1]
    assert total + math.exp(blank) == pytest.approx(1.0, abs=1e-6)


def test_the_same_rule_for_ngrams(tmp_path):
    (tmp_path / "text").write_text("the cat sat\nthe dog sat\n")
    build_ngram(
        tmp_path / "text", tmp_path / "a.arpa", order=2, lmplz="none", discount_fallback=True
    )
    whole = NgramScorer(tmp_path / "a.arpa").word_scores(SENTENCES)
    shared = NgramScorer(tmp_path / "a.arpa", unk_size=7).word_scores(SENTENCES)
    for a, b in zip(whole, shared, strict=True):
        np.testing.assert_allclose(a.log_probs - b.log_probs, math.log(7) * a.oov, atol=1e-12)


@pytest.mark.parametrize("token_type", ["bpe", "char"])
def test_lms_of_pieces_need_none(token_type, tmp_path):
    trained = make(token_type, tmp_path)
    (a,), (b,) = (NeuralScorer(trained, unk_size=n).word_scores([["qqq"]]) for n in (1, 9))
    np.testing.assert_array_equal(a.log_probs, b.log_probs)


@pytest.mark.parametrize("size", [0, 0.5, -3, math.inf, math.nan])
def test_a_size_that_is_none(size, tmp_path):
    with pytest.raises(InputError, match=r"--unk_size .*: expected the number of words"):
        NeuralScorer(make("word", tmp_path), unk_size=size)
    with pytest.raises(InputError, match="--unk_size"):
        NgramScorer(tmp_path / "any.arpa", unk_size=size)
