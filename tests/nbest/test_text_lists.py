"""N-best lists of Kaldi, ESPnet and SRILM; one error for each thing that is bad."""

import logging
import re

import numpy as np
import pytest
import torch
from espnet2.fileio.datadir_writer import DatadirWriter
from nbest_mutations import ESPNET, KALDI, KINDS, hyp, packed, split, write_files
from oracles.refused import check_refused

from espnet_bayeslm.nbest.formats import read_nbest, write_nbest
from espnet_bayeslm.nbest.types import NBest
from espnet_bayeslm.utils.errors import InputError


def read(path, format="kaldi"):
    return list(read_nbest(path, format))


def utts(path, format="kaldi"):
    return [nbest.utt for nbest in read(path, format)]


def test_kaldi_by_hand(tmp_path):
    umlaut = hyp("ü", 3, -5.5, -1.5)
    assert read(write_files(tmp_path, KALDI)) == [
        NBest("a-1", (hyp("well i'm 3", -10.5, -9.25, 0), hyp("", -10, -8, 0), umlaut)),
        NBest("a", (hyp("x", -0.5, -4, -2), hyp("x-1 yes", -7, -5, 0))),
        NBest("é", (hyp("-1", 0, -4, 0),)),
    ]


def change(name, old, new):
    """Return one of the good files with a line changed."""
    content = (KALDI | ESPNET)[name]
    assert old in content
    return {name: content.replace(old, new, 1)}


def rename(old, new):
    """Return the good archives with other keys."""
    return {name: content.replace(old, new) for name, content in KALDI.items()}


BAD_KALDI = [
    ({"words_text": None}, r"no words_text in it"),
    ({"acwt": None}, r"acwt: cannot be read"),
    ({"lmwt.nolm": None}, r"lmwt\.nolm: missing"),
    ({name: "" for name in KALDI}, r"words_text: no hypotheses"),
    (change("acwt", "a-1 ", "\na-1 "), r"acwt:4: an empty line"),
    (rename("é-1", "utterance"), r"words_text:6: the key 'utterance' is not of the form"),
    (rename("a-1-3", "a-1-4"), r"words_text:3: the hypothesis 'a-1-3' is missing"),
    (rename("é-1", "é-7"), r"words_text:6: the hypothesis 'é-1' is missing"),
    (change("acwt", "a-1-3", "a-1-1"), r"acwt:3: the key .* stands already in line 1"),
    (change("acwt", "a-1-2 1e1\n", ""), r"acwt: 1 of the 6 .* 'a-1-2' \(words_text:2\)"),
    (change("lmwt.withlm", " 5\n", " 5\nx-1 3\n"), r"words_text: 1 of the 7 .* \(lmwt\.withlm:6\)"),
    (change("acwt", " 10.5", ""), r"acwt:1: '' stands where one number"),
    (change("acwt", "10.5", "nan"), r"acwt:1: 'nan' is not a finite number"),
    (change("lmwt.withlm", " 8", " 1e999"), r"lmwt\.withlm:2: '1e999' is not a finite"),
    ({"words_text": b"a-1 \xff\n"}, r"words_text:1: not UTF-8"),
    ({"acwt.gz": b""}, r"acwt: acwt\.gz is there too"),
    ({"archives.1/acwt": ""}, r"holds words_text and archives\.1"),
]
BAD_KALDI_PARTS = [
    ({"num_jobs": "3\n"}, r"num_jobs: says '3', and there are 2 archives"),
    ({"archives.2/lmwt.withlm": None}, r"\.2/lmwt\.withlm: missing, .*\.1/lmwt\.withlm is there"),
    ({"archives.4/acwt": ""}, r"archives\.3 is missing, and archives\.4 is there"),
    ({"archives.2/acwt": "a-1 high\na-2 1\né-1 1\n"}, r"archives\.2/acwt:1: 'high' stands"),
    ({"archives.2/acwt": "a-1 1\na-2 1\né-1 1\nx-2 2\n"}, r"\.2/words_text: 1 of the 7 .* 'x-2' "),
    ({"archives.2/acwt": "a-1-1 2\n"}, r"\.2/acwt:1: .* line 1 of .*archives\.1/acwt"),
]


@pytest.mark.parametrize("at, zipped", [((), False), ((2,), True)])
def test_archives_split_over_folders(tmp_path, at, zipped):
    files = split(KINDS["kaldi"][1], at)
    write_files(tmp_path / "nbest", packed(files) if zipped else files)
    (tmp_path / "nbest" / "num_jobs").write_text(f"{len(at) + 1}\n")
    (tmp_path / "nbest" / "log").mkdir()
    assert read(tmp_path / "nbest") == read(write_files(tmp_path / "whole", KALDI))


