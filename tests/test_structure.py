"""Imports point down the list of layers, and every module says what it is."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "espnet_bayeslm"
# A part may import itself and the parts to its right.
LAYERS = [
    *["bin", "quickstart", "report", "training", "rescoring", "loading", "scoring"],
    *["nbest", "ngram", "evaluation", "lm", "kinds", "layers", "bayes", "kernels", "configs"],
    "utils",
]
# The parts below these know nothing of ESPnet's registries and trainer.
KNOWS_ESPNET_TASKS = {"bin", "training", "loading"}

MODULES = sorted(PACKAGE.rglob("*.py"))


def imported(path):
    """Yield the names of the modules that a file imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module


def part(name):
    words = name.split(".")
    return words[1] if words[0] == "espnet_bayeslm" and len(words) > 1 else None


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_point_down(path):
    folder = path.relative_to(PACKAGE).parts[0]
    if folder not in LAYERS:
        pytest.skip("the package's own entry points")
    for name in imported(path):
        assert not name.startswith("espnet."), f"{name}: espnet.nets moves in the next release"
        assert name.split(".")[0] != "lab", f"{path} imports {name} of the recipes"
        if part(name) is not None:
            assert LAYERS.index(part(name)) >= LAYERS.index(folder), f"{path} imports {name}"
        if re.match(r"espnet2\.(tasks|train)\b", name):
            assert folder in KNOWS_ESPNET_TASKS, f"{path} imports {name}"


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_modules_are_documented(path):
    assert ast.get_docstring(ast.parse(path.read_text())), path


def test_the_tools_are_listed_and_exist():
    from espnet_bayeslm.bin.bayeslm import TOOLS

    files = {p.stem for p in (PACKAGE / "bin").glob("*.py")}
    assert set(TOOLS) <= files
    assert all((PACKAGE / "bin" / f"{tool}.py").read_text().count("def main(") for tool in TOOLS)
