"""Normalisation of text, and lists that remember their own words."""

import dataclasses
import math
import sys
import unicodedata

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from oracles.lattice_paths import all_paths, random_lattice

from espnet_bayeslm.evaluation.normalization import BEYOND_A_WORD, STEPS, Normalization
from espnet_bayeslm.nbest.formats import normalized
from espnet_bayeslm.nbest.lattice import normalized_lattice, restored_lattice
from espnet_bayeslm.nbest.types import Hypothesis, NBest
from espnet_bayeslm.utils.errors import InputError


def apply(steps, text):
    return " ".join(Normalization(steps).words(text.split()))


BY_HAND = """
lower           | Hello WORLD Ä              | hello world ä
punct           | well, I'm - "fine"... (yes) | well I'm fine yes
punct           | o'clock! a_b x-y 'tis      | o'clock a b x y tis
punct           | it’s ‘quoted’              | it's quoted
contractions    | I'm sure we'll see         | i am sure we will see
contractions    | they've won't can't cannot | they have will not can not can not
contractions    | John's dog he'd it's       | John's dog he'd it's
contractions    | WE’RE gonna, don't         | WE are going to, do not
numbers         | in 21 days the 3rd         | in twenty one days the third
numbers         | 1,234.5 | one thousand two hundred thirty four point five
numbers         | costs $5 or 7%             | costs five dollars or seven percent
punct           | हिन्दी, भाषा में!           | हिन्दी भाषा में
punct           | மொழி. ¿qué? «naïve» n\u0303a\u0301'o | மொழி qué naïve n\u0303a\u0301'o
punct           | می\u200cخواهم \u200d😀\u200d ന്\u200d. | می\u200cخواهم ന്\u200d
punct           | i love it \u2764\ufe0f \u2764\ufe0f\u200d\U0001f525 x | i love it x
punct           | \u0301a b                  | a b
punct           | hello \u0301 press 1\ufe0f\u20e3 now | hello press 1 now
nfc             | cafe\u0301                 | café
nfkc            | Ｆｕｌｌ１２ ﬁne ㎞ cafe\u0301 | Full12 fine km café
nfkc,lower      | ＦＵＬＬ ℡                  | full tel
lower           | İSTANBUL I\u0307Z i\u0307z IŞIK ışık | istanbul iz iz işik ışık
lower_tr        | İSTANBUL I\u0307Z i\u0307z IŞIK ışık KI\u0302R | istanbul iz iz ışık ışık kîr
lower           | STRAẞE Straße STRASSE ΟΔΟΣ ΣΑΣ Ǆ ǅ | straße straße strasse οδος σας ǆ ǆ
lower,punct     | Well, I DO.                | well i do
                | As It is.                  | As It is.
punct,numbers,lower,contractions | It's 5%, DON'T! | it's five percent do not
"""


@pytest.mark.parametrize("line", BY_HAND.strip("\n").splitlines())
def test_by_hand(line):
    steps, text, expected = (part.strip() for part in line.split("|"))
    # whatever the order in which they are named, signs are read before they are taken away
    assert apply(steps, text) == expected


# Letters that are words' own, and are written as others in capitals
OWN_LETTERS = set("ßıςև") | {"\u0345"} | set(map(chr, range(0x1C80, 0x1C89)))


def is_own(letter):
    """True for a letter whose capitals are those of other letters; iota stands below others."""
    return bool(OWN_LETTERS & set(unicodedata.normalize("NFD", letter)))


def test_letters_that_are_equal_up_to_case_become_equal():
    letters = [c for c in map(chr, range(sys.maxunicode + 1)) if c.isalpha()]
    letters = [c for c in letters if unicodedata.is_normalized("NFKC", c) and not is_own(c)]
    upper, lower, title = (
        Normalization("nfc,lower").words([f(letter) for letter in letters])
        for f in (str.upper, str.lower, str.title)
    )
    assert upper == lower == title and len(upper) > 100_000


@pytest.mark.parametrize("steps", ["lower", "lower_tr", "nfc", "nfkc"])
@pytest.mark.parametrize("form", ["NFC", "NFKC"])
def test_composed_text_stays_composed(steps, form):
    letters = " ".join(c for c in map(chr, range(sys.maxunicode + 1)) if c.isalpha())
    found = apply(steps, unicodedata.normalize(form, letters))
    assert unicodedata.is_normalized("NFC", found) and apply(steps, found) == found


@pytest.mark.parametrize("steps", [name for name in STEPS if name != "whisper"])
def test_twice_is_once(steps):
    text = "Well, I'm 21 — “fine”, don't $5.50 the 2nd it's 7% O'Neill re-do"
    once = apply(steps, text)
    assert apply(steps, once) == once


SIGNS = [
    "a",
    "I",
    "J",
    "Σ",
    "İ",
    "ß",
    "ﬁ",
    "½",
    "㎞",
    "％",
    "´",
    "\u00a0",
    "\u3000",
    "\u200c",
    "\u200d",
]
SIGNS += [
    "\u0301",
    "\u030c",
    "\u0307",
    "\u0323",
    "\ufe0f",
    "\u20e3",
    "❤",
    "1",
    "0",
    "5",
    "%",
    "$",
    "€",
]
SIGNS += [
    "'",
    "’",
    "n't",
    "'ll",
    "can",
    "won't",
    "let's",
    "gonna",
    ".",
    ",",
    "-",
    ":",
    "(",
    "<",
    "_",
]
WORDS = st.lists(st.lists(st.sampled_from(SIGNS), min_size=1, max_size=4).map("".join), max_size=5)


