"""Alignments at sclite's costs, against kaldialign, and the choice between equal ones."""

import kaldialign
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from espnet_bayeslm.evaluation.wer import SUBSTITUTION, UNPAIRED, align

WORDS = st.lists(st.sampled_from(["a", "b", "c", "be"]), max_size=10)


def cost(pairs):
    return sum(UNPAIRED if None in pair else SUBSTITUTION * (pair[0] != pair[1]) for pair in pairs)


@settings(max_examples=100)
@given(ref=WORDS, hyp=WORDS)
def test_an_alignment_holds_both_texts_at_the_lowest_cost(ref, hyp):
    aligned = align(ref, hyp)
    assert [a for a, _ in aligned if a is not None] == ref
    assert [b for _, b in aligned if b is not None] == hyp
    assert (None, None) not in aligned
    reference = kaldialign.align(ref, hyp, "*", sclite_mode=True)
    assert cost(aligned) == cost([(None if a == "*" else a, None if b == "*" else b)
                                  for a, b in reference])  # fmt: skip


@pytest.mark.parametrize(
    "ref, hyp, letters",
    [
        ("", "", ""),
        ("a b", "", "DD"),
        ("", "a b", "II"),
        ("a b c", "a b c", "CCC"),
        ("a b c", "a x c", "CSC"),
        # what sclite makes of ties
        ("a b c d e", "a c b d e", "CDCICC"),
        ("a a a b a", "a a a a b", "CCCDCI"),
        ("v a b c z", "v x y a z", "CSSSC"),
        ("a b", "b", "DC"),
        ("a a", "a", "DC"),
        ("a", "a a", "IC"),
    ],
)
def test_alignments_by_hand(ref, hyp, letters):
    aligned = align(ref.split(), hyp.split())
    kinds = ["I" if a is None else "D" if b is None else "CS"[a != b] for a, b in aligned]
    assert "".join(kinds) == letters


def test_any_word_can_be_aligned():
    aligned = align(["", "-1", "<eps>"], ["", "*", "None", "<eps>"])
    assert aligned == [("", ""), (None, "*"), ("-1", "None"), ("<eps>", "<eps>")]
    assert align(("a",), ["a"]) == [("a", "a")]
