"""Every format: round trips, lines in any order, refusal of what has no place in it."""

import dataclasses
import inspect
import os
import random
import tempfile
from pathlib import Path

import lattice_mutations
import nbest_mutations
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nbest_mutations import packed, write_files

from espnet_bayeslm.nbest.formats import LATTICE_READERS, READERS, WRITERS, read_nbest, write_nbest
from espnet_bayeslm.nbest.types import Hypothesis, NBest
from espnet_bayeslm.utils.errors import InputError

# What each can hold; a `True` is what it cannot be without
HOLDS = {
    "kaldi": [{}, {"graph_score": True}, {"graph_score": True, "lm_score": True}],
    "espnet": [{}],
    "srilm": [{"lm_score": True}],
    "jsonl": [
        {"graph_score": False, "lm_score": False, "ref": False},
        {"lm_score": False, "no scores": True},
    ],
    "whisper": [{"no scores": True, "ref": False}, {"ref": False}],
    "nemo": [{"ref": False}],
    "vosk": [{"ref": False}, {"no scores": True}],
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


def rewrite(folder, change):
    """Replace the lines of all files."""
    for path in sorted(Path(folder).rglob("*")):
        if path.is_file():
            with open(path, encoding="utf-8", newline="") as f:
                lines = list(f)
            with open(path, "w", encoding="utf-8", newline="") as f:
                f.writelines(change(path, lines))


@pytest.mark.parametrize("format", READERS)
def test_what_was_written_is_read_again(format):
    @SETTINGS
    @given(nbests=lists_of(format))
    def check(nbests):
        with tempfile.TemporaryDirectory() as folder:
            write_nbest(iter(nbests), Path(folder) / "a", format=format)
            again = list(read_nbest(Path(folder) / "a", format))
            assert sorted(again, key=lambda n: n.utt) == sorted(nbests, key=lambda n: n.utt)
            assert format == "srilm" or again == nbests
            write_nbest(again, Path(folder) / "b", format=format)
            for path in (Path(folder) / "a").rglob("*"):
                other = Path(folder) / "b" / path.relative_to(Path(folder) / "a")
                assert path.is_dir() or path.read_bytes() == other.read_bytes()

    check()


@pytest.mark.parametrize("format", ["kaldi", "espnet", "jsonl"])
def test_the_order_of_lines_changes_nothing_but_the_order(format):
    @SETTINGS
    @given(nbests=lists_of(format), seed=st.integers(0, 1000))
    def check(nbests, seed):
        rng = random.Random(seed)
        with tempfile.TemporaryDirectory() as folder:
            write_nbest(nbests, folder, format=format)
            rewrite(folder, lambda _, lines: rng.sample(lines, len(lines)))
            again = {nbest.utt: nbest for nbest in read_nbest(folder, format)}
            assert again == {nbest.utt: nbest for nbest in nbests}

    check()


@pytest.mark.parametrize("format", ["kaldi", "espnet", "jsonl"])
def test_the_order_of_utterances_is_that_of_their_first_lines(format, tmp_path):
    nbests = [NBest(utt, (Hypothesis(("a",), -1.0), Hypothesis((), -2.0))) for utt in "badc"]
    write_nbest(nbests, tmp_path, format=format)
    assert [nbest.utt for nbest in read_nbest(tmp_path, format)] == list("badc")
    # Another order of one file is another way of reading
    text = {"kaldi": "words_text", "espnet": "text", "jsonl": "nbest.jsonl"}[format]
    rewrite(tmp_path, lambda path, lines: lines[:: -1 if path.name == text else 1])
    assert [nbest.utt for nbest in read_nbest(tmp_path, format)] == list("cdab")


@pytest.mark.parametrize("format", [*READERS, *LATTICE_READERS])
def test_line_ends_byte_order_marks_and_gzip_change_nothing(format, tmp_path):
    _, files = (nbest_mutations.KINDS | lattice_mutations.KINDS)[format]
    ends = {name: data.rstrip(b"\n").replace(b"\n", b"\r\n") for name, data in files.items()}
    write_files(tmp_path / "plain", files)
    write_files(tmp_path / "windows", {n: b"\xef\xbb\xbf" + data for n, data in ends.items()})
    write_files(tmp_path / "packed", packed(files))
    read = (READERS | LATTICE_READERS)[format]
    plain = list(read(tmp_path / "plain"))
    assert list(read(tmp_path / "windows")) == list(read(tmp_path / "packed")) == plain


GOOD = Hypothesis(("a",), -1.0, -2.0)
PLAIN = Hypothesis(("a",), -1.0)


def other(**changes):
    """Return the good hypothesis with changes."""
    return dataclasses.replace(GOOD, **changes)


def one(*hypotheses, utt="u", ref=None):
    """Return a single list."""
    return [NBest(utt, hypotheses, ref)]


SCORED = ["kaldi", "espnet", "srilm"]
REFUSED = {
    "no lists": ("all", []),
    "twice": ("all", one(GOOD) + one(GOOD, utt="v") + one(GOOD)),
    "no id": ("all", one(GOOD, utt="")),
    "blank in an id": ("all", one(GOOD, utt="u 1")),
    "mark before an id": ("all", one(GOOD, utt="\ufeffu")),
    "half an id": ("all", one(GOOD, utt="u\udc80")),
    "blank in a word": ("all", one(GOOD, other(words=("a b",)))),
    "an empty word": ("all", one(other(words=("a", "")))),
    "line end in a word": ("all", one(other(words=("a\nb",)))),
    "half a word": ("all", one(other(words=("\ud800",)))),
    "nan": ("all", one(other(am_score=float("nan")))),
    "infinite": ("all", one(other(am_score=-float("inf")))),
    "an infinite LM score": (["kaldi", "srilm", "jsonl"], one(other(lm_score=-float("inf")))),
    "a reference": (SCORED, one(GOOD, ref=("a",))),
    "a reference with blanks": ("all", one(GOOD, ref=("a b",))),
    "an LM score": (["espnet", "whisper", "nemo", "vosk"], one(GOOD)),
    "no LM score": (["srilm"], one(PLAIN)),
    "a graph score": (["espnet", "srilm"], one(other(graph_score=0.0))),
    "mixed": (SCORED, one(GOOD, PLAIN)),
    "some scores": ("all", one(GOOD, other(am_score=None))),
    "no scores": ([*SCORED, "nemo"], one(Hypothesis(("a",)))),
    "a slash": (["srilm"], one(GOOD, utt="a/b")),
    "a long name": (["srilm"], one(GOOD, utt="é" * 130)),
    "a pause": (["srilm"], one(other(words=("a", "-pau-")))),
    "the start": (["srilm"], one(other(words=("<s>", "a")))),
}


# Formats that hold a total score only
TOTALS = ("espnet", "whisper", "nemo", "vosk")


def without_lm(nbest):
    """Return a list as ESPnet's decoder gives it."""
    hyps = tuple(dataclasses.replace(hyp, lm_score=None) for hyp in nbest.hypotheses)
    return dataclasses.replace(nbest, hypotheses=hyps)


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_place_is_refused_and_nothing_written(name, tmp_path):
    names, nbests = REFUSED[name]
    for format in READERS if names == "all" else names:
        plain = names == "all" and format in TOTALS
        with pytest.raises(ValueError) as error:
            lists = map(without_lm, nbests) if plain else nbests
            write_nbest(lists, tmp_path / "new" / "lists", format=format)
        assert "\n" not in str(error.value), format
        if name == "no scores":
            assert f"the {format} format cannot hold" in str(error.value)
        assert [path for path in tmp_path.rglob("*") if path.is_file()] == [], format


@pytest.mark.parametrize(
    "format, stale",
    [
        ("kaldi", "lmwt.nolm"),
        ("kaldi", "acwt.gz"),
        ("kaldi", "archives.1/acwt"),
        ("espnet", "2best_recog/text"),
        ("espnet", "output.1/1best_recog/text"),
        ("srilm", "other.score"),
        ("jsonl", "other.jsonl.gz"),
        ("whisper", "other.json"),
        ("nemo", "other.tsv"),
        ("nemo", "manifest.jsonl"),
        ("vosk", "other.json.gz"),
    ],
)
def test_lists_that_would_be_read_with_the_new_ones(format, stale, tmp_path):
    nbests = [NBest("u", (GOOD if format == "srilm" else PLAIN,))]
    write_nbest(nbests, tmp_path, format=format)
    write_nbest(nbests, tmp_path, format=format)  # the same names: replaced
    (tmp_path / "text").write_text("u a\n")  # something else stays
    assert list(read_nbest(tmp_path, format)) == nbests
    (tmp_path / stale).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / stale).write_text("stale")
    with pytest.raises(InputError, match="would be read with the lists"):
        write_nbest([NBest("v", nbests[0].hypotheses)], tmp_path, format=format)
    assert (tmp_path / stale).read_text() == "stale" and (tmp_path / "text").is_file()


@pytest.mark.parametrize("format", READERS)
def test_a_file_where_a_folder_is_to_be_written(format, tmp_path):
    (tmp_path / "lists").write_text("")
    with pytest.raises((InputError, OSError)):
        write_nbest([NBest("u", (GOOD,))], tmp_path / "lists", format=format)
    assert os.listdir(tmp_path) == ["lists"]


def test_the_formats_are_listed_and_documented():
    assert READERS.keys() == WRITERS.keys() == HOLDS.keys()
    for function in (*READERS.values(), *WRITERS.values()):
        assert "Raises" in inspect.getdoc(function)
    known = "unknown N-best format 'sphinx'.*kaldi, espnet, srilm, jsonl, whisper, nemo, vosk"
    with pytest.raises(InputError, match=known):
        read_nbest("lists", "sphinx")
    with pytest.raises(InputError, match=known):
        write_nbest([], "lists", format="sphinx")
