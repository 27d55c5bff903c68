"""Test sentences in the training text are found; what everybody says is none."""

import logging
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from espnet_bayeslm.evaluation.leakage import RUN, SHORTEST, find_leakage, warn_leakage

SENTENCE = st.lists(st.sampled_from("abc"), max_size=14)
TEXT = st.lists(SENTENCE, max_size=6)


def brute_force(train, test):
    """Return the long test sentences that stand in the training text, by comparing all runs."""

    def runs(words):
        return [words[n : n + RUN] for n in range(len(words) - RUN + 1)]

    found = []
    for words in test:
        whole = len(words) < RUN and words in train
        part = any(run in runs(other) for run in runs(words) for other in train)
        if len(words) >= SHORTEST and (whole or part):
            found.append(tuple(words))
    return found


@given(train=TEXT, test=TEXT)
def test_sentences_are_those_of_brute_force(train, test):
    leakage = find_leakage(iter(train), test)
    assert leakage.found == brute_force(train, test)
    assert leakage.long == sum(len(words) >= SHORTEST for words in test)
    assert find_leakage(train, [[w.upper() for w in words] for words in test]).found == (
        leakage.found
    )


def test_a_whole_text_is_a_hundred_percent():
    text = [["a"] * SHORTEST] * 3
    assert str(find_leakage(text, text)).endswith("(100 %)")


def random_text(num_lines, *, seed):
    rng = random.Random(seed)
    vocabulary = [f"w{n}" for n in range(50)]
    return [" ".join(rng.choices(vocabulary, k=rng.randint(1, 20))) for _ in range(num_lines)]


@pytest.mark.parametrize("leaked", [0, 20])
def test_a_warning_says_how_many_and_which(tmp_path, caplog, leaked):
    train, test = random_text(400, seed=0), ["yeah"] * 300 + random_text(200, seed=1)
    mine = [line for line in test if len(line.split()) >= 12][:leaked]
    path = tmp_path / "train.txt"
    path.write_text("\n".join([*train, *["yeah", "okay"] * 50, *mine]) + "\n")
    with caplog.at_level(logging.INFO):
        warn_leakage([line.split() for line in test], path, what="eval.txt")
    (record,) = caplog.records
    assert f"{leaked} of" in record.getMessage() and str(path) in record.getMessage()
    if leaked:
        assert record.levelname == "WARNING" and repr(mine[0][:80]) in record.getMessage()
    else:
        assert record.levelname == "INFO"
