"""N-best lists of Kaldi, ESPnet and SRILM; one error for each thing that is bad."""

import logging
import re

import nbest_mutations
import pytest
import torch
from espnet2.fileio.datadir_writer import DatadirWriter
from nbest_mutations import packed, write_files
from oracles.refused import check_refused

from espnet_bayeslm.nbest.formats import read_nbest, write_nbest
from espnet_bayeslm.nbest.types import Hypothesis, NBest
from espnet_bayeslm.utils.errors import InputError


def read(path, format="kaldi"):
    return list(read_nbest(path, format))


def utts(path, format="kaldi"):
    return [nbest.utt for nbest in read(path, format)]


KALDI = {
    "words_text": "en-A_1-2-1 well i'm 3\nen-A_1-2-2\nen-A_1-1 yes\n",
    "acwt": "en-A_1-2-1 10.5\nen-A_1-2-2 1e1\nen-A_1-1 -3\n",
    "lmwt.nolm": "en-A_1-2-1 2\nen-A_1-2-2 0\nen-A_1-1 1\n",
    "lmwt.withlm": "en-A_1-2-1 7\nen-A_1-2-2 .5\nen-A_1-1 5\n",
}


def test_kaldi_by_hand(tmp_path):
    assert read(write_files(tmp_path, KALDI)) == [
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
    assert old in KALDI[name]
    return {name: KALDI[name].replace(old, new, 1)}


def rename(old, new):
    """Return the good archives with other keys."""
    return {name: content.replace(old, new) for name, content in KALDI.items()}


BAD_KALDI = [
    ({"words_text": None}, r"words_text: cannot be read"),
    ({"acwt": None}, r"acwt: cannot be read"),
    ({"lmwt.nolm": None}, r"lmwt\.nolm: missing"),
    ({name: "" for name in KALDI}, r"words_text: no hypotheses"),
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
        {"lmwt.withlm": KALDI["lmwt.withlm"] + "new-1 3\n"},
        r"words_text: 1 of the 4 keys of lmwt\.withlm .* 'new-1' \(lmwt\.withlm:4\)",
    ),
    (change("acwt", " 10.5", ""), r"acwt:1: '' stands where one number"),
    (change("acwt", "10.5", "nan"), r"acwt:1: 'nan' is not a finite number"),
    (change("lmwt.withlm", " .5", " 1e999"), r"lmwt\.withlm:2: '1e999' is not a finite"),
    ({"words_text": b"a-1 \xff\n"}, r"words_text:1: not UTF-8"),
    ({"acwt.gz": b""}, r"acwt: acwt\.gz is there too"),
    ({"archives.1/acwt": ""}, r"holds words_text and archives\.1"),
]
PARTS = nbest_mutations.split({name: text.encode() for name, text in KALDI.items()}, (2,))
BAD_KALDI_PARTS = [
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


@pytest.mark.parametrize("at, zipped", [((), False), ((2,), True)])
def test_archives_split_over_folders(tmp_path, at, zipped):
    files = nbest_mutations.split({name: text.encode() for name, text in KALDI.items()}, at)
    write_files(tmp_path / "nbest", packed(files) if zipped else files)
    (tmp_path / "nbest" / "num_jobs").write_text(f"{len(at) + 1}\n")
    (tmp_path / "nbest" / "log").mkdir()
    assert read(tmp_path / "nbest") == read(write_files(tmp_path / "whole", KALDI))


def test_parts_in_any_order(tmp_path):
    for name, content in KALDI.items():  # an utterance's lines are in different parts
        first, second, third = content.splitlines(keepends=True)
        parts = {f"archives.1/{name}": second, f"archives.2/{name}": third + first}
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


ESPNET = {
    "output.1/1best_recog/text": "u1-1 well i'm 3\nu2 \n",
    "output.1/1best_recog/score": "u1-1 tensor(-10.5000)\nu2 0.0\n",
    "output.1/2best_recog/text": "u1-1 well i am\n",
    "output.1/2best_recog/score": "u1-1 tensor(-1.1250e+01, device='cuda:0')\n",
    "output.2/1best_recog/text": "u1-2 yes\n",
    "output.2/1best_recog/score": "u1-2 -3.25\n",
}
ESPNET_LISTS = [
    NBest(
        "u1-1", (Hypothesis(("well", "i'm", "3"), -10.5), Hypothesis(("well", "i", "am"), -11.25))
    ),
    NBest("u2", (Hypothesis((), 0.0),)),
    NBest("u1-2", (Hypothesis(("yes",), -3.25),)),
]


def test_espnet_by_hand(tmp_path):
    assert read(write_files(tmp_path / "logdir", ESPNET), "espnet") == ESPNET_LISTS
    assert read(tmp_path, "espnet") == ESPNET_LISTS  # the decode directory, whose logdir it is
    assert read(tmp_path / "logdir" / "output.1", "espnet") == ESPNET_LISTS[:2]


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


TEXT1, SCORE1, TEXT2, SCORE2, *_ = ESPNET
BAD_ESPNET = [
    ({TEXT1: None}, r"1best_recog/text: cannot be read"),
    ({TEXT1: None, SCORE1: None}, r"output\.1: 1best_recog is missing, and 2best_recog is there"),
    ({"output.4/1best_recog/text": "u4\n"}, r"output\.3 is missing, and output\.4 is there"),
    ({"output.3/asr_inference.3.log": ""}, r"output\.3: no 1best_recog"),
    (
        {SCORE1: "u1-1 -1\n"},
        r"1best_recog/score: 1 of the 2 keys of text are missing, the first 'u2' \(text:2\)",
    ),
    (
        {TEXT2: ""},
        r"2best_recog/text: 1 of the 1 keys of score are missing, the first 'u1-1' \(score:1\)",
    ),
    (
        {TEXT2: "u3 a\n", SCORE2: "u3 -1\n"},
        r"1best_recog/text: 1 of the 1 keys of text .* 'u3' \(2best_recog/text:1\)",
    ),
    (
        {TEXT1: ESPNET[TEXT1] + "u2 a\n"},
        r"1best_recog/text:3: the key 'u2' stands already in line 2",
    ),
    (
        {
            name: content.replace("u1-2", "u2")
            for name, content in ESPNET.items()
            if "put.2" in name
        },
        r"output\.2/1best_recog/text:1: the utterance 'u2' stands already in .*output\.1",
    ),
    ({SCORE1: "u1-1 a\nu2 1\n"}, r"score:1: 'a' stands where one num"),
    ({SCORE1: "u1-1 tensor(nan)\nu2 1\n"}, r"score:1: 'nan' is not a finite"),
    (
        {SCORE1: "u1-1 tensor([1., 2.])\nu2 1\n"},
        r"score:1: 'tensor\(\[1\., 2\.\]\)' stands where one number",
    ),
    ({name: "" for name in ESPNET}, r": no hypotheses"),
]


def test_what_is_no_decode_directory(tmp_path):
    with pytest.raises(InputError, match="nosuch: not an ESPnet decode directory"):
        read(tmp_path / "nosuch", "espnet")
    with pytest.raises(InputError, match=r"one of output\.1 and 1best_recog .* there is neither"):
        read(tmp_path, "espnet")
    write_files(tmp_path, ESPNET)
    (tmp_path / "1best_recog").mkdir()
    with pytest.raises(InputError, match="there is both"):
        read(tmp_path, "espnet")


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
    ({"u": SRILM, "u.score.Z": SRILM}, "compress"),
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
    (tmp_path / "u").write_text(line + "\n")
    assert [hyp.words for hyp in read(tmp_path, "srilm")[0].hypotheses] == [tuple(words.split())]


def test_names_that_are_no_ids(tmp_path):
    with pytest.raises(InputError, match="nosuch: not a folder of SRILM N-best lists"):
        read(tmp_path / "nosuch", "srilm")
    with open(bytes(tmp_path) + b"/u\xff", "w") as f:
        f.write(SRILM)
    with pytest.raises(InputError, match="cannot be an utterance id"):
        read(tmp_path, "srilm")


BAD = [
    *[("kaldi", {**KALDI, **changes}, message) for changes, message in BAD_KALDI],
    *[("kaldi", {**PARTS, **changes}, message) for changes, message in BAD_KALDI_PARTS],
    *[("espnet", {**ESPNET, **changes}, message) for changes, message in BAD_ESPNET],
    *[("srilm", files, message) for files, message in BAD_SRILM],
]


@pytest.mark.parametrize("format, files, message", BAD)
def test_bad_lists_are_one_error_with_file_and_line_or_key(tmp_path, format, files, message):
    (tmp_path / "lists").mkdir()
    folder = write_files(tmp_path / "lists", files)
    remedy = not re.search("cannot be read|no hypotheses|no N-best lists", message)
    check_refused(lambda: read(folder, format), message, folder, remedy=remedy)