def test_parts_in_any_order(tmp_path):
    for name, content in KALDI.items():  # an utterance's lines are in different parts
        lines = content.splitlines(keepends=True)
        first, second = ("".join(lines[n::2]) for n in (0, 1))
        parts = {f"archives.1/{name}": second, f"archives.2/{name}": first}
        write_files(tmp_path / "nbest", parts)
    assert read(tmp_path / "nbest") == read(write_files(tmp_path / "whole", KALDI))
    for number in range(1, 12):  # the tenth part comes after the ninth
        line = f"u{number}-1 {number}\n"
        write_files(tmp_path / f"many/archives.{number}", {"words_text": line, "acwt": line})
    assert utts(tmp_path / "many") == [f"u{n}" for n in range(1, 12)]


def test_costs_are_written_as_they_came(tmp_path):
    costs = {"acwt": "u-1 1\n", "lmwt.nolm": "u-1 0.3\n", "lmwt.withlm": "u-1 0.1\n"}
    (nbest,) = read(write_files(tmp_path / "a", {"words_text": "u-1\n", **costs}))
    assert nbest.hypotheses[0].lm_score == pytest.approx(0.2)
    write_nbest([nbest], tmp_path / "b")
    assert {name: (tmp_path / "b" / name).read_text() for name in costs} == costs
    with pytest.raises(ValueError, match="'u' has no hypothesis"):
        NBest("u", ())


ESPNET_LISTS = [
    NBest("a-1", (hyp("well i'm 3", -10.5), hyp("", -11.0))),
    NBest("b_01", (hyp("x", -0.5),)),
    NBest("é", (hyp("", 0.0), hyp("-1", -3.0))),
    NBest("c", (hyp("yes", -3.25),)),
    NBest("d", (hyp("no no", -3.5),)),
]


def test_espnet_by_hand(tmp_path):
    assert read(write_files(tmp_path / "logdir", ESPNET), "espnet") == ESPNET_LISTS
    assert read(tmp_path, "espnet") == ESPNET_LISTS  # the decode directory, whose logdir it is
    assert read(tmp_path / "logdir" / "output.1", "espnet") == ESPNET_LISTS[:3]


def test_what_espnets_own_writer_writes(tmp_path):
    double = torch.tensor(-0.001, dtype=torch.float64, requires_grad=True) * 2
    scores = [torch.tensor(-12.5), double, -3.0]
    with DatadirWriter(tmp_path) as writer:
        for n, score in enumerate(scores, 1):
            writer[f"{n}best_recog"]["token"]["u"] = "▁a ▁b"
            writer[f"{n}best_recog"]["token_int"]["u"] = "3 4"
            writer[f"{n}best_recog"]["score"]["u"] = str(score)
            writer[f"{n}best_recog"]["text"]["u"] = "a b"
    (nbest,) = read(tmp_path, "espnet")
    assert [hyp.am_score for hyp in nbest.hypotheses] == [-12.5, -0.002, -3.0]


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64, float, torch.tensor])
@pytest.mark.parametrize("show", [str, repr, lambda score: repr(np.array(float(score)))])
def test_scores_as_python_prints_them(tmp_path, kind, show):
    score = show(kind(-3.5))
    write_files(tmp_path, {"1best_recog/text": "u a\n", "1best_recog/score": f"u {score}\n"})
    assert read(tmp_path, "espnet") == [NBest("u", (hyp("a", -3.5),))]


PRINTED = ["np.float64(-3.0)", "numpy.float32(-3.0)", "float64(-3)", "tensor([-3.])", "array(-3.)"]
PRINTED += ["np.int64(-3)", "tensor( -3.)"]


@pytest.mark.parametrize("text", PRINTED)
def test_numbers_that_other_versions_print(tmp_path, text):
    write_files(tmp_path, {"1best_recog/text": "u a\n", "1best_recog/score": f"u {text}\n"})
    assert read(tmp_path, "espnet") == [NBest("u", (hyp("a", -3.0),))]


