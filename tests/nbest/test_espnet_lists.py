"""ESPnet's decode directories, as asr_inference writes them."""

import gzip
import re

import pytest
import torch
from espnet2.fileio.datadir_writer import DatadirWriter
from oracles.refused import check_refused

from espnet_bayeslm.nbest.formats import read_nbest, write_nbest
from espnet_bayeslm.nbest.types import Hypothesis, NBest
from espnet_bayeslm.utils.errors import InputError

GOOD = {
    "output.1/1best_recog/text": "u1-1 well i'm 3\nu2 \n",
    "output.1/1best_recog/score": "u1-1 tensor(-10.5000)\nu2 0.0\n",
    "output.1/2best_recog/text": "u1-1 well i am\n",
    "output.1/2best_recog/score": "u1-1 tensor(-1.1250e+01, device='cuda:0')\n",
    "output.2/1best_recog/text": "u1-2 yes\n",
    "output.2/1best_recog/score": "u1-2 -3.25\n",
}
LISTS = [
    NBest(
        "u1-1", (Hypothesis(("well", "i'm", "3"), -10.5), Hypothesis(("well", "i", "am"), -11.25))
    ),
    NBest("u2", (Hypothesis((), 0.0),)),
    NBest("u1-2", (Hypothesis(("yes",), -3.25),)),
]


def write(folder, changes=()):
    """Write the good directory, with changes (a None is a file that is not there)."""
    for name, content in {**GOOD, **dict(changes)}.items():
        if content is not None:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(content)
    return folder


def read(folder):
    return list(read_nbest(folder, "espnet"))


def test_by_hand(tmp_path):
    assert read(write(tmp_path / "logdir")) == LISTS
    assert read(tmp_path) == LISTS  # the decode directory, whose logdir it is
    assert read(tmp_path / "logdir" / "output.1") == LISTS[:2]


def test_what_espnets_own_writer_writes(tmp_path):
    double = torch.tensor(-0.001, dtype=torch.float64, requires_grad=True) * 2
    scores = [torch.tensor(-12.5), double, -3.0]
    with DatadirWriter(tmp_path) as writer:
        for n, score in enumerate(scores, 1):
            writer[f"{n}best_recog"]["token"]["u"] = "▁a ▁b"
            writer[f"{n}best_recog"]["token_int"]["u"] = "3 4"
            writer[f"{n}best_recog"]["score"]["u"] = str(score)
            writer[f"{n}best_recog"]["text"]["u"] = "a b"
    (nbest,) = read(tmp_path)
    assert [hyp.am_score for hyp in nbest.hypotheses] == [-12.5, -0.002, -3.0]


def test_lines_in_any_order_and_zipped(tmp_path):
    write(tmp_path)
    for name, content in GOOD.items():
        (tmp_path / name).unlink()
        lines = content.splitlines(keepends=True)[:: 1 if name.endswith("score") else -1]
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress("".join(lines).encode()))
    assert read(tmp_path) == [LISTS[1], LISTS[0], LISTS[2]]


def test_more_ranks_than_files_may_be_open(tmp_path):
    hypotheses = tuple(Hypothesis((str(n),), -float(n)) for n in range(700))
    lists = [NBest("u1", hypotheses), NBest("u2", hypotheses[:3])]
    write_nbest(lists, tmp_path, format="espnet")
    assert read(tmp_path) == lists


BEST1, BEST2 = "output.1/1best_recog", "output.1/2best_recog"
BAD = [
    ({f"{BEST1}/text": None}, r"1best_recog/text: cannot be read"),
    ({f"{BEST2}/score": None}, r"2best_recog/score: cannot be read"),
    (
        {f"{BEST1}/text": None, f"{BEST1}/score": None},
        r"output\.1: 1best_recog is missing, and 2best_recog is there",
    ),
    (
        {"output.1/4best_recog/text": "u1-1\n"},
        r"output\.1: 3best_recog is missing, and 4best_recog is there",
    ),
    (
        {"output.4/1best_recog/text": "u4\n"},
        r"output\.3 is missing, and output\.4 is there",
    ),
    ({"output.3/asr_inference.3.log": ""}, r"output\.3: no 1best_recog"),
    (
        {f"{BEST1}/score": "u1-1 -1\n"},
        r"1best_recog/score: 1 of the 2 keys of text are missing, the first 'u2' \(text:2\)",
    ),
    (
        {f"{BEST2}/text": ""},
        r"2best_recog/text: 1 of the 1 keys of score are missing, the first 'u1-1' \(score:1\)",
    ),
    (
        {f"{BEST2}/text": "u3 a\n", f"{BEST2}/score": "u3 -1\n"},
        r"1best_recog/text: 1 of the 1 keys of text .* 'u3' \(2best_recog/text:1\)",
    ),
    (
        {f"{BEST1}/text": GOOD[f"{BEST1}/text"] + "u2 a\n"},
        r"1best_recog/text:3: the key 'u2' stands already in line 2",
    ),
    (
        {name: GOOD[name] * 2 for name in (f"{BEST1}/text", f"{BEST1}/score")},
        r"1best_recog/text:3: the key 'u1-1' stands already in line 1",
    ),
    (
        {name: content.replace("u1-2", "u2") for name, content in GOOD.items() if "put.2" in name},
        r"output\.2/1best_recog/text:1: the utterance 'u2' stands already in .*output\.1",
    ),
    ({f"{BEST1}/text": "u1-1\n\nu2\n"}, r"text:2: an empty line"),
    ({f"{BEST1}/score": "u1-1 a\nu2 1\n"}, r"score:1: 'a' stands where one num"),
    ({f"{BEST1}/score": "u1-1 tensor(nan)\nu2 1\n"}, r"score:1: 'nan' is not a finite"),
    ({f"{BEST1}/score": "u1-1 tensor(-inf)\nu2 1\n"}, r"score:1: '-inf' is not a finite"),
    (
        {f"{BEST1}/score": "u1-1 tensor([1., 2.])\nu2 1\n"},
        r"score:1: 'tensor\(\[1\., 2\.\]\)' stands where one number",
    ),
    ({name: "" for name in GOOD}, r": no hypotheses"),
]


@pytest.mark.parametrize("changes, message", BAD)
def test_bad_directories_are_one_error_with_file_and_line_or_key(tmp_path, changes, message):
    folder = write(tmp_path / "logdir", changes)
    remedy = not re.search("cannot be read|no hypotheses", message)
    check_refused(lambda: read(folder), message, folder, remedy=remedy)


def test_what_is_no_decode_directory(tmp_path):
    with pytest.raises(InputError, match="nosuch: not an ESPnet decode directory"):
        read(tmp_path / "nosuch")
    with pytest.raises(InputError, match=r"one of output\.1 and 1best_recog .* there is neither"):
        read(tmp_path)
    write(tmp_path)
    (tmp_path / "1best_recog").mkdir()
    with pytest.raises(InputError, match="there is both"):
        read(tmp_path)
