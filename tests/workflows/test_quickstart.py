"""`bayeslm quickstart`: what the package ships, to a table and a report."""

import gzip
import json
import math
import re

import pytest
from espnet2.train.reporter import Reporter
from pretrained.tiny_models import write_model

from espnet_bayeslm.bin import bayeslm
from espnet_bayeslm.bin.quickstart import main
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.workflows import quickstart
from espnet_bayeslm.workflows.commands import TUNED_FIRST_PASS
from espnet_bayeslm.workflows.compare_table import Interval
from espnet_bayeslm.workflows.quickstart import (
    SHIPPED,
    SMALL_SYSTEM,
    SYSTEMS,
    Demo,
    Row,
    table,
    unpack,
)

SIZES = {"train.txt": 1000, "dev.txt": 30, "eval.txt": 30, "dev.jsonl": 24, "eval.jsonl": 12}


@pytest.fixture
def data(tmp_path):
    """A folder with the first lines of what is shipped."""
    folder = tmp_path / "shipped"
    folder.mkdir()
    for name, size in SIZES.items():
        with gzip.open(SHIPPED / f"{name}.gz") as f:
            content = b"".join(f.readline() for _ in range(size))
        (folder / f"{name}.gz").write_bytes(gzip.compress(content))
    return folder


def stopped(words):
    """Run a command line of all but the last stage."""
    if words[0] == "score":
        raise SystemExit("bayeslm score: error: stopped")
    bayeslm.main(words)


def test_a_stopped_run_goes_on_to_the_table(data, tmp_path, capsys, monkeypatch):
    """All but the last step are done before the stop, and are not done again after it.

    A tiny LM takes the place of SmolLM2.
    """
    # a figure after each epoch takes longer than the epoch
    monkeypatch.setattr(Reporter, "matplotlib_plot", lambda *_: None)
    output = tmp_path / "out"
    lm = f"hf:{write_model(tmp_path / 'tiny')}"
    monkeypatch.setattr(quickstart, "find_smollm2", lambda: lm)

    with pytest.raises(InputError, match="status 1: bayeslm score: error: stopped"):
        quickstart.run(str(output), tool=stopped, data=data, epochs=1)
    assert not (output / "RESULTS.md").exists() and not (output / "report.html").exists()
    before = {path.name: path.stat().st_mtime_ns for path in (output / "log").glob("*.log")}
    capsys.readouterr()
    quickstart.run(str(output), tool=bayeslm.main, data=data, epochs=1)
    after = {path.name: path.stat().st_mtime_ns for path in (output / "log").glob("*.log")}
    assert {name for name in after if after[name] != before[name]} == {"report.log"}
    # every system has its row, and the report has them too
    printed = capsys.readouterr().out
    assert (output / "RESULTS.md").read_text() in printed
    names = re.findall(r"^\| ([^|-][^|]*?) *\| +[\d.]* \| +[\d.]+ \|", printed, re.MULTILINE)
    assert names == ["first pass", TUNED_FIRST_PASS, *SYSTEMS, SMALL_SYSTEM]
    assert quickstart.SMALL_EXPLANATION in printed
    # below the table, with the lists that tune: of most systems, and of SmolLM2
    line = "counted: words; normalisation none; ignored none; text form "
    tuned_on = f"tuned on {output}/data/dev.jsonl, {output}/rescored/bayes_3gram/dev/best; "
    (found,) = (row for row in printed.splitlines() if row.startswith(line))
    assert tuned_on in found
    assert all(name in (output / "report.html").read_text() for name in names)
    commands = (output / "commands.sh").read_text().splitlines()
    assert sum(line.startswith("bayeslm train ") for line in commands) == 3
    small = [line for line in commands if f"--lm hf:{output}/smollm2_base" in line]
    tools = ["perplexity", "interpolate", "rescore", "rescore"]
    assert [line.split()[1] for line in small] == tools
    assert all(f"--lm {output}/bayes" in line for line in small[1:])
    # other data in the same folder is an error
    with gzip.open(data / "eval.jsonl.gz") as f:
        (data / "eval.jsonl.gz").write_bytes(gzip.compress(f.readline()))
    with pytest.raises(InputError, match="other data"):
        quickstart.run(str(output), tool=bayeslm.main, data=data, epochs=1)


