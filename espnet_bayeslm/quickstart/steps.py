"""Command lines as tasks of an engine, with a log each; finished steps are skipped."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import logging
import os
import pickle
import shlex
import subprocess
import sys
import threading
import time
import traceback
from concurrent.futures import Future
from pathlib import Path
from typing import IO, Any, Callable, Dict, Iterator, List, Sequence

from espnet_bayeslm.utils.engine import Pool, end_with_pipe, set_threads, threads_of
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import write_text

# What each step's process would import by itself
HEAVY = ("espnet_bayeslm.training.task", "espnet_bayeslm.loading.components")
# Whoever waits is told of a step that is done every so many seconds
LONG = 60.0
# What runs a command line: `bayeslm`'s main(). Workers import it.
Tool = Callable[[Sequence[str]], None]


@dataclasses.dataclass(frozen=True)
class Step:
    """Command lines that are run one after the other: one task.

    Attributes:
        name: Name of the step and of its log; may be a path.
        commands: Words of the command lines.
    """

    name: str
    commands: Sequence[Sequence[str]]

    def script(self) -> str:
        """Command lines as a shell would take them."""
        return "".join(f"bayeslm {shlex.join(words)}\n" for words in self.commands)


def run_steps(
    pool: Pool, steps: Sequence[Step], logs: Path, tool: Tool, *, marks: bool = True
) -> None:
    """Run steps that do not need each other side by side, each with its output in LOGS/NAME.log.

    The workers must be processes, since a step's output is redirected. With `marks` finished steps
    are marked, and the marked ones skipped.
    """
    # a mark holds the command lines that were run to their end
    done_by = {step.name: logs / f"{step.name}.done" for step in steps if marks}
    known = {name: mark.read_text("utf-8") for name, mark in done_by.items() if mark.exists()}
    todo = [step for step in steps if known.get(step.name) != step.script()]
    begin, told = time.monotonic(), 0.0
    threads = threads_of(min(len(todo), pool.workers) or 1)
    failures: List[InputError] = []

    def submit(step: Step) -> Future:
        log = (logs / f"{step.name}.log").absolute()
        log.parent.mkdir(parents=True, exist_ok=True)
        return pool.executor.submit(run_step, step, log, tool, threads, os.getcwd())

    for done, (step, status) in enumerate(pool.completed(submit, todo), 1):
        if status != 0:
            failures.append(_failure(step, status, logs))
            if done < len(todo):
                logging.error("%s", failures[-1])
        elif marks:
            write_text(done_by[step.name], step.script())
        passed, left = time.monotonic() - begin, len(todo) - done
        if left and passed - told >= LONG:
            told = passed
            print(_told(step, passed, done, len(todo)), file=sys.stderr, flush=True)
    if len(failures) > 1:
        raise InputError(f"{len(failures)} of {len(todo)} steps failed, the first: {failures[0]}")
    if failures:
        raise failures[0]


def _failure(step: Step, status: int, logs: Path) -> InputError:
    """Error of a step that failed."""
    log = logs / f"{step.name}.log"
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    said = [line for line in lines if line.strip()]
    return InputError(
        f"ended with status {status}: {said[-1][:300] if said else 'no message'}",
        path=log,
        remedy="Mend the cause; the same command continues from here.",
    )


def _told(step: Step, passed: float, done: int, count: int) -> str:
    """Line of a step that is done: how many are after so many seconds, how long the rest takes."""
    took, left = (
        datetime.timedelta(seconds=round(seconds))
        for seconds in (passed, passed / done * (count - done))
    )
    return f"  {step.name} is done, {done} of {count} after {took}; some {left} left"


def run_step(step: Step, log: Path, tool: Tool, threads: int, folder: str) -> int:
    """Run a step's command lines in `folder`, with all output in `log`, and return their status.

    A training needs the main thread of a process. A worker of a local engine runs tasks there, with
    so many threads. A worker of Dask does not, and starts a process.
    """
    with open(log, "w", encoding="utf-8", buffering=1) as f:
        if threading.current_thread() is not threading.main_thread():
            return _run_apart(step, tool, f, folder)
        set_threads(threads)
        with _redirected(f):
            return _run(step, tool)


def _run(step: Step, tool: Tool) -> int:
    """Run command lines in this process; the status of the first that fails, or 0."""
    for words in step.commands:
        print("$ bayeslm", shlex.join(words), flush=True)
        try:
            tool(words)
        except SystemExit as end:
            if isinstance(end.code, str):
                print(end.code, file=sys.stderr, flush=True)
            if end.code:
                return end.code if isinstance(end.code, int) else 1
        except Exception:
            traceback.print_exc()
            return 1
    return 0


@contextlib.contextmanager
def _redirected(log: IO[str]) -> Iterator[None]:
    """Send all output of this process to a log."""
    streams = sys.stdout, sys.stderr
    kept = os.dup(1), os.dup(2)
    # by number too: handlers of the log, and programs that are started, have the old streams
    for number in (1, 2):
        os.dup2(log.fileno(), number)
    sys.stdout = sys.stderr = log  # type: ignore[assignment]
    try:
        yield
    finally:
        sys.stdout, sys.stderr = streams
        for number, copy in zip((1, 2), kept, strict=True):
            os.dup2(copy, number)
            os.close(copy)


def _run_apart(step: Step, tool: Tool, log: IO[str], folder: str) -> int:
    """Run a step in a process of its own, which ends when this one does."""
    command = [sys.executable, "-c", f"from {__name__} import main; main()"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    streams: Dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": log, "stderr": log}
    with subprocess.Popen(command, cwd=folder, env=environment, **streams) as process:
        assert process.stdin is not None
        # the function is named by its module, which the process imports
        packed = pickle.dumps((step, tool))
        process.stdin.write(len(packed).to_bytes(8, "big") + packed)
        process.stdin.flush()
        return process.wait()


def main() -> None:
    """Run the step that comes by standard input, as long as this stays open."""
    pipe = sys.stdin.fileno()
    size = int.from_bytes(os.read(pipe, 8), "big")
    packed = b""
    while len(packed) < size:
        packed += os.read(pipe, size - len(packed))
    threading.Thread(target=end_with_pipe, args=(pipe,), daemon=True).start()
    raise SystemExit(_run(*pickle.loads(packed)))
