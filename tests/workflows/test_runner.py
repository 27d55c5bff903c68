"""Steps that run side by side: their order, their logs, what fails, and what is killed."""

import multiprocessing
import os
import signal
import threading
import time

import pytest

from espnet_bayeslm.bin.quickstart import main
from espnet_bayeslm.engine import processes
from espnet_bayeslm.engine.work import EngineOptions
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.workflows import quickstart
from espnet_bayeslm.workflows.runner import run_steps
from espnet_bayeslm.workflows.steps import Step


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

    monkeypatch.setattr(quickstart, "run", stopped_run)
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
    assert begun["first"] < begun["last"] and (tmp_path / "last.done").exists()
    # a finished one is not waited for
    run_locally([Step("more", [["0"]]).needs(first), first], tmp_path, fail)
    assert (tmp_path / "more.done").exists()
    bad, never = Step("bad", [["3"]]), Step("never", [["0"]])
    with pytest.raises(InputError, match=r"bad\.log: ended with status 3"):
        run_locally([never.needs(bad), bad], tmp_path, fail)
    assert not (tmp_path / "never.log").exists()


def tell_threads(words):
    """Say how many threads each process may take."""
    print("threads", os.environ["OMP_NUM_THREADS"])


def test_processes_of_a_step_share_the_cores(tmp_path, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(processes, "num_cores", lambda: 12)
    for count, threads in ((1, 12), (3, 4), (20, 1)):
        run_locally([Step(f"s{count}", [["0"]], processes=count)], tmp_path, tell_threads)
        assert f"threads {threads}\n" in (tmp_path / f"s{count}.log").read_text()


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


def copy(words):
    """Write a text and the content of a file to another file."""
    tool, _, source, _, output = words
    with open(source) as f, open(output, "w") as g:
        g.write(f"{tool} {f.read()}")


def test_a_step_whose_input_has_changed_runs_again(tmp_path):
    """So does what depends on it; the same content at another time is no change."""
    text, a, b = paths = [tmp_path / name for name in ("text", "a", "b")]
    first = Step("a", [["a of", "--text", str(text), "--output", str(a)]])
    last = Step("b", [["b of", "--text", str(a), "--output", str(b)]]).needs(first)
    # file that changes, its content, what runs again, the last product
    for path, content, expected, said in (
        (text, "old", {"a", "b"}, "b of a of old"),
        (text, "old", set(), "b of a of old"),
        (text, "new", {"a", "b"}, "b of a of new"),
        # a product that another has changed is an input of the next step
        (a, "edited", {"b"}, "b of edited"),
    ):
        path.write_text(content)
        logs = [tmp_path / f"{path.name}.log" for path in paths[1:]]
        before = [log.exists() and log.stat().st_mtime_ns for log in logs]
        run_locally([last, first], tmp_path, copy)
        pairs = zip(logs, before, strict=True)
        assert {log.stem for log, time in pairs if log.stat().st_mtime_ns != time} == expected
        assert b.read_text() == said
