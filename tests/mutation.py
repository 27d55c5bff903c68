"""Single-line mutants of the package: would the tests notice?

`python tests/mutation.py --count 40` changes one operator or number at a time in a copy of the
package, runs the tests of that part and prints which changes nobody noticed. What only steers
speed or words a message is left out: names in capitals, `raise`, logging, annotations.
"""

from __future__ import annotations

import argparse
import ast
import concurrent.futures
import dataclasses
import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Iterator, List, Tuple

ROOT = Path(__file__).parent.parent
PACKAGE = "espnet_bayeslm"
# Each part, and the tests that are to notice; the module's own tests come first.
PARTS = {
    "bayes": ["bayes", "lm/test_contract.py", "lm/test_kinds.py", "training/test_model.py"],
    "layers": ["layers", "lm/test_contract.py", "lm/test_reference.py", "lm/test_kinds.py", "lm"],
    "kernels": ["kernels", "layers", "lm/test_contract.py", "lm/test_tree.py", "lm"],
    "scoring": ["scoring", "rescoring", "lm/test_decoding.py"],
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
LOGGING = ("logging", "warnings", "tqdm")


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
        return isinstance(target, ast.Name) and target.id.isupper()
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


def tests_of(mutant: Mutant) -> List[str]:
    """Test files and folders, the module's own first."""
    own = sorted((ROOT / "tests" / mutant.part).rglob(f"test_{Path(mutant.path).stem}*.py"))
    rest = [ROOT / "tests" / name for name in PARTS[mutant.part]]
    return [str(path) for path in dict.fromkeys([*own, *rest]) if path.exists()]


def is_killed(mutant: Mutant, timeout: float) -> bool | None:
    """Whether a test fails with the mutant; None where they took too long, or hang."""
    with tempfile.TemporaryDirectory() as folder:
        for name in ("egs2", "bench", "setup.cfg", "README.md", "docs", "Makefile"):
            if (ROOT / name).exists():
                os.symlink(ROOT / name, Path(folder) / name)
        for name in ("tests", "conf", PACKAGE):  # conf/ links into the package
            shutil.copytree(ROOT / name, Path(folder) / name, symlinks=True)
        target = Path(folder) / PACKAGE / mutant.path
        target.write_text(mutant.apply(target.read_text()))
        tests = [path.replace(str(ROOT), folder) for path in tests_of(mutant)]
        env = {**os.environ, "PYTHONPATH": folder, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
        try:
            done = subprocess.run(
                command, cwd=folder, env=env, capture_output=True, timeout=timeout, check=False
            )
        except subprocess.TimeoutExpired:
            return None
        if done.returncode not in (0, 1, 2):
            raise RuntimeError(f"{mutant}: pytest said {done.returncode}\n{done.stdout.decode()}")
        return done.returncode != 0


def main() -> int:
    """Print each mutant and whether it was killed; the exit status counts the others."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=1800.0, help="seconds for one mutant")
    parser.add_argument("--list", action="store_true", help="only print the mutants")
    args = parser.parse_args()
    chosen = choose(args.count, args.seed)
    if args.list:
        for mutant in chosen:
            print(mutant.describe(source_of(mutant)))
        return 0
    for part in PARTS:  # a test that fails anyway would kill every mutant
        if is_killed(Mutant(part, "__init__.py", 1, 0, 0, ""), args.timeout) is not False:
            print(f"tests of {part} fail without a mutant, or take too long", file=sys.stderr)
            return len(chosen)
    words = {True: "killed   ", False: "SURVIVED ", None: "NO ANSWER "}
    killed = 0
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        results = pool.map(lambda mutant: is_killed(mutant, args.timeout), chosen)
        for mutant, result in zip(chosen, results, strict=True):
            killed += result is True
            print(words[result] + mutant.describe(source_of(mutant)), flush=True)
    print(f"{killed} of {len(chosen)} mutants killed")
    return len(chosen) - killed


if __name__ == "__main__":
    sys.exit(main())
