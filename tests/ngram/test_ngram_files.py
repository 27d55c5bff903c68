"""Texts and ARPA files of n-grams: all spellings that are read, and errors of damaged ones."""

import bz2
import gzip
import logging
import lzma
import math
import re
from pathlib import Path

import kenlm
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles.ngrams import read_arpa

from espnet_bayeslm.lm.ngram import NgramLM, load_table
from espnet_bayeslm.ngram.estimation import read_corpus
from espnet_bayeslm.ngram.ngram_files import arpa_words
from espnet_bayeslm.scoring.ngram_scorer import NgramScorer
from espnet_bayeslm.utils.errors import InputError

WORDS = st.sampled_from(["thank", "you", "know", "zebra", "nowhere", "of", "course"])


@pytest.fixture(scope="module")
def scorer(model_path):
    return NgramScorer(model_path)


@pytest.fixture(scope="module")
def unpacked(model_path, tmp_path_factory):
    """KenLM's wheels read no packed files."""
    path = tmp_path_factory.mktemp("unpacked") / "reference.arpa"
    path.write_bytes(gzip.decompress(model_path.read_bytes()))
    return str(path)


@settings(max_examples=50)
@given(sentences=st.lists(st.lists(WORDS, max_size=7), max_size=4))
def test_equals_kenlm_full_scores(scorer, unpacked, sentences):
    model = kenlm.Model(unpacked)
    scored = scorer.word_scores(sentences)
    assert len(scored) == len(sentences)
    for words, scores in zip(sentences, scored, strict=True):
        full = list(model.full_scores(" ".join(words)))
        np.testing.assert_array_equal(scores.oov, [oov for *_, oov in full])
        assert scores.log_probs.dtype == np.float64
        expected = [log10_prob * math.log(10) for log10_prob, *_ in full]
        np.testing.assert_allclose(scores.log_probs, expected, rtol=1e-12)
        total = model.score(" ".join(words)) * math.log(10)
        assert scores.log_probs.sum() == pytest.approx(total, rel=1e-5)  # a float32 sum


@pytest.mark.parametrize(
    "content", [b"", bytes(range(128, 256)) * 20, gzip.compress(b"\\data\\", mtime=0)[:-9]]
)
def test_malformed_file(tmp_path, content):
    path = tmp_path / "bad.arpa"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"bad\.arpa: (not an n-gram|cannot be read \(.*ended)"):
        NgramScorer(path)


def test_a_damaged_archive_of_an_arpa_file(tmp_path):
    path, words = tmp_path / "bad.arpa.gz", [f"w{n}" for n in range(5000)]
    grams = "".join(f"-3.5\t{word}\n" for word in words)
    content = gzip.compress(f"\\data\\\nngram 1=5000\n\n\\1-grams:\n{grams}\\end\\\n".encode())
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(InputError, match=r"bad\.arpa\.gz: .*ended before the end-of-stream marker"):
        arpa_words(path)


def test_a_unigram_model_equals_its_file(data, capfd):
    scorer = NgramScorer(data / "reference_1.arpa.gz")
    entries = read_arpa(data / "reference_1.arpa.gz")
    words = sorted(word for (word,) in entries if word not in ("<s>", "</s>", "<unk>"))
    (scores,) = scorer.word_scores([[*words, "unheard"]])
    expected = [entries[word,][0] for word in [*words, "<unk>", "</s>"]]
    np.testing.assert_allclose(scores.log_probs / math.log(10), expected, rtol=1e-6)
    assert scorer.order == 1 and np.flatnonzero(scores.oov).tolist() == [len(words)]
    assert capfd.readouterr().err == ""
    with pytest.raises(InputError, match=r"nosuch\.arpa: no such n-gram file"):
        NgramScorer(data / "nosuch.arpa")


def corpus_of(tmp_path, content):
    path = tmp_path / "text"
    path.write_bytes(content)
    return read_corpus(path)


def test_streams_of_ids(tmp_path, caplog):
    assert corpus_of(tmp_path, "\ufeffa b\n".encode()).words[3:] == ["a", "b"]
    assert not caplog.records
    corpus = corpus_of(tmp_path, b"b a\n\n  a\t b\r\n")
    assert corpus.words == ["<unk>", "<s>", "</s>", "b", "a"]
    assert corpus.ids.tolist() == [1, 3, 4, 2, 1, 2, 1, 4, 3, 2]
    assert corpus.positions.tolist() == [0, 1, 2, 3, 0, 1, 0, 1, 2, 3]
    assert (corpus.num_sentences, corpus.num_tokens) == (3, 4)
    with_end, without = corpus_of(tmp_path, b"a b\nc\n"), corpus_of(tmp_path, b"a b\nc")
    assert with_end.ids.tolist() == without.ids.tolist()
    # a no-break space is no blank
    assert corpus_of(tmp_path, "a\u00a0b c\n".encode()).words[3:] == ["a\u00a0b", "c"]
    assert "1 words hold blanks that are none for lmplz, 'a\\xa0b' first" in caplog.text
    path = tmp_path / "text.gz"
    path.write_bytes(gzip.compress(b"b a\n"))
    assert read_corpus(path).words[3:] == ["b", "a"]


