"""Texts: numbers in words, marks of sentences, unknown words, leaked test sentences."""

import logging
import random
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mixtures import mixture_of

from espnet_bayeslm.evaluation import normalization
from espnet_bayeslm.evaluation.normalization import Normalization, spoken_numbers
from espnet_bayeslm.evaluation.text_checks import RUN, SHORTEST, find_leakage, warn_leakage
from espnet_bayeslm.evaluation.transcripts import read_transcripts
from espnet_bayeslm.nbest.formats import CheckedLists, read_nbest
from espnet_bayeslm.ngram.estimation import read_corpus
from espnet_bayeslm.scoring.perplexity import UnknownWords, read_sentences
from espnet_bayeslm.scoring.unknown_words import (
    MENDING_STEPS,
    differences,
    mending_lines,
)
from espnet_bayeslm.scoring.word_scores import WordScorer, WordScores
from espnet_bayeslm.training.text import write_keyed_text
from espnet_bayeslm.utils.errors import InputError

SPOKEN = (Path(__file__).parent / "data" / "spoken_numbers.txt").read_text(encoding="utf-8")

UNTOUCHED = """
mp3 b2b x2 h2o 3d 5k 10km 1,234km 3.5km v1.2 747s 5s B-52s
ordinary words, stay. as they are
\u0661\u0662 \u0967\u0968 \uff11\uff10 a\u0661 \u00bd x\u00b2
XIV iv MMXX
"""


@pytest.mark.parametrize("line", SPOKEN.splitlines())
def test_each_rule(line):
    text, expected = (part.strip() for part in line.split(" | "))
    assert spoken_numbers(text) == expected
    assert spoken_numbers(f"so {text} ok") == f"so {expected} ok"


@pytest.mark.parametrize("text", UNTOUCHED.strip().splitlines())
def test_what_stays(text):
    assert spoken_numbers(text) == text


def test_a_number_without_a_name():
    with pytest.raises(InputError, match="cannot be written in words"):
        spoken_numbers("9" * 400)


def test_either_package_of_whispers_normaliser_or_neither(monkeypatch):
    names = ("whisper.normalizers", "whisper_normalizer.english")
    for name in (None, *names):
        for other in names:
            stand_in = SimpleNamespace(EnglishTextNormalizer=lambda: str.swapcase)
            monkeypatch.setitem(sys.modules, other, stand_in if other == name else None)
        find = normalization._whisper_normalizer.__wrapped__
        if name:
            assert find()("It's") == "iT'S"
        else:
            with pytest.raises(InputError, match="pip install whisper-normalizer"):
                find()


def first_words(lists):
    return next(iter(lists)).hypotheses[0].words


def words_of_training(path):
    write_keyed_text(path, path.with_name("train.txt"))
    return tuple(path.with_name("train.txt").read_text().split()[1:])


def words_of_corpus(path):
    corpus = read_corpus(path)
    return tuple(corpus.words[number] for number in corpus.ids[1:-1])


# file -> what it holds of a text, and a reader of the folder
READERS = {
    "words_text": ("u1-1 {}", lambda path: first_words(read_nbest(path.parent, "kaldi"))),
    "acwt": ("u1-1 -1", lambda path: first_words(CheckedLists(path.parent, "kaldi"))),
    "x.jsonl": (
        '{{"utt": "u1", "hypotheses": [{{"text": "x"}}], "ref": "{}"}}',
        lambda path: next(iter(read_nbest(path, "jsonl"))).ref,
    ),
    "u1.score": ("-1 -2 {n} {}", lambda path: first_words(read_nbest(path, "srilm"))),
    "plain": ("{}", lambda path: read_sentences(path, keyed=False)["1"]),
    "text": ("u1 {}", lambda path: read_transcripts(path)["u1"]),
    "trn": ("{} (u-1)", lambda path: read_transcripts(path)["u-1"]),
    "ngram": ("{}", words_of_corpus),
    "training": ("{}", words_of_training),
}


