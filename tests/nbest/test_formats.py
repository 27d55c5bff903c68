"""Lists and lattices of every format: what was written is read again, and other forms of files."""

import bz2
import dataclasses
import gzip
import inspect
import lzma
import math
import random
import re
import tempfile
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nbest_mutations import KINDS, packed, write_files

from espnet_bayeslm.nbest.formats import (
    LATTICE_READERS,
    READERS,
    WRITERS,
    CheckedLists,
    find_format,
    read_nbest,
    write_nbest,
)
from espnet_bayeslm.nbest.types import Hypothesis, NBest
from espnet_bayeslm.utils.errors import InputError

# What each can hold; a `True` is what it cannot be without
HOLDS = {
    "kaldi": [{}, {"graph_score": True}, {"graph_score": True, "lm_score": True}],
    "jsonl": [
        {"graph_score": False, "lm_score": False, "ref": False},
        {"lm_score": False, "no scores": True},
    ],
}
SETTINGS = settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow], derandomize=True)


def one_word(text):
    """Return whether a text is one word that every format can hold; Hypothesis finds `<s>` too."""
    return text.split() == [text] and not text.startswith("\ufeff") and text not in ("<s>", "</s>")


CHARACTERS = st.characters(codec="utf-8", exclude_characters="/\0")
UTTS = st.one_of(
    st.from_regex(r"[a-zA-Z0-9_.-]{1,8}(-[0-9]{1,3}){0,2}", fullmatch=True),
    st.text(CHARACTERS, min_size=1, max_size=6).filter(one_word),
)
WORDS = st.one_of(
    st.sampled_from(["a", "<unk>", "o'clock", "7", "x-1", "é", "u-2", "tensor(1)", '"', "{}"]),
    st.text(CHARACTERS, min_size=1, max_size=4).filter(one_word),
)
SENTENCES = st.lists(WORDS, max_size=4).map(tuple)
SCORES = st.one_of(
    st.floats(-1e6, 1e6),
    st.floats(-1e300, 1e300),
    st.integers(-1000, 1000).map(lambda n: n / 16),
)


@st.composite
def lists_of(draw, format):
    """Return N-best lists that a format can hold."""
    holds = draw(st.sampled_from(HOLDS[format]))

    def optional(name):
        if name not in holds:
            return st.none()
        return SCORES if holds[name] else st.one_of(st.none(), SCORES)

    am_scores = st.none() if "no scores" in holds else SCORES
    hypotheses = st.lists(
        st.builds(Hypothesis, SENTENCES, am_scores, optional("lm_score"), optional("graph_score")),
        min_size=1,
        max_size=12,
    ).map(tuple)
    ref = st.one_of(st.none(), SENTENCES) if "ref" in holds else st.none()
    utts = draw(st.lists(UTTS, min_size=1, max_size=4, unique=True))
    return [NBest(utt, draw(hypotheses), draw(ref)) for utt in utts]


@pytest.mark.parametrize("format", WRITERS)
@SETTINGS
@given(data=st.data())
def test_what_was_written_is_read_again(format, data):
    nbests = data.draw(lists_of(format))
    with tempfile.TemporaryDirectory() as folder:
        write_nbest(iter(nbests), Path(folder) / "a", format=format)
        again = list(read_nbest(Path(folder) / "a", format))
    for found, wanted in zip(again, nbests, strict=True):
        assert dataclasses.replace(found, hypotheses=wanted.hypotheses) == wanted
        for one, other in zip(found.hypotheses, wanted.hypotheses, strict=True):
            if format == "kaldi" and other.lm_score is not None:  # of 12 digits
                scale = abs(other.lm_score) + abs(other.graph_score)
                assert one.lm_score == pytest.approx(other.lm_score, rel=0, abs=1e-11 * scale)
                one = dataclasses.replace(one, lm_score=other.lm_score)
            assert one == other


@pytest.mark.parametrize("format", ["kaldi", "espnet", "jsonl"])
def test_the_order_of_lines_changes_nothing_but_the_order(format, tmp_path):
    _, files = KINDS[format]
    write_files(tmp_path / "plain", files)
    expected = {nbest.utt: nbest for nbest in read_nbest(tmp_path / "plain", format)}
    for seed in range(20):
        rng = random.Random(seed)
        lines = {name: data.splitlines(keepends=True) for name, data in files.items()}
        write_files(tmp_path, {n: b"".join(rng.sample(x, len(x))) for n, x in lines.items()})
        assert {nbest.utt: nbest for nbest in read_nbest(tmp_path, format)} == expected