@pytest.mark.parametrize(
    "content, message",
    [
        (b"a\nb <s> c\n", r"text:2: <s> stands in the text"),
        (b"a </s>\n", r"text:1: </s> stands in the text"),
        (b"a\n\n<unk>\n", r"text:3: <unk> stands in the text"),
        (b"a\nb\xff c\n", r"text:2: not UTF-8 text .* at byte 1 of the line"),
        (b"", "text: no word in the text"),
        (b"\n \t\n", "text: no word in the text"),
    ],
)
def test_bad_text_is_one_clear_error(tmp_path, content, message):
    with pytest.raises(InputError, match=message):
        corpus_of(tmp_path, content)


BASE = r"""\data\
ngram 1=5
ngram 2=4

\1-grams:
-1.5	<unk>
-99	<s>	-0.3
-0.7	</s>
-0.6	red	-0.2
-0.8	kite	-0.1

\2-grams:
-0.2	<s> red
-0.3	red kite
-0.1	kite </s>
-0.9	red red

\end\
"""
LONE = r"""\data\
ngram 1=4

\1-grams:
-1.5	<unk>
-99	<s>
-0.7	</s>
-0.6	red

\end\
"""
LOG10 = -0.2 - 0.3 - 0.1

SPELLINGS = {
    "tabs": BASE,
    "blanks": BASE.replace("\t", " "),
    "many blanks": BASE.replace("\t", "  ").replace("red kite", "red   kite"),
    "tabs between words": BASE.replace("red kite", "red\tkite"),
    "no empty lines": BASE.replace("\n\n", "\n"),
    "more empty lines": BASE.replace("\n\n", "\n\n\n"),
    "text before": "Made by hand,\n# in a hurry\n\n" + BASE,
    "text after": BASE + "\nthe end\n",
    "byte order mark": "\ufeff" + BASE,
    "carriage returns": BASE.replace("\n", "\r\n"),
    "trailing blanks": BASE.replace("\n", " \n"),
    "leading blanks": BASE.replace("\n", "\n "),
    "blanks in counts": BASE.replace("1=5", "1 = 5"),
    "no last line end": BASE.rstrip("\n"),
    "all of it": ("\ufeffx\n" + BASE.replace("\n\n", "\n").replace("\t", " ")).replace(
        "\n", " \r\n"
    ),
}


@pytest.fixture
def write(tmp_path):
    def to_file(text):
        path = tmp_path / "x.arpa"
        path.write_bytes(text.encode())
        return path

    return to_file


@pytest.mark.parametrize("name", SPELLINGS)
def test_every_reader_takes_every_spelling(write, capfd, name):
    path = write(SPELLINGS[name])
    (scores,) = NgramScorer(path).word_scores([["red", "kite"]])
    assert scores.log_probs.sum() == pytest.approx(LOG10 * math.log(10))
    table = load_table(path, words=["red", "kite"], history=["<s>", "red"])
    assert table.log10_probs(table.state([0])).tolist() == pytest.approx([-0.2, -1.1])
    assert NgramLM(path, ["<blank>", "<unk>", "red", "kite", "<sos/eos>"]).order == 2
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("opener", [gzip.open, bz2.open, lzma.open])
def test_packed_files_reach_kenlm_unpacked(write, tmp_path, monkeypatch, opener):
    """A build of KenLM without zlib, bz2 or lzma refuses them."""
    with opener(tmp_path / "packed", "wb") as f:
        f.write(BASE.encode())
    given, model = [], kenlm.Model

    def read(path, config):
        given.append(Path(path).read_bytes())
        return model(path, config)

    monkeypatch.setattr(kenlm, "Model", read)
    found, expected = (
        NgramScorer(path).word_scores([["red", "kite"]])[0].log_probs
        for path in (tmp_path / "packed", write(BASE))
    )
    assert found.tolist() == expected.tolist()
    assert given == [BASE.encode()] * 2