@pytest.fixture(params=READERS)
def read(request, tmp_path):
    """Return a function: a text in a file of each kind -> its words as they are read."""

    def run(text):
        (tmp_path / "lmwt.nolm").write_text("u1-1 2\n")
        for name, (line, _) in READERS.items():
            (tmp_path / name).write_text(line.format(text, n=len(text.split())) + "\n")
        return READERS[request.param][1](tmp_path / request.param)

    return run


def test_marks_around_a_sentence_are_no_words(read):
    assert read("<s> red kite </s>") == ("red", "kite")


@pytest.mark.parametrize("text", ["a <s> b", "<s> a </s> <s> b </s>"])
def test_marks_within_a_sentence_are_refused(read, text):
    with pytest.raises(InputError, match=r"<?/?s> stands in the text, where only ordinary words"):
        read(text)


LOWER = "the hello well known do not can i am twenty one café nineteen ninety altı"
KNOWN = {*LOWER.split(), "Boston", "NATO", "it's"}
CASES = {
    "The": "case",
    "hello,": "punctuation",
    "well-known": "punctuation",
    "--": "punctuation",
    "it\u2019s": "punctuation",
    "cafe\u0301": "accents",
    "ｈｅｌｌｏ": "full-width letters and ligatures",
    "ALTI": "case of Turkish",
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


def unknown(words):
    """Return which words an LM does not know."""
    return [word not in KNOWN for word in words]


@pytest.mark.parametrize("word", CASES)
def test_each_word_differs_in_one_way(word):
    assert list(differences(Counter({word: 3}), unknown)) == [CASES[word]]


def test_lines_name_the_option_that_makes_words_known(caplog):
    found = differences(Counter(dict.fromkeys(CASES, 1)), unknown)
    assert sum(count for rows in found.values() for _, count, _ in rows) == len(CASES)
    for name in found.keys() & MENDING_STEPS.keys():
        mended = Normalization(MENDING_STEPS[name]).words([word for word, _, _ in found[name]])
        assert set(mended) <= KNOWN
    words = Counter({"The": 5, "[laugh]": 3, "boston": 2, "zebra": 1})
    assert mending_lines(words, SimpleNamespace(unknown=unknown)) == [
        "5 of them: case ('The' for 'the'): --normalize lower",
        "3 of them: fillers and noises ('[laugh]'): --ignore_words FILE leaves them out of the"
        " counts",
        "2 of them: capitals in the LM's text ('boston' for 'Boston'): write the LM's training"
        " text in lower case",
        "1 of them: other words ('zebra')",
    ]
    assert mending_lines(Counter(["zebra", "yak"]), SimpleNamespace(unknown=unknown)) == []
    # a number that has no name
    nines = "9" * 400
    assert mending_lines(Counter([nines]), SimpleNamespace(unknown=unknown)) == []
    caplog.set_level(logging.INFO)
    count(["the"] * 99 + ["The"])  # one in a hundred
    assert [r.levelname for r in caplog.records] == ["INFO"]
    count(["the"] * 90 + ["The"] * 10)
    assert "\n  10 of them: case ('The' for 'the'): --normalize lower" in caplog.text
    with pytest.raises(InputError, match=r"does not know 30 of 100 .*30 of them: case"):
        count(["the"] * 70 + ["The"] * 30)


def count(words):
    scorer = SimpleNamespace(unknown=unknown)
    found = UnknownWords("3gram", 0.2)
    oov = np.array([*unknown(words), False])
    found.add([words], [WordScores(np.zeros(len(oov)), oov)])
    found.check(lambda words: mending_lines(words, scorer), report=True)


def test_first_words_that_no_component_knows_are_ids():
    class Known(WordScorer):
        def word_scores(self, sentences):
            oov = [np.array([*unknown(words), False]) for words in sentences]
            return [WordScores(-np.ones(len(own)), own) for own in oov]

        def unknown(self, words):
            return unknown(words)

    mixture = mixture_of(Known())
    lines = [[f"id{n}", "the"] for n in range(10)]
    with pytest.raises(InputError, match="--keyed true"):
        mixture.check_no_ids(lines, mixture.each(lines))
    mixture.check_no_ids([words[1:] for words in lines], mixture.each([["the"]] * 10))


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
