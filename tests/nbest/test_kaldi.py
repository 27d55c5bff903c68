"""Kaldi's N-best archives, split and gzipped ones too; one error for each thing that is bad."""

import re

import nbest_mutations
import pytest
from nbest_mutations import write_files
from oracles.refused import check_refused

from espnet_bayeslm.nbest.formats import read_nbest, write_nbest
from espnet_bayeslm.nbest.types import Hypothesis, NBest

GOOD = {
    "words_text": "en-A_1-2-1 well i'm 3\nen-A_1-2-2\nen-A_1-1 yes\n",
    "acwt": "en-A_1-2-1 10.5\nen-A_1-2-2 1e1\nen-A_1-1 -3\n",
    "lmwt.nolm": "en-A_1-2-1 2\nen-A_1-2-2 0\nen-A_1-1 1\n",
    "lmwt.withlm": "en-A_1-2-1 7\nen-A_1-2-2 .5\nen-A_1-1 5\n",
}


def write(folder, **changes):
    """Write the good archives, with changes (a None is a file that is not there)."""
    return write_files(folder, {**GOOD, **changes})


def read(folder):
    return list(read_nbest(folder, "kaldi"))


def test_by_hand(tmp_path):
    assert read(write(tmp_path)) == [
        NBest(
            "en-A_1-2",
            (
                Hypothesis(("well", "i'm", "3"), -10.5, lm_score=-5.0, graph_score=-2.0),
                Hypothesis((), -10.0, lm_score=-0.5, graph_score=0.0),
            ),
        ),
        NBest("en-A_1", (Hypothesis(("yes",), 3.0, lm_score=-4.0, graph_score=-1.0),)),
    ]


def change(name, old, new):
    """Return one of the good archives with a line changed."""
    assert old in GOOD[name]
    return {name: GOOD[name].replace(old, new, 1)}


def rename(old, new):
    """Return the good archives with other keys."""
    return {name: content.replace(old, new) for name, content in GOOD.items()}


BAD = [
    ({"words_text": None}, r"words_text: cannot be read"),
    ({"acwt": None}, r"acwt: cannot be read"),
    ({"lmwt.nolm": None}, r"lmwt\.nolm: missing"),
    ({name: "" for name in GOOD}, r"words_text: no hypotheses"),
    (change("acwt", "en-A_1-1", "\nen-A_1-1"), r"acwt:3: an empty line"),
    (rename("en-A_1-1", "utterance"), r"words_text:3: the key 'utterance' is not of the form"),
    (rename("2-2", "2-3"), r"words_text:2: the hypothesis 'en-A_1-2-2' is missing"),
    (rename("en-A_1-1", "en-A_1-7"), r"words_text:3: the hypothesis 'en-A_1-1' is missing"),
    (change("acwt", "A_1-1 ", "A_1-2-1 "), r"acwt:3: the key .* stands already in line 1"),
    (
        change("acwt", "en-A_1-2-2 1e1\n", ""),
        r"acwt: 1 of the 3 keys of words_text are missing, the first 'en-A_1-2-2' \(words_text:2\)",
    ),
    (
        {"lmwt.withlm": GOOD["lmwt.withlm"] + "new-1 3\n"},
        r"words_text: 1 of the 4 keys of lmwt\.withlm .* 'new-1' \(lmwt\.withlm:4\)",
    ),
    (change("acwt", " 10.5", ""), r"acwt:1: '' stands where one number"),
    (change("acwt", "10.5", "nan"), r"acwt:1: 'nan' is not a finite number"),
    (change("lmwt.withlm", " .5", " 1e999"), r"lmwt\.withlm:2: '1e999' is not a finite"),
    ({"words_text": b"a-1 \xff\n"}, r"words_text:1: not UTF-8"),
    ({"acwt.gz": b""}, r"acwt: acwt\.gz is there too"),
    ({"archives.1/acwt": ""}, r"holds words_text and archives\.1"),
]
PARTS = nbest_mutations.split({name: text.encode() for name, text in GOOD.items()}, (2,))
BAD_PARTS = [
    ({"num_jobs": "3\n"}, r"num_jobs: says '3', and there are 2 archives"),
    (
        {"archives.2/lmwt.withlm": None},
        r"archives\.2/lmwt\.withlm: missing, and .*archives\.1/lmwt\.withlm is there",
    ),
    ({"archives.4/acwt": ""}, r"archives\.3 is missing, and archives\.4 is there"),
    ({"archives.2/acwt": "en-A_1-1 high\n"}, r"archives\.2/acwt:1: 'high' stands"),
    (
        {"archives.2/acwt": "en-A_1-1 1\nen-A_1-2 2\n"},
        r"archives\.2/words_text: 1 of the 4 keys of acwt .* 'en-A_1-2' \(acwt:2\)",
    ),
    (
        {"archives.2/acwt": "en-A_1-1 1\nen-A_1-2-1 2\n"},
        r"archives\.2/acwt:2: .* line 1 of .*archives\.1/acwt",
    ),
]


