"""Single-line mutants of the package: would the tests notice?

`python tools/mutation.py --count 40` changes one operator or number at a time in a copy of the
package, runs the tests that run that line, the quickest first, and prints which changes nobody
noticed, and which test noticed the others. What only steers speed or words a message is left out:
names in capitals, `raise`, logging, annotations.
"""

from __future__ import annotations

import argparse
import ast
import collections
import concurrent.futures
import dataclasses
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Dict, Iterator, List, Set, Tuple
from xml.etree import ElementTree

import coverage

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

import forking_python  # noqa: E402

PACKAGE = "espnet_bayeslm"
# Each part, and the tests that are to notice what runs at import; the module's own come first.
PARTS = {
    "bayes": ["bayes", "lm/test_contract.py", "lm/test_kinds.py", "training/test_model.py"],
    "layers": ["layers", "lm/test_contract.py", "lm/test_reference.py", "lm/test_kinds.py", "lm"],
    "kernels": ["kernels", "layers", "lm/test_contract.py", "lm/test_decoding.py", "lm"],
    "scoring": ["scoring", "rescoring", "lm/test_decoding.py"],
    "mixture": ["mixture", "rescoring", "bin/test_perplexity.py", "bin/test_lattice_tool.py"],
    "decoding": ["decoding", "recognisers"],
    "rescoring": ["rescoring", "bin/test_rescore.py", "bin/test_rescore_tuning.py", "bin"],
    "training": ["training", "bin/test_train.py", "bin/test_export.py"],
}
SWAPS = {
    ast.Add: "-",
    ast.Sub: "+",
    ast.Mult: "/",
    ast.Div: "*",
    ast.FloorDiv: "*",
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.In: "not in",
    ast.NotIn: "in",
    ast.And: "or",
    ast.Or: "and",
}
LOGGING = ("LOG.", "PROGRESS.", "logging", "warnings", "tqdm")
Times = Dict[str, List[float]]  # test file -> seconds of each of its tests
# Imported once for all mutants; nothing of ours.
PRELOADED = ["espnet2.bin.lm_train", "espnet2.bin.asr_inference", "matplotlib.pyplot", "pytest"]
CHOSEN = "MUTATION_CHOSEN"  # the environment's name of the file with the tests that are run


@dataclasses.dataclass(frozen=True)
class Mutant:
    """A change of one line.

    Attributes:
        part: The part of the package.
        path: The file, relative to the package.
        line: From 1.
        begin: First column of what is replaced.
        end: The column after the last.
        new: What comes in its place.
    """

    part: str
    path: str
    line: int
    begin: int
    end: int
    new: str

    def apply(self, text: str) -> str:
        """The source with the change."""
        lines = text.splitlines(keepends=True)
        line = lines[self.line - 1].encode()
        lines[self.line - 1] = (line[: self.begin] + self.new.encode() + line[self.end :]).decode()
        return "".join(lines)

    def describe(self, text: str) -> str:
        """File, line, and the line before and after."""
        before = text.splitlines()[self.line - 1].strip()
        after = self.apply(text).splitlines()[self.line - 1].strip()
        return f"{self.path}:{self.line}: {before}  ->  {after}"


def _is_left_out(node: ast.AST) -> bool:
    """Whether a change within a node would change no result."""
    if isinstance(node, (ast.Raise, ast.JoinedStr, ast.Assert)):
        return True
    if isinstance(node, ast.Call):
        function = ast.unparse(node.func)
        return function.startswith(LOGGING) or function.endswith("Error")
    if isinstance(node, (ast.Assign, ast.AnnAssign)):
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        names = target.elts if isinstance(target, ast.Tuple) else [target]
        return all(isinstance(name, ast.Name) and name.id.isupper() for name in names)
    return False


def _children(node: ast.AST) -> Iterator[ast.AST]:
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        if isinstance(node, ast.keyword) and node.arg == "strict":
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not _is_left_out(child):
                yield child


def _operator_span(source: str, left: ast.expr, right: ast.expr) -> Tuple[int, int, int] | None:
    """Line, first and last column of what stands between two operands on one line."""
    if left.end_lineno != right.lineno or left.end_col_offset is None:
        return None
    between = source.splitlines()[right.lineno - 1].encode()[left.end_col_offset : right.col_offset]
    if not between.strip() or set(b"()") & set(between):
        return None
    lead = len(between) - len(between.lstrip())
    return right.lineno, left.end_col_offset + lead, left.end_col_offset + len(between.rstrip())