@pytest.mark.parametrize("format", WRITERS)
def test_the_order_of_utterances_is_that_of_their_first_lines(format, tmp_path):
    nbests = [NBest(utt, (Hypothesis(("a",), -1.0), Hypothesis((), -2.0))) for utt in "badc"]
    write_nbest(nbests, tmp_path, format=format)
    assert [nbest.utt for nbest in read_nbest(tmp_path, format)] == list("badc")
    # Another order of one file is another way of reading
    file = tmp_path / {"kaldi": "words_text", "jsonl": "nbest.jsonl"}[format]
    file.write_text("".join(file.read_text().splitlines(keepends=True)[::-1]))
    assert [nbest.utt for nbest in read_nbest(tmp_path, format)] == list("cdab")


@pytest.mark.parametrize("format", [*READERS, *LATTICE_READERS])
def test_line_ends_byte_order_marks_and_gzip_change_nothing(format, tmp_path):
    _, files = KINDS[format]
    ends = {name: data.rstrip(b"\n").replace(b"\n", b"\r\n") for name, data in files.items()}
    write_files(tmp_path / "plain", files)
    write_files(tmp_path / "windows", {n: b"\xef\xbb\xbf" + data for n, data in ends.items()})
    write_files(tmp_path / "packed", packed(files))
    read = {**READERS, **LATTICE_READERS}[format]
    plain = list(read(tmp_path / "plain"))
    assert list(read(tmp_path / "windows")) == list(read(tmp_path / "packed")) == plain


PACKED = [(".bz2", bz2.compress), (".xz", lzma.compress), ("", gzip.compress), ("", bz2.compress)]


@pytest.mark.parametrize("format", [*READERS, *LATTICE_READERS])
def test_compressed_files_of_any_name_are_the_same(format, tmp_path):
    _, files = KINDS[format]
    write_files(tmp_path / "plain", files)
    read, found = {**READERS, **LATTICE_READERS}[format], find_format(tmp_path / "plain")
    plain = list(read(tmp_path / "plain"))
    for n, how in enumerate(PACKED):
        write_files(tmp_path / str(n), packed(files, *how))
        assert list(read(tmp_path / str(n))) == plain
        assert find_format(tmp_path / str(n)) == found


@pytest.mark.parametrize("format", [*READERS, *LATTICE_READERS])
def test_what_cannot_be_read_is_named_by_file(format, tmp_path):
    _, files = KINDS[format]
    read = {**READERS, **LATTICE_READERS}[format]
    zstd = {f"{name}.zst": b"\x28\xb5\x2f\xfd" for name in files}
    write_files(tmp_path / "zstd", zstd)
    write_files(tmp_path / "plain", files)
    is_found = find_format(tmp_path / "plain") is not None
    for how in (read, read_nbest) if is_found else (read,):
        message = r"\.zst: compressed by zstd.*`zstd -dc < .*\.zst > NEW_FILE`"
        with pytest.raises(InputError, match=message):
            list(how(tmp_path / "zstd"))
    mac = {name: data.replace(b"\r", b"").replace(b"\n", b"\r") for name, data in files.items()}
    write_files(tmp_path / "mac", mac)
    for how in (read, read_nbest) if is_found else (read,):
        with pytest.raises(InputError, match=r":1: a carriage return alone.*`tr "):
            list(how(tmp_path / "mac"))


GOOD = Hypothesis(("a",), -1.0, -2.0)
PLAIN = Hypothesis(("a",), -1.0)


def other(**changes):
    return dataclasses.replace(GOOD, **changes)


def one(*hypotheses, utt="u", ref=None):
    return [NBest(utt, hypotheses, ref)]


