"""`bayeslm score`: word errors of several systems, and the oracle of their lists."""

import json
import re

import pytest

from espnet_bayeslm.bin.score import condition_files, main
from espnet_bayeslm.evaluation.wer import oracle_errors, read_transcripts
from espnet_bayeslm.nbest.formats import read_nbest
from espnet_bayeslm.utils.errors import InputError


def write(path, texts):
    """Write a Kaldi `text`."""
    path.write_text("".join(f"{utt} {words}\n" for utt, words in texts.items()))
    return path


def test_several_conditions(tmp_path, capsys):
    near, far = {"m1": "a b c", "m2": "d e"}, {"n1": "f g", "n2": "a b c d"}
    outputs = {"x": [near, {"n1": "f", "n2": "a x c"}], "y": [{"m1": "", "m2": "d e"}, far]}
    write(tmp_path / "near", near)
    write(tmp_path / "far", far)
    options = ["--ref", f"near={tmp_path}/near", "--ref", f"far={tmp_path}/far"]
    for name, texts in outputs.items():
        for condition, text in zip(("near", "far"), texts, strict=True):
            path = write(tmp_path / f"{name}_{condition}", text)
            options += ["--hyp", f"{name}:{condition}={path}"]
    main([*options, "--output", f"{tmp_path}/out.json"])
    found = json.loads((tmp_path / "out.json").read_text())
    assert list(found) == ["x", "y", "significance", "conditions", "average_wer"]
    assert found["x"]["wer"] == pytest.approx(100 * 3 / 11)
    assert found["average_wer"] == {"x": 25.0, "y": 30.0}
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["WER", "%", "near", "far", "average", "pooled"] in rows
    assert ["x", "0.00", "50.00", "25.00", "27.27"] in rows


def test_first_pass_and_oracle_of_the_lists_of_a_named_condition(nbest, tmp_path, capsys):
    refs = read_transcripts(nbest / "dev.ref")
    lists = {item.utt: [hyp.words for hyp in item.hypotheses] for item in read_nbest(nbest / "dev")}
    options = ["--ref", f"dev={nbest}/dev.ref", "--nbest", f"{nbest}/dev"]
    main([*options, "--hyp", f"ref={nbest}/dev.ref", "--output", f"{tmp_path}/out.json"])
    found = json.loads((tmp_path / "out.json").read_text())
    assert list(found)[:3] == ["first pass", "ref", "oracle"] and found["ref"]["errors"] == 0
    fewest = oracle_errors(refs, lists)
    assert found["oracle"]["errors"] == fewest.errors > 0
    assert found["oracle"]["words"] == fewest.words
    first, own = capsys.readouterr().out.splitlines()[1:3]
    assert first.startswith("first pass ") and own.split()[:2] == ["ref", "0.00†"]


# --ref, --hyp and --nbest, with blanks between the values of each
CONDITIONS = [
    ("r", "", "", "nothing to score"),
    ("r", "x", "", "Give NAME=TEXT"),
    ("r", "=x", "", "Give NAME=TEXT"),
    ("r", "a=x a=x", "", "its own NAME"),
    ("r s", "", "", "each with its own CONDITION"),
    ("r", "", "far=x", "--nbest far=... has no --ref"),
    ("", "", "", "no references. Give --ref TEXT."),
    ("a=x a=y", "", "", "each with its own CONDITION"),
    ("a=x y", "", "", "each with its own CONDITION"),
    ("a=", "", "", "Give --ref CONDITION=PATH"),
    ("a=x b=y", "s=z", "", "no condition of --ref (a, b)"),
    ("a=x b=y", "s:c=z", "", "Give NAME:CONDITION=TEXT"),
    ("a=x b=y", "s:a=z s:a=z", "", "Give NAME:CONDITION=TEXT, each with its own NAME"),
    ("a=x b=y", "s:a=z", "", "--hyp s:b=... is missing"),
    ("a=x b=y", "", "a=z", "--nbest b=... is missing"),
    ("a=x b=y", "", "z", "Every system needs an output"),
]


@pytest.mark.parametrize("ref, hyp, nbest, message", CONDITIONS)
def test_conditions_that_cannot_be_used(ref, hyp, nbest, message):
    with pytest.raises(InputError, match=re.escape(message)):
        condition_files(ref.split(), hyp.split(), nbest.split())


def test_a_system_that_is_worse_than_the_first_pass_is_warned_of(nbest, tmp_path, caplog):
    lines = (nbest / "dev.ref").read_text().splitlines()
    (tmp_path / "bad").write_text("".join(f"{line.split()[0]} x\n" for line in lines))
    lists = ["--nbest", f"{nbest}/dev", "--hyp", f"bad={tmp_path}/bad"]
    main(["--ref", f"{nbest}/dev.ref", *lists, "--hyp", f"good={nbest}/dev.ref"])
    warnings = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert len(warnings) == 1 and warnings[0].startswith("bad is worse than the first pass: ")


# name -> reference, hypothesis, options, expected row of the table
COUNTED = {
    "characters": ("z1 我喜欢一本书\n", "z1 我喜欢一本数\n", ["--unit", "char"], "16.67 1 0 0 6"),
    "noise": (
        *("{ red / @ } kite (a-1)\n", "[laugh] red !SIL kite (a-1)\n"),
        *(["--ignore_words", "{files}/noise"], "0.00 0 0 0 2"),
    ),
}


@pytest.mark.parametrize("ref, hyp, options, row", COUNTED.values(), ids=COUNTED)
def test_how_errors_are_counted(tmp_path, capsys, ref, hyp, options, row):
    for name, text in (("ref", ref), ("hyp", hyp), ("noise", "[laugh]\n!SIL\n")):
        (tmp_path / name).write_text(text)
    filled = [word.format(files=tmp_path) for word in options]
    main(["--ref", f"{tmp_path}/ref", "--hyp", f"s={tmp_path}/hyp", *filled])
    header, found = (line.split() for line in capsys.readouterr().out.splitlines())
    assert found == ["s", *row.split()]
    assert header[0] == ("CER" if "char" in options else "WER")
