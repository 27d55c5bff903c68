"""Command lines in processes of their own, a few at a time; finished steps are skipped."""

from __future__ import annotations

import dataclasses
import datetime
import importlib
import multiprocessing
import multiprocessing.connection
import os
import shlex
import sys
import threading
import time
from pathlib import Path
from typing import Callable, Dict, Optional, Sequence

from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import write_text

# What each step's process would import by itself
HEAVY = ("espnet_bayeslm.training.task", "espnet_bayeslm.loading.components")
# Whoever waits is told of a step that is done every so many seconds
LONG = 60.0
# What runs a command line: `bayeslm`'s main()
Tool = Callable[[Sequence[str]], None]


@dataclasses.dataclass(frozen=True)
class Step:
    """Command lines of `bayeslm` that are run one after the other.

    Attributes:
        name: Name of the step and of its log.
        commands: Words of the command lines.
    """

    name: str
    commands: Sequence[Sequence[str]]

    def script(self) -> str:
        """Command lines as a shell would take them."""
        return "".join(f"bayeslm {shlex.join(words)}\n" for words in self.commands)


def run_steps(steps: Sequence[Step], logs: Path, tool: Tool) -> None:
    """Run unfinished steps side by side, on as many cores as there are.

    The output of a step goes to LOGS/NAME.log. Processes are forked, so that slow imports are made
    once.

    Args:
        steps: Steps that do not need each other.
        logs: The folder of logs and of marks of finished steps; made where there is none.
        tool: Function that runs a command line.

    Raises:
        InputError: A step failed; all other steps are stopped.
    """
    logs.mkdir(exist_ok=True)
    todo = [step for step in steps if not _is_done(step, logs)]
    if not todo:
        return
    for module in HEAVY:
        importlib.import_module(module)
    cores = len(os.sched_getaffinity(0))
    slots = min(len(todo), max(cores, 1))
    begin, count, told = time.monotonic(), len(todo), 0.0
    running: Dict[multiprocessing.context.ForkProcess, Step] = {}
    try:
        while todo or running:
            while todo and len(running) < slots:
                step = todo.pop(0)
                options = (step, logs, tool, max(cores // slots, 1))
                process = multiprocessing.get_context("fork").Process(target=_run, args=options)
                process.start()
                running[process] = step
            multiprocessing.connection.wait([process.sentinel for process in running])
            for process in [process for process in running if not process.is_alive()]:
                step = running.pop(process)
                _finish(step, process.exitcode, logs)
                passed, left = time.monotonic() - begin, len(todo) + len(running)
                if left and passed - told >= LONG:
                    told = passed
                    print(_told(step, passed, count - left, count), file=sys.stderr, flush=True)
    finally:
        for process in running:
            process.terminate()
            process.join()


def _is_done(step: Step, logs: Path) -> bool:
    """True if the step has been run to its end with the same command lines."""
    done = logs / f"{step.name}.done"
    return done.exists() and done.read_text(encoding="utf-8") == step.script()


def _finish(step: Step, status: Optional[int], logs: Path) -> None:
    """Note that a step is done.

    Raises:
        InputError: The step failed.
    """
    log = logs / f"{step.name}.log"
    if status != 0:
        lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
        said = [line for line in lines if line.strip()]
        raise InputError(
            f"ended with status {status}: {said[-1][:300] if said else 'no message'}",
            path=log,
            remedy="Mend the cause; the same command continues from here.",
        )
    write_text(logs / f"{step.name}.done", step.script())


def _told(step: Step, passed: float, done: int, count: int) -> str:
    """Line of a step that is done: how many are after so many seconds, how long the rest takes."""
    took, left = (
        datetime.timedelta(seconds=round(seconds))
        for seconds in (passed, passed / done * (count - done))
    )
    return f"  {step.name} is done, {done} of {count} after {took}; some {left} left"


def _end_with_parent() -> None:
    """End this process when its parent is gone, be it killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _run(step: Step, logs: Path, tool: Tool, num_threads: int) -> None:
    """Run a step's command lines in this process, which is its own."""
    import torch

    threading.Thread(target=_end_with_parent, daemon=True).start()
    # it stays open: multiprocessing writes the message of a SystemExit there
    log = open(logs / f"{step.name}.log", "w", encoding="utf-8", buffering=1)  # noqa: SIM115
    os.dup2(log.fileno(), 1)
    os.dup2(log.fileno(), 2)
    sys.stdout = sys.stderr = log
    torch.set_num_threads(num_threads)
    for words in step.commands:
        print("$ bayeslm", shlex.join(words), flush=True)
        tool(words)
