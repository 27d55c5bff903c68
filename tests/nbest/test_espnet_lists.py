"""ESPnet's decode directories, as asr_inference writes them."""

import re

import pytest
import torch
from espnet2.fileio.datadir_writer import DatadirWriter
from nbest_mutations import write_files
from oracles.refused import check_refused

from espnet_bayeslm.nbest.formats import read_nbest
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
    return write_files(folder, {**GOOD, **dict(changes)})


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


TEXT1, SCORE1, TEXT2, SCORE2, *_ = GOOD
BAD = [
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
    ({TEXT1: GOOD[TEXT1] + "u2 a\n"}, r"1best_recog/text:3: the key 'u2' stands already in line 2"),
    (
        {name: content.replace("u1-2", "u2") for name, content in GOOD.items() if "put.2" in name},
        r"output\.2/1best_recog/text:1: the utterance 'u2' stands already in .*output\.1",
    ),
    ({SCORE1: "u1-1 a\nu2 1\n"}, r"score:1: 'a' stands where one num"),
    ({SCORE1: "u1-1 tensor(nan)\nu2 1\n"}, r"score:1: 'nan' is not a finite"),
    (
        {SCORE1: "u1-1 tensor([1., 2.])\nu2 1\n"},
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
