"""Command lines of `bayeslm` as tasks of an engine: a log each, and finished steps are skipped."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import pickle
import shlex
import subprocess
import sys
import threading
import traceback
from concurrent.futures import Future
from pathlib import Path
from typing import IO, Any, Callable, Dict, Iterator, List, Mapping, Sequence

from espnet_bayeslm.engine.pool import Pool
from espnet_bayeslm.engine.processes import end_with_pipe, set_threads, threads_of
from espnet_bayeslm.evaluation.wer import FIRST_PASS
from espnet_bayeslm.report.counted_outputs import SCALES
from espnet_bayeslm.utils.cli import progress
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import write_text
from espnet_bayeslm.utils.log import LOG

# What each step's process would import by itself
HEAVY = ("espnet_bayeslm.training.task", "espnet_bayeslm.loading.components")
TUNED_FIRST_PASS = f"{FIRST_PASS}, tuned"
"""The control: the recogniser's own scores, tuned as those of the systems are."""
# Figures of `bayeslm perplexity`
WITHOUT_OOV, KNOWN_ONLY = "perplexity_without_oov", "perplexity_of_known_sentences"
# What runs a command line: `bayeslm`'s main(). Workers import it.
Tool = Callable[[Sequence[str]], None]


@dataclasses.dataclass(frozen=True)
class Step:
    """Command lines that are run one after the other: one task.

    Its name is also the name of its log, and may be a path. The steps that it is `after`, by their
    names, have to be done before.
    """

    name: str
    commands: Sequence[Sequence[str]]
    after: Sequence[str] = ()

    def then(self, step: Step) -> Step:
        """This step with the command lines of another after its own."""
        return Step(self.name, [*self.commands, *step.commands], self.after)

    def needs(self, *steps: Step) -> Step:
        """This step, after others."""
        return dataclasses.replace(self, after=[*self.after, *(step.name for step in steps)])

    def script(self) -> str:
        """Command lines as a shell would take them."""
        return "".join(f"bayeslm {shlex.join(words)}\n" for words in self.commands)


def run_steps(
    pool: Pool, steps: Sequence[Step], logs: Path, tool: Tool, *, marks: bool = True
) -> None:
    """Run steps side by side, each with its output in LOGS/NAME.log.

    One that needs others begins when they are done; of those that can begin the first does. The
    workers must be processes, since a step's output is redirected. With `marks` finished steps are
    marked, and the marked ones skipped.
    """
    todo = [step for step in steps if not (marks and is_done(step, logs))]
    threads = threads_of(min(len(todo), pool.workers) or 1)
    failures: List[InputError] = []

    def submit(step: Step) -> Future:
        log = (logs / f"{step.name}.log").absolute()
        log.parent.mkdir(parents=True, exist_ok=True)
        return pool.executor.submit(run_step, step, log, tool, threads, os.getcwd())

    ready = _Ready(todo)
    statuses = pool.completed(submit, ready)
    with progress(desc="steps", unit="step", total=len(todo)) as bar:
        for step, status in statuses:
            bar.update()
            if status == 0:
                ready.missing.discard(step.name)
                if marks:
                    write_text(_mark(step, logs), step.script())
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

    def __init__(self, steps: Sequence[Step]):
        self._waiting = list(steps)
        self.missing = {step.name for step in steps}

    def __iter__(self) -> Iterator[Step]:
        return self

    def __next__(self) -> Step:
        for number, step in enumerate(self._waiting):
            if self.missing.isdisjoint(step.after):
                return self._waiting.pop(number)
        raise StopIteration


def is_done(step: Step, logs: Path) -> bool:
    """True for a step that has a mark: its command lines have been run to their end."""
    mark = _mark(step, logs)
    return mark.exists() and mark.read_text("utf-8") == step.script()


def _mark(step: Step, logs: Path) -> Path:
    """File that holds the command lines of a finished step."""
    return logs / f"{step.name}.done"


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


# Command lines that train, mix and score the LMs of one folder