TEXT1, SCORE1, TEXT2, SCORE2, TEXT3, SCORE3 = ESPNET
BAD_ESPNET = [
    ({TEXT1: None}, r"1best_recog/text: cannot be read"),
    ({TEXT1: None, SCORE1: None}, r"output\.1: 1best_recog is missing, and 2best_recog is there"),
    ({"output.4/1best_recog/text": "u4\n"}, r"output\.3 is missing, and output\.4 is there"),
    ({"output.3/asr_inference.3.log": ""}, r"output\.3: no 1best_recog"),
    (change(SCORE1, "b_01 -.5\n", ""), r"score: 1 of the 3 keys of text .* 'b_01' \(text:2\)"),
    ({TEXT2: ""}, r"text: 2 of the 2 keys of score are missing, the first 'a-1' \(score:1\)"),
    ({TEXT2: "u3\n", SCORE2: "u3 -1\n"}, r"1best_recog/text: 1 of .* 'u3' \(2best_recog/text:1\)"),
    (change(TEXT1, "é", "b_01 a\né"), r"text:3: the key 'b_01' stands already in line 2"),
    ({TEXT3: "é\n", SCORE3: "é 1\n"}, r"\.2/1best_recog/text:1: .* stands already in .*put\.1"),
    (change(SCORE1, "tensor(-10.5000)", "a"), r"score:1: 'a' stands where one num"),
    (change(SCORE1, "-10.5000", "nan"), r"score:1: 'tensor\(nan\)' is not a finite"),
    (change(SCORE1, "tensor(-10.5000)", "exp(-1.)"), r"score:1: 'exp\(-1\.\)' stands where"),
    (change(SCORE1, "tensor(-10.5000)", "np.float64(nan)"), r"score:1: .* is not a finite"),
    (change(SCORE1, "-10.5000", "[1., 2.]"), r"score:1: 'tensor\(\[1\., 2\.\]\)' stands"),
    ({name: "" for name in ESPNET}, r": no hypotheses"),
    ({"1best_recog/text": "u a\n"}, r"one of output\.1 and 1best_recog .* there is both"),
]
SRILM = "-1 -2 1 a\n"
BAD_SRILM = [
    ({"u": ""}, r"u: no hypotheses"),
    ({"u": f"{SRILM}\n{SRILM}"}, r"u:2: '' is not `ascore"),
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
    ({"u": SRILM, "u.score.Z": b"\x1f\x9d"}, r"u\.score\.Z: compressed by compress"),
    ({"a b": SRILM}, "cannot be an utterance id"),
    ({"u": SRILM, "u.gz": packed({"u": SRILM.encode()})["u.gz"]}, r"u\.gz:1: .*'u' stands already"),
]


@pytest.mark.parametrize("name", ["u.1", "u.1.score", "u.1.nbest", "u.1.gz", "u.1.score.gz"])
def test_the_id_is_the_files_name_without_known_endings(tmp_path, name):
    plain = {name.removesuffix(".gz"): SRILM.encode()}
    write_files(tmp_path, packed(plain) if name.endswith(".gz") else plain)
    assert utts(tmp_path, "srilm") == ["u.1"]
    assert read(tmp_path / name, "srilm") == read(tmp_path, "srilm")


def test_where_there_are_score_files_the_others_are_left_and_it_is_said(tmp_path, caplog):
    write_files(tmp_path, {"u.score": SRILM, "text": "u a\n"})
    with caplog.at_level(logging.INFO):
        assert utts(tmp_path, "srilm") == ["u"]
    assert "*.score are read, 1 others are not" in caplog.text


MARKED = [
    ("-1 -2 4 <s> a b </s>", "a b"),  # lattice-tool counts the marks or does not
    ("-1 -2 2 <s> a b </s>", "a b"),
    ("-1 -2 2 a -pau- b -pau-", "a b"),  # ngram -rescore does not count pauses
    ("-1 -2 4 a -pau- b -pau-", "a b"),
    ("-1 -2 0 <s> </s>", ""),
    ("-1 -2 2 -pau- <s> a b </s> -pau-", "a b"),
    ("-1\t-2  2   a\tb ", "a b"),
]


@pytest.mark.parametrize("line, words", MARKED)
def test_marks_and_pauses_are_no_words(tmp_path, line, words):
    (tmp_path / "u").write_text(line + "\n")
    assert [hyp.words for hyp in read(tmp_path, "srilm")[0].hypotheses] == [tuple(words.split())]


def test_names_that_are_no_ids(tmp_path):
    with open(bytes(tmp_path) + b"/u\xff", "w") as f:
        f.write(SRILM)
    with pytest.raises(InputError, match="cannot be an utterance id"):
        read(tmp_path, "srilm")


BAD = [
    *[("kaldi", {**KALDI, **changes}, message) for changes, message in BAD_KALDI],
    *[("kaldi", {**KINDS["kaldi split"][1], **changes}, m) for changes, m in BAD_KALDI_PARTS],
    ("espnet", {}, r"one of output\.1 and 1best_recog .* there is neither"),
    *[("espnet", {**ESPNET, **changes}, message) for changes, message in BAD_ESPNET],
    *[("srilm", files, message) for files, message in BAD_SRILM],
]


@pytest.mark.parametrize("format, files, message", BAD)
def test_bad_lists_are_one_error_with_file_and_line_or_key(tmp_path, format, files, message):
    (tmp_path / "lists").mkdir()
    folder = write_files(tmp_path / "lists", files)
    remedy = not re.search("cannot be read|no hypotheses|no N-best lists", message)
    check_refused(lambda: read(folder, format), message, folder, remedy=remedy)
