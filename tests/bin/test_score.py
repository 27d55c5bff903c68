"""`bayeslm score`: word errors of several systems, and the oracle of their lists."""

import inspect
import json

import pytest
from alignment_naive import edit_distance

from espnet_bayeslm.bin.score import get_parser, main, score

REF = {"s-u1": "a b c", "s-u2": "d e", "s-u3": ""}
GOOD = {"s-u1": "a b c", "s-u2": "d", "s-u3": "x"}
POOR = {"s-u3": "", "s-u2": "e d", "s-u1": "c"}


def write(path, texts):
    """Write a Kaldi `text`, or a trn where the name says so."""
    trn = path.name.endswith("trn")
    lines = (f"{words} ({utt})" if trn else f"{utt} {words}" for utt, words in texts.items())
    path.write_text("".join(line.strip() + "\n" for line in lines))
    return path


@pytest.fixture
def files(tmp_path):
    write(tmp_path / "ref", REF)
    write(tmp_path / "good", GOOD)
    write(tmp_path / "poor.trn", POOR)
    return tmp_path


def test_options_are_the_parameters_of_the_function():
    known = {action.dest for action in get_parser()._actions}
    assert known - {"help", "config", "log_level"} == set(inspect.signature(score).parameters)


def test_several_systems(files, capsys):
    systems = ["--hyp", f"good={files}/good", "--hyp", f"poor={files}/poor.trn"]
    main(["--ref", f"{files}/ref", *systems, "--output", f"{files}/new/out.json"])
    found = json.loads((files / "new" / "out.json").read_text())
    assert found["good"] == {
        "substitutions": 0, "deletions": 1, "insertions": 1, "words": 5, "errors": 2, "wer": 40.0,
    }  # fmt: skip
    for name, hyps in (("good", GOOD), ("poor", POOR)):
        errors = sum(edit_distance(REF[utt].split(), hyps[utt].split()) for utt in REF)
        assert found[name]["errors"] == errors
        assert found[name]["wer"] == pytest.approx(100 * errors / 5)
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [row[0] for row in rows[1:]] == ["good", "poor"]
    assert rows[1][1:] == ["40.00", "0", "1", "1", "5"]


def test_the_oracle_of_lists_by_brute_force(nbest, tmp_path):
    refs = dict(line.split(maxsplit=1) for line in (nbest / "dev.ref").read_text().splitlines())
    best = {}
    for line in (nbest / "dev" / "words_text").read_text().splitlines():
        key, *words = line.split()
        utt = key.rpartition("-")[0]
        errors = edit_distance(refs[utt].split(), words)
        best[utt] = min(best.get(utt, errors), errors)
    lists = ["--nbest", f"{nbest}/dev", "--hyp", f"ref={nbest}/dev.ref"]
    main(["--ref", f"{nbest}/dev.ref", *lists, "--output", f"{tmp_path}/out.json"])
    found = json.loads((tmp_path / "out.json").read_text())
    assert list(found) == ["ref", "oracle"] and found["ref"]["errors"] == 0
    assert found["oracle"]["errors"] == sum(best.values()) > 0
    assert found["oracle"]["words"] == sum(len(ref.split()) for ref in refs.values())


BAD = {
    "nothing": ([], "nothing to score"),
    "no name": (["--hyp", "{files}/good"], "Give NAME=TEXT"),
    "empty name": (["--hyp", "={files}/good"], "Give NAME=TEXT"),
    "one name twice": (["--hyp", "a={files}/good", "--hyp", "a={files}/good"], "its own NAME"),
    "missing file": (["--hyp", "a=nosuch"], "nosuch: cannot be read"),
    "missing utterance": (
        ["--hyp", "a={files}/short"],
        "/short: 2 utterances, 3 in {files}/ref: 1 utterances have no hypothesis (first: 's-u3')",
    ),
    "missing reference": (
        ["--hyp", "a={files}/long"],
        "/long: 4 utterances, 3 in {files}/ref: 1 utterances have no reference (first: 'new')",
    ),
    "malformed trn": (["--hyp", "a={files}/bad.trn"], "/bad.trn:1: got 'a b c' where"),
    "no lists": (["--nbest", "{files}"], "words_text: cannot be read"),
    "unknown format": (["--nbest", "{files}", "--nbest_format", "htk"], "unknown N-best format"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line_and_writes_nothing(files, fails, name):
    options, message = BAD[name]
    write(files / "short", dict(list(GOOD.items())[:2]))
    write(files / "long", {**GOOD, "new": "a"})
    (files / "bad.trn").write_text("a b c\n")
    before = {path.name for path in files.iterdir()}
    options = [part.format(files=files) for part in options]
    error = fails(main, ["--ref", files / "ref", *options, "--output", files / "out" / "x.json"])
    assert error.startswith("bayeslm score: error: ") and message.format(files=files) in error
    assert {path.name for path in files.iterdir()} == before


def test_references_that_cannot_be_used(files, fails):
    (files / "ref").write_text("u1 a\nu1 b\n")
    error = fails(main, ["--ref", files / "ref", "--hyp", f"a={files}/good"])
    assert "ref:2: the key 'u1' stands already in line 1" in error