def words(tool: str, **options: object) -> List[str]:
    """Command line of a tool; an option that has a list is repeated, None is left out."""
    line = [tool]
    for name, value in options.items():
        for one in value if isinstance(value, list) else [value]:
            line += [] if one is None else [f"--{name}", str(one)]
    return line


class Runner:
    """Command lines of a 3-gram, of LMs, and of mixtures of both, in the folder `exp`.

    `texts` are `train`, `valid` and `test`. Every training has the options `training`, and every
    command that scores with LMs the options `scoring`.
    """

    def __init__(
        self,
        exp: Path,
        texts: Mapping[str, Path],
        training: Mapping[str, Any],
        scoring: Mapping[str, Any],
    ):
        self.exp, self.texts, self.training = exp, texts, training
        self.scoring = {"cache": exp / "cache", **scoring}
        self.ngram = exp / "3gram.arpa"
        # of commands side by side, none may remove it as its own empty folder
        (exp / "perplexity").mkdir(parents=True, exist_ok=True)

    def estimate(self) -> Step:
        """Estimation of the 3-gram."""
        options = dict(order=3, arpa=self.ngram, discount_fallback="true")
        return Step("ngram", [words("ngram", text=self.texts["train"], **options)])

    def train(self, folder: Path, config: object, *, source: object = None, **options: Any) -> Step:
        """Training of an LM, perhaps on from another LM."""
        texts = {f"{name}_text": self.texts[name] for name in ("train", "valid")}
        common = {"config": config, "exp": folder, "from": source, **texts, **self.training}
        name = "_".join(folder.relative_to(self.exp).parts)
        return Step(name, [words("train", **common, **options)])

    def scored(self, tool: str, lms: Sequence[object], **options: object) -> List[str]:
        """Command line of a tool that takes LMs."""
        return words(tool, lm=[*lms], **self.scoring, **options)

    def interpolated(self, key: str, lms: Sequence[object], **options: object) -> List[str]:
        """EM weights of LMs and 3-gram on the validation text."""
        given = dict(ngram=self.ngram, text=self.texts["valid"], output=self.weights(key))
        return self.scored("interpolate", lms, **given, **options)

    def mixture(self, key: str, lms: Sequence[object]) -> List[List[str]]:
        """EM weights of LMs and 3-gram, and their perplexity of the test text."""
        given = dict(ngram=self.ngram, text=self.texts["test"], weights=self.weights(key))
        measure = self.scored("perplexity", lms, **given, output=self.perplexity(key))
        return [self.interpolated(key, lms), measure]

    def rescoring(
        self, key: str, lms: Sequence[object], dev: Path, test: Path, **options: object
    ) -> List[List[str]]:
        """Rescored lists: scales of scores are tuned on those of dev and applied to the others."""
        common = dict(nbest_format="jsonl", ngram=self.ngram, weights=self.weights(key), **options)
        scales = self.rescored(key, "dev") / SCALES
        tune = dict(nbest=dev, output=self.rescored(key, "dev"))
        apply = dict(nbest=test, output=self.rescored(key), scales=scales)
        return [self.scored("rescore", lms, **common, **given) for given in (tune, apply)]

    def rescored(self, key: str, part: str = "eval") -> Path:
        """Folder of a mixture's rescored lists."""
        return self.exp / "rescored" / key / part

    def weights(self, key: str) -> Path:
        """File of a mixture's weights."""
        return self.exp / "weights" / f"{key}.yaml"

    def perplexity(self, key: str) -> Path:
        """File of a mixture's perplexity of the test text."""
        return self.exp / "perplexity" / f"{key}.json"


def mixture_key(lms: Sequence[str]) -> str:
    """Name of the files of LMs and 3-gram."""
    return "_".join([*lms, "3gram"])


def read_components(path: Path) -> List[Dict[str, Any]]:
    """Components that `bayeslm perplexity` wrote, the mixture last."""
    components: List[Dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["components"]
    return components


def read_figures(path: Path, figure: str = WITHOUT_OOV) -> List[float]:
    """Perplexity per word of each component, nan where nothing is counted."""
    values = (component[figure]["word"] for component in read_components(path))
    return [math.nan if value is None else value for value in values]