@settings(deadline=None, max_examples=300)
@given(WORDS, st.sets(st.sampled_from(sorted(STEPS.keys() - BEYOND_A_WORD)), min_size=1))
@example(["J\u030c", "e\u0301"], {"lower"})  # one word in NFC beside another that is not
def test_steps_that_read_no_more_than_a_word(words, steps):
    normalization = Normalization(",".join(steps))
    normalization.check_by_word("a search")
    words = " ".join(words).split()
    assert normalization.words(words) == normalization.each(words)


@pytest.mark.parametrize("text", ["$3 million", "5 % of", "3 €"])
def test_a_step_that_reads_the_words_around_a_word_is_refused_in_a_search(text):
    numbers = Normalization("lower,punct,numbers")
    assert numbers.words(text.split()) != numbers.each(text.split())
    with pytest.raises(InputError, match=r"numbers reads .* --normalize lower,punct; rescore"):
        numbers.check_by_word("a search")
    with pytest.raises(InputError, match="Leave it out; rescore"):
        Normalization("whisper").check_by_word("a search")


def test_whispers_own_where_it_is_installed():
    pytest.importorskip("whisper_normalizer", reason="pip install whisper-normalizer")
    assert apply("whisper", "Mr. Park's colour, won't!") == "mister park's color will not"


def test_lists_remember_their_own_words(caplog):
    caplog.set_level("INFO")
    lists = [
        NBest("u1", (Hypothesis(("Hi,", "you"), -1.0), Hypothesis(("...",), -2.0)), ("Hi",), "s"),
        NBest("u2", (Hypothesis(("a",), extra={"x": 1}),)),
    ]
    found = list(normalized(lists, Normalization("lower,punct")))
    assert [h.words for item in found for h in item.hypotheses] == [("hi", "you"), (), ("a",)]
    assert [item.source or item for item in found] == lists
    assert [item.source or item for item in normalized(lists, Normalization(""))] == lists
    assert lists[0].source is None  # of a list that nothing was done to no copy is made
    assert found[0].ref == ("hi",) and found[0].hypotheses[0].am_score == -1.0
    assert found[1].hypotheses[0].extra == {"x": 1}
    assert "--normalize lower,punct changes 2 of 3 hypotheses" in caplog.text
    (warning,) = (record for record in caplog.records if record.levelname == "WARNING")
    assert "leaves no word of 1 hypotheses, the first '...' of u1" in warning.getMessage()


SPELLINGS = ("X b.", "A b.", "a b", "a b!", "a b")
SHARES = (0.25, 0.17, 0.16, 0.15, 0.14)


def spelled(scores, **more):
    """Return a list of five hypotheses that are two texts in lower case without punctuation."""
    words = [tuple(text.split()) for text in SPELLINGS]
    hyps = tuple(Hypothesis(*pair, **more) for pair in zip(words, scores, strict=True))
    return NBest("u", hyps, ("a", "b"))


def test_one_text_has_the_sum_of_its_probabilities(caplog):
    caplog.set_level("INFO")
    own = spelled(np.log(SHARES).tolist())
    (found,) = normalized([own], Normalization("lower,punct"))
    assert found.source == own and len(found.hypotheses) == 5
    np.testing.assert_allclose(np.exp(found.scores("am_score")), [0.25, *[0.62] * 4])
    assert found.numbered().tolist() == [0, 1, 1, 1, 1]
    assert "3 of 5 repeat the text of another one: their probabilities are added up" in caplog.text


@pytest.mark.parametrize(
    "own",
    [
        # divided by the length: of one list alone nothing tells it
        [spelled([-0.2, -0.3, -0.31, -0.32, -0.33])],
        [spelled([-2.0] * 5), spelled([-0.2, -0.3, -0.31, -0.32, -0.33])],
        [spelled([-2.0, -2.1, -2.2, -2.3, -2.4], lm_score=-1.0)],
        [spelled([-2.0, -2.1, -2.2, -2.3, -2.4], graph_score=-1.0)],
        [dataclasses.replace(spelled([-2.0, -2.1, -2.2, -2.3, -2.4]), acoustic=True)],
        [spelled([None] * 5)],
    ],
)
def test_scores_that_are_no_probabilities_stay(own):
    for item, found in zip(own, normalized(own, Normalization("lower,punct")), strict=True):
        assert [h.am_score for h in found.hypotheses] == [h.am_score for h in item.hypotheses]


def test_an_unknown_step():
    with pytest.raises(InputError, match="lower, contractions, numbers, punct") as error:
        Normalization("lower,upper")
    assert "unknown step 'upper'" in str(error.value)


LABELS = ("a", "A,", "I'm", "b-c", "...", "21st")


@pytest.mark.parametrize("steps", ["", "lower,punct", "lower,contractions,numbers,punct"])
def test_lattices_have_normalised_words_and_are_restored(steps):
    """An arc may become none, one or several words; scores stay those of its path."""
    normalization = Normalization(steps)
    for seed in range(20):
        lattice = random_lattice(np.random.default_rng(seed), words=LABELS)
        lattice = dataclasses.replace(lattice, times=(None, *np.arange(lattice.num_nodes - 1.0)))
        found = normalized_lattice(lattice, normalization)
        assert all(arc.source < arc.target for arc in found.arcs)
        assert sorted(arc.source for arc in found.arcs) == [arc.source for arc in found.arcs]
        assert len(found.times) == found.num_nodes
        expected = {}
        for words, path in all_paths(lattice).items():
            key = normalization.each(words)
            expected[key] = max(expected.get(key, -math.inf), path.total)
        totals = {words: path.total for words, path in all_paths(found).items()}
        assert totals == pytest.approx(expected)
        restored = restored_lattice(found)
        assert all_paths(restored) == all_paths(lattice)
        assert [arc.details for arc in restored.arcs] == [()] * len(found.arcs)
