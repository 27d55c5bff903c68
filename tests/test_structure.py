"""Imports point down the list of layers; names and docstrings of modules."""

import ast
import collections
import graphlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "espnet_bayeslm"
# A part may import itself and the parts below it in the table.
TABLE = (ROOT / "CONTRIBUTING.md").read_text()
LAYERS = re.findall(r"^\| `(\w+)/` \|", TABLE, re.MULTILINE)
# The parts below these know nothing of ESPnet's registries and trainer.
KNOWS_ESPNET_TASKS = {"bin", "training", "loading"}

MODULES = sorted(PACKAGE.rglob("*.py"))
LAB = ROOT / "egs2/TEMPLATE/lm/lab"
ROOMS = [*(PACKAGE / layer for layer in LAYERS), LAB]

# Modules of one name -> their folders. Twins are about one thing: a tool and its module, an LM and
# its layers.
TWINS = {
    "export": {"bin", "loading"},
    "adapt": {"bin", "workflows"},
    "compare": {"bin", "workflows"},
    "quickstart": {"bin", "workflows"},
    "perplexity": {"bin", "scoring"},
    "rescore": {"bin", "rescoring"},
    "search": {"bin", "kinds"},
    "lattice": {"bin", "nbest"},
    "ngram": {"bin", "lm"},
    "lstm": {"layers", "lm"},
    "transformer": {"layers", "lm"},
}
# Public classes and functions of one name -> their modules. Twins do one thing.
DEFINED_TWINS = {
    # a program's entry point
    "main": {"bin/bayeslm", "bin/lm_train", "bin/report", "workflows/runner"},
    # the tool `bayeslm rescore`, and the function of Python
    "rescore": {"bin/rescore", "rescoring/rescore"},
}
# A first line begins with a verb or a noun of the field.
RIDDLE = re.compile(
    r"(Returns? )?(What|Whether|How|See|That|Those|It|Its|Their|As|The same)\b", re.IGNORECASE
)


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
    if path.parent == PACKAGE:
        pytest.skip("the package's own entry points")
    for name in imported(path):
        assert not name.startswith("espnet."), f"{name}: espnet.nets moves in the next release"
        assert name.split(".")[0] != "lab", f"{path} imports {name} of the recipes"
        if part(name) is not None:
            assert LAYERS.index(part(name)) >= LAYERS.index(folder), f"{path} imports {name}"
        if re.match(r"espnet2\.(tasks|train)\b", name):
            assert folder in KNOWS_ESPNET_TASKS, f"{path} imports {name}"


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.name)
def test_no_circle_in_a_room(room):
    """Imports in functions and for type checkers count: a circle hides there."""
    package = "lab" if room == LAB else f"espnet_bayeslm.{room.name}"
    modules = {f"{package}.{path.stem}": path for path in room.glob("*.py")}
    assert modules, f"{room} of CONTRIBUTING.md does not exist"
    graph = {}
    for name, path in modules.items():
        tree = ast.parse(path.read_text())
        if path.stem == "__init__":  # names what it offers to type checkers
            tree.body = [node for node in tree.body if not isinstance(node, ast.If)]
        nodes = (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))
        named = {(node.module, alias.name) for node in nodes for alias in node.names}
        whole = {f"{module}.{name}" for module, name in named}
        fronts = {f"{module}.__init__" for module, n in named if f"{module}.{n}" not in modules}
        graph[name] = modules.keys() & {*whole, *fronts, *(module for module, _ in named)}
    graphlib.TopologicalSorter(graph).prepare()  # raises an error that names a circle


def test_no_module_name_stands_twice():
    folders = collections.defaultdict(set)
    for path in MODULES:
        if path.stem != "__init__":
            folders[path.stem].add(str(path.parent.relative_to(PACKAGE)))
    assert all(
        len(found) == 1 or found <= TWINS.get(name, set()) for name, found in folders.items()
    ), folders


def test_no_class_or_function_name_stands_twice():
    modules = collections.defaultdict(set)
    for path in MODULES:
        for node in ast.parse(path.read_text()).body:
            is_definition = isinstance(node, (ast.ClassDef, ast.FunctionDef))
            if is_definition and not node.name.startswith("_"):
                modules[node.name].add(str(path.relative_to(PACKAGE).with_suffix("")))
    twice = {
        name: found
        for name, found in modules.items()
        if len(found) > 1 and not found <= DEFINED_TWINS.get(name, set())
    }
    assert not twice, twice


def public_docstrings(node, name):
    """Yield the name and docstring of a module, and of all public classes and functions in it."""
    yield name, ast.get_docstring(node) or ""
    for child in node.body:
        is_definition = isinstance(child, (ast.ClassDef, ast.FunctionDef))
        if is_definition and not child.name.startswith("_"):
            yield from public_docstrings(child, f"{name}: {child.name}")


def test_docstrings_begin_with_a_verb_or_a_noun():
    riddles = [
        f"{name}: {text.splitlines()[0]}"
        for path in MODULES
        for name, text in public_docstrings(
            ast.parse(path.read_text()), str(path.relative_to(PACKAGE))
        )
        if RIDDLE.match(text)
    ]
    assert not riddles, "\n".join(riddles)


def test_modules_of_the_glossary_exist():
    named = set(re.findall(r"`(\w+/[\w/]+\.py)`", (ROOT / "docs/glossary.md").read_text()))
    assert len(named) > 30
    assert {name for name in named if not (PACKAGE / name).exists()} == set()


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_the_root_logger_is_left_to_the_program(path):
    """`logging.info` and the like configure the root, and ESPnet's `basicConfig` is lost."""
    levels = {"debug", "info", "warning", "error", "exception", "critical", "log"}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            assert node.value.id != "logging" or node.attr not in levels, f"{path}:{node.lineno}"
