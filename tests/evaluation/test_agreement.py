"""Hypotheses and references that are written differently: the normalisation that is named."""

import itertools
import logging
import re

import numpy as np
import pytest

from espnet_bayeslm.evaluation import text_checks
from espnet_bayeslm.evaluation.normalization import STEPS, Normalization
from espnet_bayeslm.evaluation.text_checks import warn_of_spelling
from espnet_bayeslm.evaluation.wer import Counting, count_errors

WORDS = [
    *["the", "red", "boat", "sails", "far", "from", "home", "we", "saw", "lights", "at", "night"],
    "caf\u00e9",
]
SPELLINGS = {
    "lower": lambda words: [word.upper() for word in words],
    "punct": lambda words: [f"{word}," for word in words],
    "lower,punct": lambda words: [*(f"{word}," for word in words[:-1]), f"{words[-1].upper()}."],
    "numbers": lambda words: [*words, "21"],
    "nfkc": lambda words: [word.replace("e", "\uff45") for word in words],
    "lower_tr": lambda words: [*(w.replace("i", "\u0130").upper() for w in words), "ISI"],
    "contractions": lambda words: [*words, "don't"],
    "": list,
}
SAID = {"numbers": ["twenty", "one"], "contractions": ["do", "not"], "lower_tr": ["\u0131s\u0131"]}


def first_pass(spelling, num=300, *, seed=0, wrong=0.1):
    """Return references, and hypotheses of another spelling with wrong words."""
    rng = np.random.default_rng(seed)
    refs, hyps = {}, {}
    for n in range(num):
        words = [str(word) for word in rng.choice(WORDS, 6)]
        refs[f"u{n}"] = (*words, *SAID.get(spelling, ()))
        heard = [word if rng.random() > wrong else "x" for word in words]
        hyps[f"u{n}"] = tuple(SPELLINGS[spelling](heard))
    return refs, hyps


def named(caplog):
    """Return the steps and the rates of the one line that is said; None: none is."""
    if not caplog.messages:
        return None
    (line,) = caplog.messages
    found = re.match(r"--normalize (\S+): first pass (\S+) -> (\S+) %", line)
    return found[1], float(found[2]), float(found[3])


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_the_steps_that_lower_the_error_rate_are_named(spelling, caplog):
    """No fewer and no more, with the rates that the option leads to."""
    caplog.set_level(logging.WARNING)
    refs, hyps = first_pass(spelling)
    warn_of_spelling(refs, hyps, Counting())
    if not spelling:
        assert named(caplog) is None
        return
    steps, before, after = named(caplog)
    assert steps == spelling
    apply = Normalization(steps).text
    assert before == pytest.approx(100 * count_errors(refs, hyps).rate, abs=0.006)
    assert after == pytest.approx(100 * count_errors(apply(refs), apply(hyps)).rate, abs=0.006)


def test_given_steps_stay_and_ignored_words_are_left_alone(caplog):
    refs, hyps = first_pass("lower,punct")
    given = Normalization("punct")
    warn_of_spelling(given.text(refs), given.text(hyps), Counting(), given=given.steps)
    steps, *_ = named(caplog)
    assert steps == "lower,punct"
    caplog.clear()
    lower = Normalization(steps)
    warn_of_spelling(lower.text(refs), lower.text(hyps), Counting(), given=lower.steps)
    assert named(caplog) is None
    # the case of ignored words is no error
    refs = {utt: (*words, "[Noise]") for utt, words in refs.items()}
    shouted = {utt: tuple(word.lower() for word in words) for utt, words in refs.items()}
    warn_of_spelling(refs, shouted, Counting(ignored=frozenset(["[Noise]", "[noise]"])))
    assert named(caplog) is None


@pytest.mark.parametrize(
    "refs, hyps",
    [
        ({}, {}),
        ({"u": ()}, {"u": ("A",)}),
        ({"u": ("a",)}, {"v": ("A",)}),
        # what counts longer with the same errors is no better
        ({"u": ("in", "1984", "x")}, {"u": ("in", "1984", "y")}),
        ({"u": ("a",) * 2000}, {"u": ("A", *["a"] * 1999)}),
    ],
)
def test_nothing_is_said_where_nothing_is_gained(refs, hyps, caplog):
    warn_of_spelling(refs, hyps, Counting())
    assert named(caplog) is None


def test_numbers_without_a_name_do_not_hide_the_rest(caplog):
    refs, hyps = first_pass("lower")
    refs["u0"] = hyps["u0"] = ("9" * 400,)
    warn_of_spelling(refs, hyps, Counting())
    assert named(caplog)[0] == "lower"


@pytest.mark.parametrize("num", [1, 7, 8, 9, 100])
def test_a_subset_is_of_all_parts(num, monkeypatch):
    monkeypatch.setattr(text_checks, "MOST", 8)
    some = text_checks.Subset()
    for n in range(num):
        some.add(f"u{n}", (str(n),))
    places = [int(words[0]) for words in some.texts.values()]
    steps = {b - a for a, b in itertools.pairwise(places)}
    assert len(steps) <= 1 and len(places) <= 8 and places[0] == 0
    assert num - places[-1] <= max(steps, default=1) and 2 * len(places) >= min(num, 8)


def test_every_step_but_whispers_is_tried():
    """Whisper's normaliser leaves words out."""
    assert {*STEPS} - {*text_checks.ORDINARY_STEPS, *text_checks.TURKISH_STEPS} == {"whisper"}
