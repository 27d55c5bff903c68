"""`bayeslm quickstart`: what the package ships, to a table and a report."""

import gzip
import json
import math
import multiprocessing
import os
import re
import signal
import threading
import time

import pytest
from pretrained.tiny_models import write_model

from espnet_bayeslm.bin import bayeslm
from espnet_bayeslm.bin.quickstart import main
from espnet_bayeslm.engine.work import EngineOptions
from espnet_bayeslm.quickstart import demo
from espnet_bayeslm.quickstart.demo import SHIPPED, SMALL_SYSTEM, SYSTEMS, Demo, Row, table, unpack
from espnet_bayeslm.quickstart.perplexity_table import Interval
from espnet_bayeslm.quickstart.steps import TUNED_FIRST_PASS, Step, is_done, run_steps
from espnet_bayeslm.utils.errors import InputError

SIZES = {"train.txt": 2500, "dev.txt": 30, "eval.txt": 30, "dev.jsonl": 24, "eval.jsonl": 12}


@pytest.fixture
def data(tmp_path):
    """A folder with the first lines of what is shipped."""
    folder = tmp_path / "shipped"
    folder.mkdir()
    for name, size in SIZES.items():
        with gzip.open(SHIPPED / "data" / f"{name}.gz") as f:
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
    output = tmp_path / "out"
    lm = f"hf:{write_model(tmp_path / 'tiny')}"
    monkeypatch.setattr(demo, "find_smollm2", lambda: lm)

    with pytest.raises(InputError, match="status 1: bayeslm score: error: stopped"):
        demo.run(str(output), tool=stopped, data=data, epochs=1)
    assert not (output / "RESULTS.md").exists() and not (output / "report.html").exists()
    before = {path.name: path.stat().st_mtime_ns for path in (output / "log").glob("*.log")}
    capsys.readouterr()
    demo.run(str(output), tool=bayeslm.main, data=data, epochs=1)
    after = {path.name: path.stat().st_mtime_ns for path in (output / "log").glob("*.log")}
    assert {name for name in after if after[name] != before[name]} == {"report.log"}
    # every system has its row, and the report has them too
    printed = capsys.readouterr().out
    assert (output / "RESULTS.md").read_text() in printed
    names = re.findall(r"^\| ([^|-][^|]*?) *\| +[\d.]* \| +[\d.]+ \|", printed, re.MULTILINE)
    assert names == ["first pass", TUNED_FIRST_PASS, *SYSTEMS, SMALL_SYSTEM]
    assert demo.SMALL_EXPLANATION in printed
    # below the table, with the lists that tune: of most systems, and of SmolLM2
    line = "counted: words; normalisation none; ignored none; text form "
    tuned_on = f"tuned on {output}/data/dev.jsonl, {output}/smollm2/data/tune.ref; "
    (found,) = (row for row in printed.splitlines() if row.startswith(line))
    assert tuned_on in found
    assert all(name in (output / "report.html").read_text() for name in names)
    commands = (output / "commands.sh").read_text().splitlines()
    assert sum(line.startswith("bayeslm train ") for line in commands) == 3
    # its adapter learns before there are lists
    adapt = [line for line in commands if line.startswith("bayeslm adapt ")]
    assert [" --nbest " in line for line in adapt] == [False, True]
    assert "bayeslm train" not in (output / "log" / "adapt.log").read_text()
    assert (output / "smollm2" / "adapted.yaml").exists()
    rescored = (output / "smollm2" / "log" / "as_it_is.done").read_text()
    assert f"--lm {output}/bayes --ngram {output}/3gram.arpa " in rescored
    # other data in the same folder is an error
    with gzip.open(data / "eval.jsonl.gz") as f:
        (data / "eval.jsonl.gz").write_bytes(gzip.compress(f.readline()))
    with pytest.raises(InputError, match="other data"):
        demo.run(str(output), tool=bayeslm.main, data=data, epochs=1)


def test_without_smollm2_nothing_changes(data, tmp_path, monkeypatch):
    """And with it, the commands of the other systems are the same."""
    monkeypatch.setattr(demo, "find_small_lm", lambda: None)
    assert demo.find_smollm2() is None
    unpack(data, tmp_path / "out")
    without = Demo(tmp_path / "out", 1)
    assert list(without.hypotheses) == list(SYSTEMS)
    more = Demo(tmp_path / "out", 1, tmp_path / "SmolLM2.gguf")
    few, many = (
        {step.name: step for _, stage in one.stages() for step in stage} for one in (without, more)
    )
    # the lists of one system go on to SmolLM2
    assert set(many) ^ set(few) == {"smollm2", "adapt", "rescore_smollm2"}
    changed = {name for name in few.keys() & many if few[name] != many[name]}
    assert changed == {"report", "bayes", "rescore_bayes_3gram"}