REFUSED = {
    "no lists": ([], "no N-best lists"),
    "twice": (one(GOOD) + one(GOOD, utt="v") + one(GOOD), "'u' comes twice"),
    "no id": (one(GOOD, utt=""), "cannot be an utterance id"),
    "blank in an id": (one(GOOD, utt="u 1"), "cannot be an utterance id"),
    "mark before an id": (one(GOOD, utt="\ufeffu"), "cannot be an utterance id"),
    "half an id": (one(GOOD, utt="u\udc80"), "cannot be an utterance id"),
    "blank in a word": (one(GOOD, other(words=("a b",))), "one with white space"),
    "an empty word": (one(other(words=("a", ""))), "an empty word"),
    "line end in a word": (one(other(words=("a\nb",))), "one with white space"),
    "half a word": (one(other(words=("\ud800",))), "half a character"),
    "nan": (one(other(am_score=float("nan"))), "has the am_score nan"),
    "infinite": (one(other(am_score=-float("inf"))), "has the am_score -inf"),
    "an infinite LM score": (one(other(lm_score=-float("inf"))), "has the lm_score -inf"),
    "a reference with blanks": (one(GOOD, ref=("a b",)), "one with white space|has a reference"),
    "some scores": (one(GOOD, other(am_score=None)), "1 of 2 hypotheses of 'u' have a am_score"),
}
REFUSED_BY_KALDI = {
    "a reference": (one(GOOD, ref=("a",)), "the kaldi format cannot hold .* has a reference"),
    "mixed": (one(GOOD, PLAIN), "1 of 2 hypotheses have a cost lmwt"),
    "no scores": (one(Hypothesis(("a",))), "the kaldi format cannot hold .* has no am_score"),
}
CASES = [(format, *row) for format in WRITERS for row in REFUSED.values()]
CASES += [("kaldi", *row) for row in REFUSED_BY_KALDI.values()]


@pytest.mark.parametrize("format, nbests, message", CASES)
def test_what_has_no_place_is_refused_and_nothing_written(format, nbests, message, tmp_path):
    with pytest.raises(ValueError, match=message) as error:
        write_nbest(nbests, tmp_path / "new" / "lists", format=format)
    assert "\n" not in str(error.value)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


STALE = [("kaldi", "lmwt.nolm"), ("kaldi", "archives.1/acwt"), ("jsonl", "other.jsonl.gz")]


@pytest.mark.parametrize("format, stale", STALE)
def test_lists_that_would_be_read_with_the_new_ones(format, stale, tmp_path):
    write_nbest(one(PLAIN), tmp_path, format=format)
    write_nbest(one(PLAIN), tmp_path, format=format)  # the same names: replaced
    (tmp_path / "text").write_text("u a\n")  # something else stays
    write_files(tmp_path, {stale: "stale"})
    with pytest.raises(InputError, match="would be read with the lists"):
        write_nbest(one(PLAIN, utt="v"), tmp_path, format=format)
    assert (tmp_path / stale).read_text() == "stale" and (tmp_path / "text").is_file()


def test_the_formats_are_listed_and_documented():
    assert WRITERS.keys() == HOLDS.keys()
    for function in (*READERS.values(), *WRITERS.values()):
        assert "Raises" in inspect.getdoc(function)
    known = "'sphinx'.*kaldi, espnet, srilm, jsonl, hyporadise, nemo, vosk, beams"
    with pytest.raises(InputError, match=f"unknown N-best format {known}"):
        read_nbest("lists", "sphinx")
    with pytest.raises(InputError, match=r"not written in the format 'srilm'.*: kaldi, jsonl"):
        write_nbest([], "lists", format="srilm")


MANY_WORDS = ["well", "i'm", "gonna", "have", "mine", "the", "a", "<unk>"]


def peak_of(function):
    """Return how far a call raises the memory in use, in bytes."""
    tracemalloc.start()
    result = function()  # held until the peak is known
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    del result
    return peak


@pytest.mark.parametrize("format", WRITERS)
def test_memory_does_not_grow_with_the_lists(format, tmp_path):
    folder, rng = tmp_path / "lists", random.Random(0)

    def hypothesis():
        words = tuple(rng.choices(MANY_WORDS, k=8))
        return Hypothesis(words, *(-rng.randrange(10**6) / 1000 for _ in range(3)))

    lists = (NBest(f"utt-{n:06d}", tuple(hypothesis() for _ in range(20))) for n in range(150))
    written = peak_of(lambda: write_nbest(lists, folder, format=format))
    whole = peak_of(lambda: list(read_nbest(folder, format)))
    streamed = peak_of(lambda: sum(1 for _ in read_nbest(folder, format)))
    assert streamed < whole / 4, (streamed, whole)  # the ids, and a buffer for each file
    assert written < whole / 4, (written, whole)