def mutants_of(part: str, path: Path) -> Iterator[Mutant]:
    """Every mutant of a file."""
    source = path.read_text()
    relative = str(path.relative_to(ROOT / PACKAGE))
    stack: List[ast.AST] = [ast.parse(source)]
    while stack:
        node = stack.pop()
        stack.extend(_children(node))
        pairs: List[Tuple[ast.expr, ast.AST, ast.expr]] = []
        if isinstance(node, ast.BinOp):
            pairs = [(node.left, node.op, node.right)]
        elif isinstance(node, ast.Compare):
            operands = [node.left, *node.comparators]
            pairs = list(zip(operands, node.ops, operands[1:], strict=False))
        elif isinstance(node, ast.BoolOp):
            pairs = [(node.values[0], node.op, node.values[1])]
        for left, op, right in pairs:
            span = _operator_span(source, left, right)
            if span is not None and type(op) in SWAPS:
                yield Mutant(part, relative, *span, SWAPS[type(op)])
        if isinstance(node, ast.Constant) and type(node.value) in (bool, int, float):
            value = node.value
            new = str(not value) if isinstance(value, bool) else repr(value + 1)
            assert node.end_col_offset is not None
            yield Mutant(part, relative, node.lineno, node.col_offset, node.end_col_offset, new)


def choose(count: int, seed: int) -> List[Mutant]:
    """Mutants drawn evenly over the parts, at most one a line."""
    generator, chosen = random.Random(seed), []
    for number, part in enumerate(PARTS):
        found = [
            mutant
            for path in sorted((ROOT / PACKAGE / part).rglob("*.py"))
            for mutant in mutants_of(part, path)
        ]
        generator.shuffle(found)
        lines = {(mutant.path, mutant.line): mutant for mutant in found}
        share = count // len(PARTS) + (number < count % len(PARTS))
        chosen += list(lines.values())[:share]
    return chosen


def source_of(mutant: Mutant) -> str:
    """The file as it is."""
    return (ROOT / PACKAGE / mutant.path).read_text()


def record(path: Path, jobs: int) -> None:
    """Run all tests; write which of them run each line, and beside it how long they take."""
    path.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", "-n", str(jobs), "--dist", "worksteal"]
    command += ["--cov", "--cov-context=test", "--cov-report="]
    command += [f"--junitxml={path}.xml", "-o", "junit_family=xunit1"]
    env = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "COVERAGE_FILE": str(path)}
    print("recording which test runs which line", file=sys.stderr, flush=True)
    # A test that fails here, or only with tracing, is found when it claims a mutant.
    code = subprocess.run(command, cwd=ROOT, env=os.environ | env, check=False).returncode
    # pytest-xdist says 1 too where its workers do not collect the same tests
    apart = ".//error[@message='collection failure']"
    if code > 1 or ElementTree.parse(f"{path}.xml").find(apart) is not None:
        raise SystemExit("the tests cannot be run")


def statement_around(source: str, line: int) -> Tuple[Set[int], bool]:
    """Its lines (without those of a body), and whether it runs in calls only, not at import."""
    around = [node for node in ast.walk(ast.parse(source)) if hasattr(node, "lineno")]
    around = [node for node in around if node.lineno <= line <= node.end_lineno]
    inner = max((n for n in around if isinstance(n, ast.stmt)), key=lambda node: node.lineno)
    body = getattr(inner, "body", None)
    last = body[0].lineno - 1 if body else inner.end_lineno
    functions = [node for node in around if isinstance(node, ast.FunctionDef)]
    is_called = any(node.body[0].lineno <= line for node in functions)
    return {line, *range(inner.lineno, last + 1)}, is_called


@dataclasses.dataclass(frozen=True)
class Tests:
    """The tests that are to notice a mutant.

    Attributes:
        paths: Files and folders, in their order.
        chosen: The tests, or files, of them that are run; None for all.
        is_covered: Whether any test runs the mutant's line.
    """

    paths: List[str]
    chosen: Set[str] | None
    is_covered: bool = True


def tests_of(mutant: Mutant, recorded: coverage.CoverageData, times: Times) -> Tests:
    """The tests that run the line, all of a file's where a fixture does, the module's own.

    What runs at import, or only in processes that tests start, belongs to no test: there all
    tests of the part, in the order of `PARTS`.
    """
    folder, end = ROOT / "tests", f"{PACKAGE}/{mutant.path}"
    found = (folder / mutant.part).rglob(f"test_{Path(mutant.path).stem}*.py")
    own = sorted(str(path.relative_to(ROOT)) for path in found)
    files = [name for name in recorded.measured_files() if name.endswith(end)]
    by_line = recorded.contexts_by_lineno(files[0]) if files else {}
    lines, is_called = statement_around(source_of(mutant), mutant.line)
    contexts = {context for line in lines for context in by_line.get(line, ())}
    if not is_called or contexts == {""}:
        rest = [f"tests/{name}" for name in PARTS[mutant.part] if (folder / name).exists()]
        return Tests(list(dict.fromkeys([*own, *rest])), None)
    phases = [context.rpartition("|") for context in contexts if context]
    chosen = {test if when == "run" else test.split("::")[0] for test, _, when in phases}
    chosen.update(own)
    count = collections.Counter(test.split("::")[0] for test in chosen)

    def seconds(name: str) -> float:
        known = times.get(name, [0.0])
        return sum(known) * (1.0 if name in chosen else count[name] / len(known))

    return Tests(sorted(count, key=seconds), chosen, is_covered=bool(contexts))


