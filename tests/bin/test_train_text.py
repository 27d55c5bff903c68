"""`--train_text`, and the training text that an experiment keeps: test sentences in it are told."""

import json
import random
import shutil

import pytest
from command_lines import run
from tiny_training import words

from espnet_bayeslm.bin import interpolate

LEAKED = "stand in the training text"


def warnings(caplog):
    found = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    return [message for message in found if LEAKED in message]


@pytest.fixture
def texts(tmp_path):
    """Return training text and two test texts, the first of which stands in it."""
    rng = random.Random(0)

    def lines(count):
        return [" ".join(rng.choices("abcdefghij", k=rng.randint(8, 14))) for _ in range(count)]

    train, clean = lines(200), lines(40)
    for name, content in {"train": train, "leaked": train[:40], "clean": clean}.items():
        (tmp_path / name).write_text("\n".join(content) + "\n")
    return tmp_path


@pytest.mark.parametrize("tool", ["interpolate", "rescore"])
def test_a_text_that_is_given(texts, ngram, tool, caplog):
    rows = [
        {"utt": f"u{n}", "ref": line, "hypotheses": [{"text": line, "score": -1.0}]}
        for n, line in enumerate((texts / "leaked").read_text().splitlines())
    ]
    lists = texts / "lists.jsonl"
    lists.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for train in ("clean", "train"):
        given = {"ngram": ngram, "train_text": texts / train}
        if tool == "rescore":
            run(**given, nbest=lists, lmwt=1, output=texts / "out")
        else:
            interpolate.main(words(**given, text=texts / "leaked", output=texts / "weights.yaml"))
        assert len(warnings(caplog)) == (train == "train")
    assert "40 of 40 sentences" in warnings(caplog)[0]


def test_an_experiments_own_text(texts, point, caplog):
    exp = texts / "exp"
    shutil.copytree(point, exp)
    (exp / "data").mkdir(exist_ok=True)
    lines = (texts / "train").read_text().splitlines()
    keyed = "".join(f"train-{n:09d} {line}\n" for n, line in enumerate(lines, 1))
    (exp / "data" / "train.txt").write_text(keyed)
    for name in ("clean", "leaked"):
        command = {"text": texts / name, "lm": exp, "output": texts / "weights.yaml"}
        interpolate.main(words(**command))
        assert bool(warnings(caplog)) == (name == "leaked")