@pytest.mark.parametrize(
    "good, changes, message",
    [*((GOOD, *row) for row in BAD), *((PARTS, *row) for row in BAD_PARTS)],
)
def test_bad_archives_are_one_error_with_file_and_line_or_key(tmp_path, good, changes, message):
    folder = write_files(tmp_path / "nbest", {**good, **changes})
    remedy = not re.search("cannot be read|no hypotheses", message)
    check_refused(lambda: read(folder), message, folder, remedy=remedy)


def split(folder, *, at=(2,), zipped=False):
    """Write the good archives as archives.1, ..., each with some of the utterances."""
    files = nbest_mutations.split({name: text.encode() for name, text in GOOD.items()}, at)
    return write_files(folder, nbest_mutations.packed(files) if zipped else files)


@pytest.mark.parametrize("at, zipped", [((), False), ((2,), True)])
def test_archives_split_over_folders(tmp_path, at, zipped):
    split(tmp_path / "nbest", at=at, zipped=zipped)
    (tmp_path / "nbest" / "num_jobs").write_text(f"{len(at) + 1}\n")
    (tmp_path / "nbest" / "log").mkdir()
    assert read(tmp_path / "nbest") == read(write(tmp_path / "whole"))


def test_parts_in_any_order(tmp_path):
    split(tmp_path / "nbest")
    for name, content in GOOD.items():  # an utterance's lines are in different parts
        lines = content.splitlines(keepends=True)
        (tmp_path / "nbest" / "archives.1" / name).write_text(lines[1])
        (tmp_path / "nbest" / "archives.2" / name).write_text(lines[2] + lines[0])
    assert read(tmp_path / "nbest") == read(write(tmp_path / "whole"))
    for number in range(1, 12):  # the tenth part comes after the ninth
        inner = tmp_path / "many" / f"archives.{number}"
        inner.mkdir(parents=True)
        for name in ("words_text", "acwt"):
            (inner / name).write_text(f"u{number}-1 {number}\n")
    assert [nbest.utt for nbest in read(tmp_path / "many")] == [f"u{n}" for n in range(1, 12)]


def test_costs_are_written_as_they_came(tmp_path):
    costs = {"acwt": "u-1 1\n", "lmwt.nolm": "u-1 0.3\n", "lmwt.withlm": "u-1 0.1\n"}
    (nbest,) = read(write(tmp_path / "a", words_text="u-1\n", **costs))
    assert nbest.hypotheses[0].lm_score == pytest.approx(0.2)
    write_nbest([nbest], tmp_path / "b")
    assert {name: (tmp_path / "b" / name).read_text() for name in costs} == costs


def test_a_list_has_a_hypothesis():
    with pytest.raises(ValueError, match="'u' has no hypothesis"):
        NBest("u", ())
