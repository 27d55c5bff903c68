"""Steps as tasks of an engine: a log each; finished steps are left out while their inputs stay."""

from __future__ import annotations

import contextlib
import os
import pickle
import shlex
import subprocess
import sys
import threading
import traceback
from concurrent.futures import Future
from pathlib import Path
from typing import IO, Any, Callable, Dict, Iterator, List, Sequence

from espnet_bayeslm.engine.pool import Pool
from espnet_bayeslm.engine.processes import end_with_pipe, set_threads, threads_of
from espnet_bayeslm.utils.cli import progress
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.log import LOG
from espnet_bayeslm.workflows.steps import Records, Step

# What each step's process would import by itself
HEAVY = (
    "espnet_bayeslm.training.task",
    "espnet_bayeslm.loading.components",
    "espnet_bayeslm.report.plots",
)
# What runs a command line: `bayeslm`'s main(). Workers import it.
Tool = Callable[[Sequence[str]], None]


def run_steps(
    pool: Pool, steps: Sequence[Step], logs: Path, tool: Tool, *, marks: bool = True
) -> None:
    """Run steps side by side, each with its output in LOGS/NAME.log.

    One that needs others begins when they are done; of those that can begin the first does. The
    workers must be processes, since a step's output is redirected. With `marks` finished steps have
    records, and are left out as long as their inputs stay.
    """
    records = Records(logs)
    todo = [step for step in steps if not (marks and records.is_done(step))]
    beside = min(len(todo), pool.workers) or 1
    failures: List[InputError] = []

    def submit(step: Step) -> Future:
        log = (logs / f"{step.name}.log").absolute()
        # of steps side by side, none may remove a folder as its own empty one
        for path in [log, *step.outputs()]:
            path.parent.mkdir(parents=True, exist_ok=True)
        if marks:
            records.begin(step)
        threads = threads_of(max(beside, step.processes))
        return pool.executor.submit(run_step, step, log, tool, threads, os.getcwd())

    ready = _Ready(steps, records.is_done if marks else lambda step: False)
    with progress(desc="steps", unit="step", total=len(todo)) as bar:
        for step, status in pool.completed(submit, ready):
            bar.update()
            if status == 0:
                ready.missing.discard(step.name)
                if marks:
                    records.finish(step)
                continue
            failures.append(_failure(step, status, logs))
            if bar.n < len(todo):
                LOG.error("%s", failures[-1])
    if len(failures) > 1:
        raise InputError(f"{len(failures)} of {len(todo)} steps failed, the first: {failures[0]}")
    if failures:
        raise failures[0]


class _Ready:
    """Steps that can begin; asked again, it has those whose needed ones are no longer `missing`."""

    def __init__(self, steps: Sequence[Step], is_done: Callable[[Step], bool]):
        self._waiting, self._is_done = list(steps), is_done
        self.missing = {step.name for step in steps}

    def __iter__(self) -> Iterator[Step]:
        return self

    def __next__(self) -> Step:
        while True:
            ready = (step for step in self._waiting if self.missing.isdisjoint(step.after))
            step = next(ready)  # raises StopIteration where there is none
            self._waiting.remove(step)
            if not self._is_done(step):
                return step
            self.missing.discard(step.name)


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


def run_step(step: Step, log: Path, tool: Tool, threads: int, folder: str) -> int:
    """Run a step's command lines in `folder`, with all output in `log`, and return their status.

    A training needs the main thread of a process. A worker of a local engine runs tasks there, with
    so many threads. A worker of Dask does not, and starts a process, which ends when this one does.
    """
    with open(log, "w", encoding="utf-8", buffering=1) as f:
        if threading.current_thread() is threading.main_thread():
            set_threads(threads)
            with _redirected(f):
                return _run(step, tool)
        # the function is named by its module, which the process imports
        packed = pickle.dumps((step, tool)).hex()
        command = [sys.executable, "-c", f"from {__name__} import main; main()", packed]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        streams: Dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": f, "stderr": f}
        with subprocess.Popen(command, cwd=folder, env=environment, **streams) as process:
            return process.wait()


def main() -> None:
    """Run the step that the command line holds, as long as standard input stays open."""
    threading.Thread(target=end_with_pipe, args=(sys.stdin.fileno(),), daemon=True).start()
    raise SystemExit(_run(*pickle.loads(bytes.fromhex(sys.argv[1]))))


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
