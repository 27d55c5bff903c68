"""Lists and lattices of every format: what was written is read again, and other forms of files."""

import dataclasses
import inspect
import random
import tempfile
from pathlib import Path

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


def without_lm(nbests):
    """Return lists without LM scores."""
    return [
        dataclasses.replace(
            nbest, hypotheses=tuple(dataclasses.replace(h, lm_score=None) for h in nbest.hypotheses)
        )
        for nbest in nbests
    ]


@pytest.mark.parametrize("format", WRITERS)
def test_what_was_written_is_read_again(format):
    @SETTINGS
    @given(nbests=lists_of(format))
    def check(nbests):
        with tempfile.TemporaryDirectory() as folder:
            write_nbest(iter(nbests), Path(folder) / "a", format=format)
            again = list(read_nbest(Path(folder) / "a", format))
        if format != "kaldi":
            assert again == nbests
            return
        assert without_lm(again) == without_lm(nbests)
        found, given = ([hyp for nbest in x for hyp in nbest.hypotheses] for x in (again, nbests))
        for one, other in zip(found, given, strict=True):
            if other.lm_score is not None:
                scale = abs(other.lm_score) + abs(other.graph_score)
                assert one.lm_score == pytest.approx(other.lm_score, rel=0, abs=1e-11 * scale)

    check()


@pytest.mark.parametrize("format", ["kaldi", "espnet", "jsonl"])
def test_the_order_of_lines_changes_nothing_but_the_order(format, tmp_path):
    _, files = nbest_mutations.KINDS[format]
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
    _, files = (nbest_mutations.KINDS | nbest_mutations.LATTICE_KINDS)[format]
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


@pytest.mark.parametrize(
    "format, stale",
    [("kaldi", "lmwt.nolm"), ("kaldi", "archives.1/acwt"), ("jsonl", "other.jsonl.gz")],
)
def test_lists_that_would_be_read_with_the_new_ones(format, stale, tmp_path):
    nbests = [NBest("u", (PLAIN,))]
    write_nbest(nbests, tmp_path, format=format)
    write_nbest(nbests, tmp_path, format=format)  # the same names: replaced
    (tmp_path / "text").write_text("u a\n")  # something else stays
    write_files(tmp_path, {stale: "stale"})
    with pytest.raises(InputError, match="would be read with the lists"):
        write_nbest([NBest("v", nbests[0].hypotheses)], tmp_path, format=format)
    assert (tmp_path / stale).read_text() == "stale" and (tmp_path / "text").is_file()


def test_the_formats_are_listed_and_documented():
    assert WRITERS.keys() == HOLDS.keys()
    for function in (*READERS.values(), *WRITERS.values()):
        assert "Raises" in inspect.getdoc(function)
    known = (
        "unknown N-best format 'sphinx'.*kaldi, espnet, srilm, jsonl, whisper, nemo, vosk, beams"
    )
    with pytest.raises(InputError, match=known):
        read_nbest("lists", "sphinx")
    with pytest.raises(InputError, match=r"not written in the format 'srilm'.*: kaldi, jsonl"):
        write_nbest([], "lists", format="srilm")
