"""How errors are counted: characters, words that do not count, marks of sentences."""

import logging

import pytest

from espnet_bayeslm.evaluation.counting import Counting, read_word_list, warn_without_blanks
from espnet_bayeslm.evaluation.markup import parse_markup
from espnet_bayeslm.evaluation.normalization import Normalization
from espnet_bayeslm.utils.errors import InputError

NOISE = ("[laugh]", "!SIL")


@pytest.mark.parametrize(
    "ref, hyp, counts",
    [
        ("我喜欢一本书", "我喜欢一本数", (1, 0, 0, 6)),
        ("我 喜欢 一本书", "我喜欢 一本书", (0, 0, 0, 6)),  # blanks are no characters
        ("re\u0301 a", "r\u00e9a", (0, 0, 0, 3)),  # NFC first
        ("कि", "क", (0, 1, 0, 2)),  # a vowel sign is a character
        ("", "ab", (0, 0, 2, 0)),
    ],
)
def test_characters(ref, hyp, counts):
    found = Counting("char").errors(ref.split(), hyp.split())
    assert (found.substitutions, found.deletions, found.insertions, found.words) == counts


def test_words_that_do_not_count():
    counting = Counting(ignored=frozenset(NOISE))
    assert counting.units(("[laugh]", "red", "!SIL", "kite")) == ("red", "kite")
    assert counting.errors(("!SIL",), ("[laugh]",)).words == 0
    marked = parse_markup("a { [laugh] / b !SIL } ([laugh]) c")
    assert counting.units(marked) == parse_markup("a { @ / b } c")
    assert Counting("char", counting.ignored).units(("ab", "!SIL")) == ("a", "b")


def test_normalisation_does_not_hide_words_that_do_not_count():
    counting = Counting(ignored=frozenset(NOISE))
    steps = Normalization("lower,punct", kept=counting.ignored)
    words = steps.words(("Well,", "[laugh]", "!SIL", "SIL!", "it's"))
    assert words == ("well", "[laugh]", "!SIL", "sil", "it's")
    assert counting.units(words) == ("well", "sil", "it's")


def test_facts_say_what_differs_and_bring_it_back():
    assert Counting().facts() == {}
    counting = Counting("char", frozenset(NOISE))
    facts = counting.facts()
    assert facts == {"unit": "char", "ignore_words": ["!SIL", "[laugh]"]}
    assert Counting.of(facts["unit"], facts["ignore_words"]) == counting


def test_word_lists(tmp_path):
    path = tmp_path / "noise"
    path.write_text("[laugh]\n\n<SPOKEN_NOISE>\r\n")
    assert read_word_list(path) == {"[laugh]", "<SPOKEN_NOISE>"}
    path.write_text("[laugh]\nuh huh\n")
    with pytest.raises(InputError, match="noise:2: 'uh huh' has 2 words, where one was expected"):
        Counting.of("word", path)
    path.write_text("\n")
    with pytest.raises(InputError, match="noise: no words"):
        read_word_list(path)
    with pytest.raises(InputError, match="--unit byte: no such unit"):
        Counting("byte")


@pytest.mark.parametrize(
    "texts, warned",
    [
        (["我喜欢一本书", "他听说新的房子"], True),
        (["これはペンです", "", "はい そうです"], False),
        (["これはペンです", "", "テスト"], True),
        (["forward", "left", "right"], False),
        (["我 喜欢 一本 书"], False),
        (["a" * 50], True),
        ([], False),
    ],
)
def test_lines_without_blanks(caplog, texts, warned):
    caplog.set_level(logging.WARNING)
    lines = {str(n): tuple(text.split()) for n, text in enumerate(texts)}
    warn_without_blanks(lines, Counting("char"))
    assert not caplog.messages
    warn_without_blanks(lines, Counting())
    assert any("--unit char" in message for message in caplog.messages) == warned
