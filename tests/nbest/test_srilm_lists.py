"""SRILM's N-best lists: log10, sentence marks, names of files."""

import gzip
import logging
import re

import pytest
from nbest_mutations import packed, write_files
from oracles.refused import check_refused

from espnet_bayeslm.nbest.formats import read_nbest
from espnet_bayeslm.utils.errors import InputError


def read(path):
    return list(read_nbest(path, "srilm"))


def write(path, text):
    """Write a list, gzipped where its name says so."""
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


@pytest.mark.parametrize("name", ["u.1", "u.1.score", "u.1.nbest", "u.1.gz", "u.1.score.gz"])
def test_the_id_is_the_files_name_without_known_endings(tmp_path, name):
    write(tmp_path / name, "-1 -2 1 a\n")
    assert [nbest.utt for nbest in read(tmp_path)] == ["u.1"]
    assert read(tmp_path / name) == read(tmp_path)


def test_where_there_are_score_files_the_others_are_left_and_it_is_said(tmp_path, caplog):
    write(tmp_path / "u.score", "-1 -2 1 a\n")
    write(tmp_path / "text", "u a\n")
    with caplog.at_level(logging.INFO):
        assert [nbest.utt for nbest in read(tmp_path)] == ["u"]
    assert "*.score are read, 1 others are not" in caplog.text


@pytest.mark.parametrize(
    "line, words",
    [
        ("-1 -2 4 <s> a b </s>", "a b"),  # lattice-tool counts the marks or does not
        ("-1 -2 2 <s> a b </s>", "a b"),
        ("-1 -2 2 a -pau- b -pau-", "a b"),  # ngram -rescore does not count pauses
        ("-1 -2 4 a -pau- b -pau-", "a b"),
        ("-1 -2 0 <s> </s>", ""),
        ("-1 -2 2 -pau- <s> a b </s> -pau-", "a b"),
        ("-1\t-2  2   a\tb ", "a b"),
    ],
)
def test_marks_and_pauses_are_no_words(tmp_path, line, words):
    write(tmp_path / "u", line + "\n")
    assert [hyp.words for hyp in read(tmp_path)[0].hypotheses] == [tuple(words.split())]


GOOD = "-1 -2 1 a\n"
BAD = [
    ({"u": ""}, r"u: no hypotheses"),
    ({"u": f"{GOOD}\n{GOOD}"}, r"u:2: '' is not `ascore"),
    ({"u": "NBestList1.0\n(-5) a b\n"}, r"u:1: 'NBestList1.0' is a Decipher list"),
    ({"u": "(-513) a b\n"}, r"u:1: '\(-513\) a b' is a Decipher list"),
    ({"u": "-1 -2\n"}, r"u:1: '-1 -2' is not `ascore"),
    ({"u": "-1 -2 1 a\n-1 -2 1 a b\n"}, r"u:2: nwords is 1, and there are 2 words"),
    ({"u": "-1 -2 3 a <s>\n"}, r"u:1: nwords is 3, and there are 2 words"),
    ({"u": "-1 -2 1.0 a\n"}, r"u:1: '-1 -2 1.0 a' is not `ascore"),
    ({"u": "x -2 1 a\n"}, r"u:1: 'x' stands where one number"),
    ({"u": "-1 -inf 1 a\n"}, r"u:1: '-inf' is not a finite number"),
    ({"u": "-1e308 -1 1 a\n"}, r"u:1: '-1e308' is too large a number"),  # in nats
    ({}, "no N-best lists"),
    ({"u/v": ""}, r"u: cannot be read \(Is a directory\)"),
    ({"u": GOOD, "u.score.Z": GOOD}, "compress"),
    ({"a b": GOOD}, "cannot be an utterance id"),
    ({"u": GOOD, "u.gz": packed({"u": GOOD.encode()})["u.gz"]}, r"u\.gz:1: .*'u' stands already"),
]


@pytest.mark.parametrize("files, message", BAD)
def test_bad_lists_are_one_error_with_file_and_line(tmp_path, files, message):
    folder = write_files(tmp_path / "lists", files) if files else tmp_path
    remedy = not re.search("cannot be read|no ", message)
    check_refused(lambda: read(folder), message, folder, remedy=remedy)


def test_names_that_are_no_ids(tmp_path):
    with pytest.raises(InputError, match="nosuch: not a folder of SRILM N-best lists"):
        read(tmp_path / "nosuch")
    with open(bytes(tmp_path) + b"/u\xff", "w") as f:
        f.write(GOOD)
    with pytest.raises(InputError, match="cannot be an utterance id"):
        read(tmp_path)