def failures(mutant: Mutant | None, tests: Tests, timeout: float, server: str) -> List[str] | None:
    """The first test that fails with a mutant, or for None all that fail as the package is.

    None where the tests took too long, or hang. They run in a process of `forking_python`'s server.
    """
    if not tests.paths:
        return []
    with tempfile.TemporaryDirectory() as folder:
        for name in ("egs2", "bench", "conf", "setup.cfg", "README.md", "docs", "Makefile"):
            if (ROOT / name).exists():
                os.symlink(ROOT / name, Path(folder) / name)
        for name in ("tests", "tools", PACKAGE):
            shutil.copytree(ROOT / name, Path(folder) / name, symlinks=True)
        command = [sys.executable, "-I", "-S", forking_python.__file__, server]
        command += ["-m", "pytest", "-q", *tests.paths]
        env = {**os.environ, "PYTHONPATH": f"{folder}:{folder}/tools"}
        if mutant is not None:
            target = Path(folder) / PACKAGE / mutant.path
            target.write_text(mutant.apply(target.read_text()))
            command.append("-x")
        if tests.chosen is not None:
            env[CHOSEN] = f"{folder}/chosen"
            Path(env[CHOSEN]).write_text("\n".join(tests.chosen))
            command += ["-p", "mutation"]
        try:
            done = subprocess.run(
                command, cwd=folder, env=env, capture_output=True, timeout=timeout, check=False
            )
        except subprocess.TimeoutExpired:
            return None
        if done.returncode in (0, 5):  # 5: no tests
            return []
        failed = Path(folder) / ".pytest_cache/v/cache/lastfailed"
        if done.returncode in (1, 2) and failed.exists():
            return list(json.loads(failed.read_text()))
        if done.returncode == 4:  # a conftest.py cannot be imported
            return tests.paths[:1]
        raise RuntimeError(f"{mutant}: pytest said {done.returncode}\n{done.stdout.decode()}")


def pytest_collection_modifyitems(items: List[Any]) -> None:
    """With this file as pytest's plugin: leave the chosen tests."""
    chosen = set(Path(os.environ[CHOSEN]).read_text().splitlines())
    items[:] = [x for x in items if not chosen.isdisjoint((x.nodeid, x.nodeid.split("::")[0]))]


def main() -> int:
    """Print each mutant and whether it was killed; the exit status counts the others."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=1800.0, help="seconds for one mutant")
    parser.add_argument("--list", action="store_true", help="only print the mutants")
    parser.add_argument(
        "--coverage",
        type=lambda name: Path(name).resolve(),
        default=ROOT / "build" / "mutants.coverage",
        help="which test runs which line; recorded where it is missing or older than the package",
    )
    args = parser.parse_args()
    chosen = choose(args.count, args.seed)
    if args.list:
        for mutant in chosen:
            print(mutant.describe(source_of(mutant)))
        return 0
    newest = max(path.stat().st_mtime for path in (ROOT / PACKAGE).rglob("*.py"))
    if not args.coverage.exists() or args.coverage.stat().st_mtime < newest:
        record(args.coverage, args.jobs)
    recorded = coverage.CoverageData(str(args.coverage))
    recorded.read()
    times: Times = collections.defaultdict(list)
    for case in ElementTree.parse(f"{args.coverage}.xml").iter("testcase"):
        times[case.get("file")].append(float(case.get("time")))
    tests = [tests_of(mutant, recorded, times) for mutant in chosen]
    words = {True: "killed   ", False: "SURVIVED ", None: "NO ANSWER "}
    answers = []
    os.environ["OMP_NUM_THREADS"] = "1"
    with (
        tempfile.TemporaryDirectory() as folder,
        forking_python.hold(server := f"{folder}/python.socket", *PRELOADED),
        concurrent.futures.ThreadPoolExecutor(args.jobs) as pool,
    ):
        results = pool.map(lambda *x: failures(*x, args.timeout, server), chosen, tests)
        for mutant, ran, failed in zip(chosen, tests, results, strict=True):
            answers.append(failed)
            word = words[None if failed is None else bool(failed)]
            why = f"  # {failed[0]}" if failed else "" if ran.is_covered else "  # uncovered"
            print(word + mutant.describe(source_of(mutant)) + why, flush=True)
        # a test that fails anyway kills no mutant
        killers = {test for failed in answers for test in failed or ()}
        paths = sorted({test.split("::")[0] for test in killers})
        anyway = failures(None, Tests(paths, killers), args.timeout, server)
    if anyway is None:
        anyway = sorted(killers)
    for test in anyway:
        print(f"{test} fails without a mutant, or takes too long", file=sys.stderr)
    killed = sum(bool(failed) and failed[0] not in anyway for failed in answers)
    print(f"{killed} of {len(chosen)} mutants killed")
    return len(chosen) - killed


if __name__ == "__main__":
    sys.exit(main())