def sleep(words):
    """Say that it has begun, and end when it is killed."""
    print("begun", flush=True)
    time.sleep(600)


def fail(words):
    """End with the status of its word."""
    print("step", *words)
    raise SystemExit(int(words[0]))


def run_locally(todo, logs, tool, **options):
    with EngineOptions(workers=2).pool(trains=True) as pool:
        run_steps(pool, todo, logs, tool, **options)


def begun(logs):
    """Wait until a step's log says that it has begun."""
    while not any("begun" in log.read_text() for log in logs.glob("*.log")):
        time.sleep(0.01)


def test_ctrl_c_ends_the_steps_too(tmp_path, capsys, monkeypatch, interruptible):
    """One line and status 130, and no process is left behind."""

    def stop():
        begun(tmp_path)
        os.kill(os.getpid(), signal.SIGINT)

    def stopped_run(output, *, tool, epochs):
        threading.Thread(target=stop).start()
        run_locally([Step("a", [["sleep"]]), Step("b", [["sleep"]])], tmp_path, sleep)

    monkeypatch.setattr(demo, "run", stopped_run)
    with pytest.raises(SystemExit) as stopped:
        main(["--output", str(tmp_path)])
    assert stopped.value.code == 130
    assert capsys.readouterr().err.endswith("stopped: the same command goes on from here\n")
    assert not multiprocessing.active_children() and not list(tmp_path.glob("*.done"))


def test_steps_that_fail_are_told_after_all_are_done(tmp_path):
    todo = [Step(f"sub/{n}", [[str(n)], ["0"]]) for n in (1, 0, 2)]
    with pytest.raises(
        InputError, match=r"2 of 3 steps failed, the first: \S*/sub/[12]\.log: ended"
    ):
        run_locally(todo, tmp_path, fail)
    log = tmp_path / "sub" / "0.log"
    assert log.read_text() == "$ bayeslm 0\nstep 0\n$ bayeslm 0\nstep 0\n"
    assert [path.name for path in tmp_path.rglob("*.done")] == ["0.done"]
    before = log.stat().st_mtime_ns
    with pytest.raises(InputError, match=r"1\.log: ended with status 1: step 1"):
        run_locally(todo[:2], tmp_path, fail)
    assert log.stat().st_mtime_ns == before
    run_locally(todo[1:2], tmp_path, fail, marks=False)
    assert log.stat().st_mtime_ns > before


def test_a_step_waits_for_those_that_it_needs(tmp_path):
    first, other = Step("first", [["0"]]), Step("other", [["0"]])
    last = Step("last", [["0"]]).needs(first, other)
    run_locally([last, first, other], tmp_path, fail)
    begun = {
        step.name: (tmp_path / f"{step.name}.log").stat().st_mtime_ns for step in (first, last)
    }
    assert begun["first"] < begun["last"] and is_done(last, tmp_path)
    # a finished one is not waited for
    run_locally([Step("more", [["0"]]).needs(first), first], tmp_path, fail)
    assert (tmp_path / "more.done").exists()
    bad, never = Step("bad", [["3"]]), Step("never", [["0"]])
    with pytest.raises(InputError, match=r"bad\.log: ended with status 3"):
        run_locally([never.needs(bad), bad], tmp_path, fail)
    assert not (tmp_path / "never.log").exists()


def crash(words):
    """End by an error that is no message."""
    raise ZeroDivisionError(*words)


def test_a_step_that_crashes_leaves_its_traceback(tmp_path):
    with pytest.raises(InputError, match=r"a\.log: ended with status 1: ZeroDivisionError: zero"):
        run_locally([Step("a", [["zero"]])], tmp_path, crash)
    assert "Traceback" in (tmp_path / "a.log").read_text()


def test_killed_outright_it_takes_its_steps_with_it(tmp_path):
    """One that stayed would hold its LM's folder, and the same command would be refused."""
    read, write = os.pipe()
    fork = multiprocessing.get_context("fork")
    run = fork.Process(target=run_locally, args=([Step("a", [["sleep"]])], tmp_path, sleep))
    run.start()
    os.close(write)
    begun(tmp_path)
    run.kill()
    with open(read, "rb") as pipe:
        assert pipe.read() == b""  # its end: both are gone, which have the other end


def test_what_is_shipped_is_small_and_whole():
    files = sorted((SHIPPED / "data").iterdir())
    assert sum(path.stat().st_size for path in files) < 2_000_000
    assert {f"{name}.gz" for name in SIZES} | {"README.md"} == {path.name for path in files}
    texts = {
        name: gzip.decompress((SHIPPED / "data" / f"{name}.gz").read_bytes()).decode().splitlines()
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
    assert lower == (5 if demo.find_smollm2() else 3)