def of_order(order):
    """An ARPA file with one n-gram of each order."""
    counts = "".join(f"ngram {k}={1 if k > 1 else 4}\n" for k in range(1, order + 1))
    sections = [
        f"\n\\{k}-grams:\n-0.5\t{' '.join(['red'] * k)}" + "\t-0.1" * (k < order) + "\n"
        for k in range(2, order + 1)
    ]
    unigrams = "\n\\1-grams:\n-1.5\t<unk>\n-99\t<s>\t-0.3\n-0.7\t</s>\n-0.6\tred\t-0.2\n"
    return f"\\data\\\n{counts}{unigrams}{''.join(sections)}\n\\end\\\n"


def test_orders_beyond_kenlms_are_named(write):
    assert NgramScorer(write(of_order(6))).order == 6
    with pytest.raises(InputError, match=r"order is 7, and 6 or less was expected"):
        NgramScorer(write(of_order(7)))


def test_a_file_without_unk(write, capfd):
    NgramScorer(write(BASE.replace("-1.5\t<unk>\n", "").replace("1=5", "1=4")))
    assert capfd.readouterr().err == ""


PACK = (bz2.compress, gzip.compress, lzma.compress)
DAMAGED = {
    ("2=4", "2=5"): r"x\.arpa: .*states 5 2-grams, it has 4",
    ("-0.3\tred kite", "x\tred kite"): r"x\.arpa:14: .*expected a number, found 'x'",
    ("-0.3\tred kite", "0.3\tred kite"): r"x\.arpa:14: .*above one: 10\^0\.3",
    ("red kite", "kite"): r"x\.arpa:14: .*2 words.*found '-0\.3\\tkite'",
    ("red kite", "blue kite"): r"x\.arpa:14: .*'blue' is not among its unigrams",
    ("red kite", "red kite\t-0.5"): r"x\.arpa:14: .*back-off weight in the highest order",
    ("kite\t-0.1", "red\t-0.1"): r"x\.arpa:10: .*'red' twice",
    ("\\end\\\n", ""): r"x\.arpa: .*ends before \\end\\",
    ("-99\t<s>\t-0.3\n", ""): r"x\.arpa:12: .*'<s>' is not among its unigrams",
    ("2-grams", "3-grams"): r"x\.arpa:12: .*or \\2-grams:, found '.*3-grams:'",
    ("\\1-grams:", "\\1-gram:"): r"x\.arpa:12: .*or \\1-grams:, found '.*2-grams:'",
    (BASE, "hello\n"): r"x\.arpa: .*neither an ARPA file nor a KenLM binary",
    (BASE, LONE.replace("\\end", "\\2-grams:\n-1 red\tred\n\\end")): r":11: .* states no 2-grams",
    (BASE, LONE.replace("-99\t<s>\n", "").replace("=4", "=3")): r"\(<s> is not among its unigrams",
    ("-0.9\tred red", "nan\tred red"): "contradicts the others",
}


@pytest.mark.parametrize("change", DAMAGED)
@pytest.mark.parametrize("read", [NgramScorer, lambda path: load_table(path, words=[], history=[])])
def test_damage_is_named_in_our_words(write, capfd, read, change):
    path = write(BASE.replace(*change))
    with pytest.raises(InputError, match=DAMAGED[change]) as error:
        read(path)
    said = str(error.value).removeprefix(str(path))
    assert not re.search(r"\.(cc|hh|cpp)|Exception|threw|void|Byte:|/|\n", said)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    "content, message",
    [
        (b"\x28\xb5\x2f\xfd\x24", r"bad\.arpa: compressed by zstd"),
        (BASE.replace("\n", "\r").encode(), r"bad\.arpa:1: a carriage return alone"),
        (
            BASE.replace("red", "röd").encode("latin-1"),
            r"bad\.arpa:\d+: .*no UTF-8 text: 'r\ufffdd",
        ),
        # KenLM itself reads on for ever
        *((pack(BASE.encode() * 9)[:-20], r"bad\.arpa: .*ended") for pack in PACK),
    ],
)
def test_what_has_to_be_converted_first(tmp_path, content, message):
    path = tmp_path / "bad.arpa"
    path.write_bytes(content)
    for read in (NgramScorer, lambda path: load_table(path, words=[], history=[])):
        with pytest.raises(InputError, match=message):
            read(path)


@pytest.mark.parametrize("log10_of_red, said", [(-0.6, False), (-0.1, True)])
def test_unigrams_that_sum_to_more_than_one_are_named(write, caplog, log10_of_red, said):
    caplog.set_level(logging.WARNING)
    path = write(BASE.replace("-0.6\tred", f"{log10_of_red}\tred"))
    total = 10**log10_of_red + 10**-1.5 + 10**-0.7 + 10**-0.8
    NgramScorer(path)
    assert (f"x.arpa: its unigram probabilities sum to {total:.4g}" in caplog.text) is said
    assert bool(caplog.records) is said
