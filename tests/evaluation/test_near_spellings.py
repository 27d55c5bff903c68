"""Near spellings: the index finds what a look at every phrase finds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from espnet_bayeslm.evaluation.near_spellings import FARTHEST, SpellingIndex

LETTERS = st.text("abcé", min_size=1, max_size=7)


def edit_distance(a, b):
    """Levenshtein's distance, row by row."""
    row = list(range(len(b) + 1))
    for n, letter in enumerate(a):
        new = [n + 1]
        for k, other in enumerate(b):
            new.append(min(row[k] + (letter != other), row[k + 1] + 1, new[k] + 1))
        row = new
    return row[-1]


def pairs(text):
    framed = f" {text} "
    return {framed[n : n + 2] for n in range(len(framed) - 1)}


@given(st.lists(LETTERS, max_size=12, unique=True), LETTERS, st.integers(0, 4))
def test_the_index_finds_all_that_are_near(phrases, letters, most):
    found = {near.phrase: near.edits for near in SpellingIndex(phrases).near(letters, most)}
    expected = {}
    for phrase in phrases:
        edits = edit_distance(letters, phrase)
        longer = max(len(letters), len(phrase))
        if edits <= min(most, FARTHEST * longer) and pairs(letters) & pairs(phrase):
            expected[phrase] = edits
    assert found == expected


@pytest.mark.parametrize("written", ["ohreilly", "oreily", "o'reilly"])
def test_phrases_are_compared_without_blanks(written):
    index = SpellingIndex(["o' reilly", "new york"])
    [near] = index.near(written, 4)
    assert (near.phrase, near.size) == ("o' reilly", 8)


def test_no_phrase_is_near_where_there_is_none():
    assert SpellingIndex([]).near("anna", 4) == []
    assert len(SpellingIndex(["anna", "bert"])) == 2