UNKNOWN = {
    "nothing": {},
    "text": {"text": "u1 a\n"},
    "no lists": {"config.json": '{"a": 1}', "bad.json": "{", "empty.json": ""},
    "two formats": {"a.score": "-1 -1 1 a\n", "b.jsonl": '{"utt": "u", "hypotheses": ["a"]}\n'},
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_format_of_a_folder_and_of_its_files(kind, tmp_path):
    format, files = KINDS[kind]
    write_files(tmp_path, files)
    assert find_format(tmp_path) == format
    lists = list(read_nbest(tmp_path))
    assert lists == list(read_nbest(tmp_path, format)) == list(read_nbest(tmp_path, ""))
    if format not in ("kaldi", "espnet", "nemo"):  # these are folders
        assert {find_format(tmp_path / name) for name in files} == {format}
    if format == "nemo":
        beams = next((name for name in files if ".tsv" in name), "manifest.json")
        assert find_format(tmp_path / beams) == "nemo"
        assert list(read_nbest(tmp_path / beams)) == lists
    # a rescoring writes other files beside its lists
    beside = "sweep.json text trn scales.yaml lmwt.nn confidence.ndjson"
    write_files(tmp_path, dict.fromkeys(beside.split(), "{}"))
    assert find_format(tmp_path) == format
    assert list(read_nbest(tmp_path)) == lists


def test_other_names_that_say_it(tmp_path):
    files = {"a.lat": "# SLF\nN=1 L=0\n", "b.lat.gz": b"", "c.lat": "\n\nu\n0 1 a\n1\n"}
    files["d.json"] = '{"utt": "u", "hypotheses": ["a"]}\n'
    write_files(tmp_path, files)
    write_files(tmp_path, {"e.jsonl": "", "f.jsonl.gz": b"", "g.jsonl": '{"input": ["a"]}'})
    found = {path.name: find_format(path) for path in tmp_path.iterdir()}
    expected = {"a.lat": "htk", "b.lat.gz": None, "c.lat": "kaldi_lattice", "d.json": "jsonl"}
    expected |= {"e.jsonl": "jsonl", "f.jsonl.gz": "jsonl", "g.jsonl": "hyporadise"}
    assert found == expected
    # of what begins with `sweep` only a rescoring's own file is no list
    write_files(tmp_path, {"lists/sweep.u.jsonl": files["d.json"], "lists/sweep.json": "{}"})
    assert [nbest.utt for nbest in read_nbest(tmp_path / "lists")] == ["u"]


@pytest.mark.parametrize("files", UNKNOWN.values(), ids=UNKNOWN)
def test_what_says_nothing_is_asked_for(files, tmp_path):
    write_files(tmp_path, files)
    with pytest.raises(InputError, match=r"no format of .* --nbest_format"):
        read_nbest(tmp_path)


PAGE = (Path(__file__).parents[2] / "docs" / "lists.md").read_text(encoding="utf-8")
SECTION = re.compile(r"^## .*?(?=^## |\Z)", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"`([\w./]+)`[^`]*:\n\n```\w+\n(.*?)```", re.DOTALL)


def examples():
    found = {}
    for section in SECTION.findall(PAGE):
        named = re.search(r"--nbest_format (\w+)", section)
        if named and (files := dict(FILE.findall(section))):
            found[named[1]] = files
    return found


@pytest.mark.parametrize("format", [None, *READERS])
def test_lists_that_are_not_there(format, tmp_path):
    for read in (read_nbest, CheckedLists):
        with pytest.raises(InputError, match="nosuch/lists: no such file or folder"):
            read(tmp_path / "nosuch" / "lists", format)


@pytest.mark.parametrize(
    "format, message",
    [
        ("kaldi", "not a folder of Kaldi N-best archives. Give a folder with words_text, "),
        ("espnet", "not an ESPnet decode directory. Give the folder of a decoding by ESPnet"),
    ],
)
def test_a_file_where_a_folder_was_expected(format, message, tmp_path):
    (tmp_path / "lists").write_text("u1-1 a b\n")
    with pytest.raises(InputError, match=re.escape(message)):
        list(read_nbest(tmp_path / "lists", format))


@pytest.mark.parametrize("format", READERS)
def test_the_example_is_read(format, tmp_path):
    assert set(examples()) == set(READERS)
    write_files(tmp_path, examples()[format])
    path = tmp_path / "lists.jsonl" if format == "jsonl" else tmp_path
    (nbest,) = read_nbest(path, format)
    assert nbest.utt == "u1"
    words = [" ".join(hyp.words) for hyp in nbest.hypotheses]
    assert words == ["it is a test", "it's a test"]
    if format != "hyporadise":
        scores = [hyp.am_score for hyp in nbest.hypotheses]
        assert scores == pytest.approx([-3.5, -4.0], abs=1e-3 * math.log(10))
    if format in ("jsonl", "kaldi", "srilm", "beams"):
        lm_scores = [hyp.lm_score for hyp in nbest.hypotheses]
        assert lm_scores == pytest.approx([-8.1, -7.9], abs=1e-3 * math.log(10))