def test_without_smollm2_nothing_changes(data, tmp_path, monkeypatch):
    """And with it, the commands of the other systems are the same."""
    monkeypatch.setattr(quickstart, "find_small_lm", lambda: None)
    assert quickstart.find_smollm2() is None
    unpack(data, tmp_path / "out")
    without = Demo(tmp_path / "out", 1)
    assert list(without.rescored) == list(SYSTEMS)
    more = Demo(tmp_path / "out", 1, tmp_path / "SmolLM2.gguf")
    few, many = (
        {step.name: step for _, stage in one.stages() for step in stage} for one in (without, more)
    )
    # the lists of one system go on to SmolLM2
    assert set(many) ^ set(few) == {"smollm2", "tune_smollm2", "rescore_smollm2"}
    changed = {name for name in few.keys() & many if few[name] != many[name]}
    assert changed == {"report", "bayes", "rescore_bayes_3gram"}


def test_what_is_shipped_is_small_and_whole():
    files = sorted(SHIPPED.iterdir())
    assert sum(path.stat().st_size for path in files) < 2_000_000
    known = {*(f"{name}.gz" for name in SIZES), "README.md", "half.yaml", "bayes.yaml"}
    assert known == {path.name for path in files}
    texts = {
        name: gzip.decompress((SHIPPED / f"{name}.gz").read_bytes()).decode().splitlines()
        for name in SIZES
    }
    known = {word for line in texts["train.txt"] for word in line.split()}
    assert all(known.issuperset(line.split()) for line in texts["dev.txt"])
    spoken = {}
    for name in ("dev", "eval"):
        lists = [json.loads(line) for line in texts[f"{name}.jsonl"]]
        spoken[name] = [nbest["utt"].split("_", 1)[1] for nbest in lists]
        assert len(set(spoken[name])) == len(lists)  # each sentence once, by one voice
        assert sum(len(nbest["hypotheses"]) == 20 for nbest in lists) > 0.9 * len(lists)
    assert not set(spoken["dev"]) & set(spoken["eval"])


def test_the_table_says_what_was_not_gained():
    """Daggers stand where there are fewer errors, and words where nothing was gained."""
    better, worse = Interval(-1.0, -1.5, -0.5, 0.001), Interval(0.5, 0.1, 0.9, 0.02)
    nothing = Interval(-0.001, -0.3, 0.3, 0.9)
    rows = [Row("first pass", 30.0, math.nan, {})]
    rows.append(Row("point-estimate + 3-gram", 29.0, 100.0, {"first pass": better}))
    expected = {
        "A": (worse, "+0.50 [+0.10, +0.90]", "significantly MORE errors."),
        "B": (nothing, "0.00 [-0.30, +0.30]", "p = 0.9: no significant difference."),
        "C": (better, "-1.00 [-1.50, -0.50] †", "significantly fewer errors."),
    }
    for name, (change, *_) in expected.items():
        against = {"first pass": better, "point-estimate + 3-gram": change}
        rows.append(Row(name, 29.0, 98.0, against))
    lines = table(rows).splitlines()
    for name, (_, cell, verdict) in expected.items():
        (row,) = (line for line in lines if line.startswith(f"| {name} "))
        assert row.split("|")[5].strip() == cell
        (said,) = (line for line in lines if line.startswith(f"{name} against point"))
        assert said.endswith(verdict) and "perplexity -2.0 %" in said


@pytest.mark.slow
def test_all_of_it(tmp_path, capsys):
    """The whole quick start: the LMs lower the word error rate significantly."""
    main(["--output", str(tmp_path / "out")])
    rows = [line for line in capsys.readouterr().out.splitlines() if "+ 3-gram " in line]
    lower = sum("†" in row.split("|")[4] for row in rows if row.startswith("|"))
    assert lower == (3 if quickstart.find_smollm2() else 2)
