"""Unknown words by how they differ from known ones, with the option that mends each."""

import logging
from collections import Counter

import numpy as np
import pytest

from espnet_bayeslm.evaluation.counting import (
    MENDING_STEPS,
    UnknownWords,
    differences,
    mending_lines,
)
from espnet_bayeslm.evaluation.normalization import Normalization
from espnet_bayeslm.evaluation.word_scores import WordScores
from espnet_bayeslm.utils.errors import InputError

LOWER = "the hello well known do not can i am twenty one café nineteen ninety"
KNOWN = {*LOWER.split(), "Boston", "NATO", "it's"}
CASES = {
    "The": "case",
    "hello,": "punctuation",
    "well-known": "punctuation",
    "--": "punctuation",
    "it\u2019s": "punctuation",
    "cafe\u0301": "accents",
    "don't": "contractions",
    "21": "numbers",
    "Hello.": "case and punctuation",
    "DON'T": "case and contractions",
    "I'm": "contractions",
    "don't,": "contractions and punctuation",
    "21,": "numbers and punctuation",
    "[laugh]": "fillers and noises",
    "Uh": "fillers and noises",
    "boston": "capitals in the LM's text",
    "nato": "capitals in the LM's text",
    "zebra": "other words",
}


class Scorer:
    """An LM that knows some words."""

    def unknown(self, words):
        return [word not in KNOWN for word in words]


@pytest.mark.parametrize("word", CASES)
def test_each_word_differs_in_one_way(word):
    assert list(differences(Counter({word: 3}), Scorer().unknown)) == [CASES[word]]


def test_the_steps_that_are_told_make_the_words_known():
    found = differences(Counter(dict.fromkeys(CASES, 1)), Scorer().unknown)
    assert sum(count for rows in found.values() for _, count, _ in rows) == len(CASES)
    for name in found.keys() & MENDING_STEPS.keys():
        mended = Normalization(MENDING_STEPS[name]).words([word for word, _, _ in found[name]])
        assert set(mended) <= KNOWN


def test_lines_name_the_option():
    words = Counter({"The": 5, "[laugh]": 3, "boston": 2, "zebra": 1})
    assert mending_lines(words, Scorer().unknown) == [
        "5 of them: case ('The' for 'the'): --normalize lower",
        "3 of them: fillers and noises ('[laugh]'): --ignore_words FILE leaves them out of the"
        " counts",
        "2 of them: capitals in the LM's text ('boston' for 'Boston'): write the LM's training"
        " text in lower case",
        "1 of them: other words ('zebra')",
    ]
    assert mending_lines(Counter(["zebra", "yak"]), Scorer().unknown) == []


def count(words, *, max_oov_rate):
    found = UnknownWords("3gram", max_oov_rate=max_oov_rate, scorer=Scorer())
    oov = np.array([*Scorer().unknown(words), False])
    found.add([words], [WordScores(np.zeros(len(oov)), oov)])
    found.check(report=True)


def test_they_are_told_where_many_words_are_unknown(caplog):
    caplog.set_level(logging.INFO)
    count(["the"] * 99 + ["The"], max_oov_rate=0.2)  # one in a hundred
    assert [r.levelname for r in caplog.records] == ["INFO"]
    count(["the"] * 90 + ["The"] * 10, max_oov_rate=0.2)
    assert "\n  10 of them: case ('The' for 'the'): --normalize lower" in caplog.text
    with pytest.raises(InputError, match=r"does not know 30 of 100 .*30 of them: case"):
        count(["the"] * 70 + ["The"] * 30, max_oov_rate=0.2)
