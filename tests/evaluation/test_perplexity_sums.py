"""Perplexity by hand, and sums that add."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from espnet_bayeslm.evaluation.perplexity import (
    Perplexity,
    Tally,
    perplexity_text,
    sentence_perplexity,
    token_counts,
)
from espnet_bayeslm.evaluation.transcripts import read_sentences
from espnet_bayeslm.evaluation.word_scores import WordScores
from espnet_bayeslm.utils.errors import InputError

# multiples of 1/8 add without rounding
TALLIES = st.builds(
    Tally, st.integers(-800, 0).map(lambda n: n / 8), *[st.integers(0, 50).map(int)] * 3
)
PERPLEXITIES = st.builds(Perplexity, TALLIES, TALLIES, st.integers(0, 9))


def scores(*log_probs, oov=()):
    return WordScores(np.array(log_probs), np.isin(np.arange(len(log_probs)), oov))


def test_a_sentence_by_hand():
    """`the cat` with probabilities 1/2, 1/8 and 1/4 of </s>."""
    found = scores(*np.log([1 / 2, 1 / 8, 1 / 4]))
    value = sentence_perplexity(["the", "cat"], found)
    assert value.all.log_prob == pytest.approx(math.log(1 / 64))
    assert value.all.perplexity("words") == pytest.approx(4)  # the, cat, </s>
    assert value.all.perplexity("characters") == pytest.approx(64 ** (1 / 8))  # the_cat, </s>
    assert (value.all.words, value.all.tokens, value.all.characters) == (3, 3, 8)
    assert (value.oov, value.sentences) == (Tally(), 1)
    in_pieces = sentence_perplexity(["the", "cat"], found, tokens=np.array([1, 4, 1]))
    assert in_pieces.all.tokens == 6 and in_pieces.all.perplexity("tokens") == pytest.approx(2)


def test_unknown_words_are_left_out_of_one_figure_only():
    value = sentence_perplexity(["a", "zz"], scores(*np.log([1 / 4, 1 / 64, 1 / 4]), oov=[1]))
    assert value.known.perplexity() == pytest.approx(4)
    assert value.all.perplexity() == pytest.approx((4 * 64 * 4) ** (1 / 3))
    assert value.oov.words == 1


@given(a=PERPLEXITIES, b=PERPLEXITIES, c=PERPLEXITIES)
def test_perplexities_add(a, b, c):
    assert a + b == b + a and (a + b) + c == a + (b + c) and a + Perplexity() == a
    assert (a + b).all == a.all + b.all


def test_nothing_and_too_much():
    assert math.isnan(Tally().perplexity())
    assert math.isfinite(Tally(-1e6, 1, 1, 1).perplexity())
    assert math.isfinite(Tally(-math.inf, 1, 1, 1).perplexity())
    with pytest.raises(TypeError):
        Tally() + 1
    with pytest.raises(TypeError):
        Perplexity() + Tally()


class Counting:
    name = "counting"

    def token_counts(self, words):
        return np.array([*map(len, words), 1])


def test_token_counts_are_one_each_or_what_the_scorer_says():
    assert token_counts(object(), ["ab", "c"]).tolist() == [1, 1, 1]
    assert token_counts(Counting(), ["ab", "c"]).tolist() == [2, 1, 1]


def test_plain_and_keyed_sentences(tmp_path):
    path = tmp_path / "text"
    path.write_text("u1 a b\n\nu3\n")
    assert read_sentences(path, keyed=False) == {"1": ("u1", "a", "b"), "2": (), "3": ("u3",)}
    with pytest.raises(InputError, match="text:2: an empty line"):
        read_sentences(path, keyed=True)
    path.write_text("u1 a b\nu3\n")
    assert read_sentences(path, keyed=True) == {"u1": ("a", "b"), "u3": ()}
    path.write_text("")
    with pytest.raises(InputError, match="text: no sentences"):
        read_sentences(path, keyed=False)
    with pytest.raises(InputError, match="nosuch: cannot be read"):
        read_sentences(tmp_path / "nosuch", keyed=False)


@pytest.mark.parametrize(
    "value, digits, text",
    [
        (1.5849, 2, "1.58"),
        (123.44, 1, "123.4"),
        (1e6, 2, "1000000.00"),
        (2_000_000.0, 1, "2.0e+06"),
        (1.34e70, 2, "1.3e+70"),
        (math.inf, 2, "∞"),
        (math.nan, 2, "nan"),
        (None, 2, "–"),
    ],
)
def test_perplexities_in_tables(value, digits, text):
    assert perplexity_text(value, digits) == text
