"""Tables and JSON of word errors, from results that are known."""

import dataclasses
import io
import json

import pytest

from espnet_bayeslm.evaluation.comparison import Mapsswe, Scores, SystemPair, WerDifference
from espnet_bayeslm.evaluation.wer import ErrorCounts
from espnet_bayeslm.report import table
from espnet_bayeslm.report.score_results import RESERVED, print_scores, scores_json


def result(z, errors_b, words=100):
    """Return the results of A (20 errors), B and an oracle, with this Z."""
    pair = SystemPair(
        "a", "b", Mapsswe(30, z / 10, 1.5, z, 0.04), WerDifference(0.05, -0.001, 0.1234, 0.975)
    )
    counts = {"a": 20, "b": errors_b, "oracle": 3}
    return Scores({n: ErrorCounts(e, 0, 0, words) for n, e in counts.items()}, [pair])


def printed(capsys, conditions, pooled, baseline):
    print_scores(conditions, pooled, baseline=baseline)
    return [line.split() for line in capsys.readouterr().out.splitlines()]


def test_one_condition(capsys):
    scores = result(2.5, 15)
    lines = printed(capsys, {"": scores}, scores, "a")
    assert lines[0] == ["WER", "%", "sub", "del", "ins", "words"]
    assert [line[:2] for line in lines[1:4]] == [
        ["a", "20.00"],
        ["b", "15.00†"],
        ["oracle", "3.00"],
    ]
    assert lines[6][:3] == ["a", "b†", "+5.00"]
    assert lines[6][3:6] == ["-0.10", "to", "+12.34"]
    assert lines[6][6:] == ["0.975", "30", "+0.2500", "+2.500", "0.04"]
    assert " ".join(lines[-1]).startswith("† fewer, ‡ more errors than a:")


@pytest.mark.parametrize(
    "z, baseline, marks",
    [(1.96, "a", {}), (2, "a", {"b": "†"}), (-2, "b", {"a": "†"}), (-2, "a", {"b": "‡"})],
)
def test_daggers_mark_what_is_better_than_the_baseline(capsys, z, baseline, marks):
    scores = result(z, 15)
    lines = printed(capsys, {"": scores}, scores, baseline)[1:4]
    assert {line[0]: line[1][-1] for line in lines if not line[1][-1].isdigit()} == marks
    better = scores_json({"": scores}, scores, baseline=baseline)["significance"]["better"]
    assert better == [name for name, mark in marks.items() if mark == "†"]


def test_several_conditions(capsys):
    conditions = {"near": result(0.5, 18), "far": result(3, 10, words=300)}
    lines = printed(capsys, conditions, result(2.8, 28, words=400), "a")
    assert [line for line in lines if line and line[0] in ("near:", "far:")] == [
        ["near:"],
        ["far:"],
    ]
    start = lines.index(["WER", "%", "near", "far", "average", "pooled"])
    assert lines[start + 2] == ["b", "18.00", "3.33†", "10.67", "7.00†"]
    assert lines[start + 3][0] == "oracle"


def test_an_encoding_without_daggers(monkeypatch):
    for encoding, marks in (("utf-8", "†‡ "), ("latin-1", "+- "), ("ascii", "+- ")):
        monkeypatch.setattr(table.sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding))
        assert table.printed("†‡ ") == marks


def test_json():
    conditions = {"near": result(0.5, 18), "far": result(3, 10, words=300)}
    pooled = result(2.8, 28, words=400)
    found = json.loads(json.dumps(scores_json(conditions, pooled, baseline="a")))
    assert list(found) == ["a", "b", "oracle", *RESERVED]
    assert found["b"]["errors"] == 28 and found["b"]["wer"] == pytest.approx(7.0)
    assert found["conditions"]["far"]["b"]["wer"] == pytest.approx(10 / 3)
    assert found["average_wer"]["b"] == pytest.approx((18 + 10 / 3) / 2)
    (pair,) = found["significance"]["pairs"]
    assert found["significance"]["baseline"] == pair["a"] == "a" and pair["b"] == "b"
    test = {"segments": 30, "mean": 0.28, "std": 1.5, "z": 2.8, "p": 0.04, "significant": True}
    assert pair["mapsswe"] == pytest.approx(test)
    interval = {"difference": 5.0, "low": -0.1, "high": 12.34, "level": 0.95, "improvement": 0.975}
    assert pair["bootstrap"] == pytest.approx(interval)


def test_identical_outputs(capsys):
    scores = result(0.0, 20)
    pair = dataclasses.replace(scores.pairs[0], identical=True)
    scores = Scores(scores.errors, [pair])
    lines = printed(capsys, {"": scores}, scores, "a")
    assert lines[6][2:6] == ["+5.00", "identical", "outputs", "-"]
    (found,) = scores_json({"": scores}, scores, baseline="a")["significance"]["pairs"]
    assert found["identical"] is True


def test_characters(capsys):
    scores = result(2.5, 15)
    print_scores({"x": scores, "y": scores}, scores, baseline="a", unit="char")
    text = capsys.readouterr().out
    assert "WER" not in text and "words" not in text
    assert text.count("CER %") == 4 and "A - B: CER of A less CER of B" in text
    found = scores_json({"": scores}, scores, baseline="a", unit="char")
    assert found["b"]["unit"] == "char" and found["b"]["wer"] == 15.0
