"""A release: files of the wheel, an environment of its own, and types for programs."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "espnet_bayeslm"


def test_the_wheel_has_all_files_of_the_package(monkeypatch):
    """As setuptools finds them; configurations, templates and lists are no modules."""
    dist = pytest.importorskip("setuptools.dist", reason="setuptools is not installed")
    monkeypatch.chdir(ROOT)
    distribution = dist.Distribution({"script_name": "setup.py"})
    distribution.parse_config_files()
    built = distribution.get_command_obj("build_py")
    built.build_lib = "build"
    built.ensure_finalized()
    packed = {path.removeprefix("build/") for path in built.get_outputs(include_bytecode=False)}
    files = {path.relative_to(ROOT) for path in PACKAGE.rglob("*") if path.is_file()}
    assert packed == {str(path) for path in files if path.suffix != ".pyc"}


@pytest.mark.slow
def test_a_wheel_works_in_an_environment_of_its_own():
    command = [sys.executable, ROOT / "tools" / "wheel.py"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


PROGRAM = '''\
"""A user's program, with the types that they expect."""

import espnet_bayeslm
from espnet_bayeslm.mixture import Mixture, MixtureOptions
from espnet_bayeslm.nbest import Hypothesis, NBest

lm = espnet_bayeslm.load("exp/bayes")
total: float = lm.score("it is a test")
lists = [NBest("u1", (Hypothesis(("it", "is")), Hypothesis(("it", "was"))))]
for found in espnet_bayeslm.rescore(lists, lms=[lm], weights=[1.0]):
    best: str = " ".join(found.text)
mixture = Mixture.load(MixtureOptions(lms=["exp/bayes"], ngrams=["3gram.arpa"], weights=[0.6, 0.4]))
'''


@pytest.mark.slow
def test_programs_are_checked_strictly_against_the_types(tmp_path):
    """Types are those of `py.typed` in an installed package: its own errors are not shown.

    No public name is `Any`.
    """
    pytest.importorskip("mypy", reason="mypy is not installed: pip install -e '.[dev]'")
    page = (ROOT / "docs" / "reference" / "python.md").read_text()
    public = re.findall(r"auto\w+:: (espnet_bayeslm[\w.]*)\.(\w+)", page)
    wrong = 'wrong: int = lm.score("it is a test")\n'
    shown = "".join(f"from {m} import {n}\nreveal_type({n})\n" for m, n in public)
    (tmp_path / "program.py").write_text(PROGRAM + wrong + shown)
    (tmp_path / "mypy.ini").write_text("[mypy]\nfollow_imports = silent\n")
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", "mypy.ini", "program.py"]
    result = subprocess.run(
        command, cwd=tmp_path, env={"MYPYPATH": str(ROOT)}, capture_output=True, text=True
    )
    errors = [line for line in result.stdout.splitlines() if ": error: " in line]
    (error,) = errors
    line = PROGRAM.count("\n") + 1
    assert error.startswith(f"program.py:{line}: error: ") and '"float"' in error
    types = re.findall(r'Revealed type is "(.*)"$', result.stdout, re.MULTILINE)
    assert len(types) == len(public) > 40
    unknown = {name for (_, name), shown in zip(public, types, strict=True) if shown == "Any"}
    assert unknown == set()


def test_checkers_see_the_names_that_packages_import_late():
    """Imports under TYPE_CHECKING are those of `lazy_names`, but for `Bayes` of an upper folder."""
    checked = 0
    for path in PACKAGE.rglob("*.py"):
        nodes = [*ast.walk(ast.parse(path.read_text()))]
        calls = [node for node in nodes if isinstance(node, ast.Call) and len(node.args) == 2]
        late = [node for node in calls if getattr(node.func, "id", "") == "lazy_names"]
        lazy = {(m, n) for c in late for m, ns in ast.literal_eval(c.args[1]).items() for n in ns}
        imports = [node for node in nodes if isinstance(node, ast.ImportFrom)]
        seen = {(node.module, alias.name) for node in imports for alias in node.names}
        assert lazy - seen <= {("espnet_bayeslm.kinds.bayes", "Bayes")}, path
        checked += len(lazy)
    assert checked > 20
