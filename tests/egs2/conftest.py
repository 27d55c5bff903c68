"""Lets the tests use the recipes' scripts as the recipes do."""

import functools
import importlib
import shutil
import sys

import pytest
from recipe_files import RECIPES

from lab import lists


@pytest.fixture
def local(monkeypatch):
    """Return a function: recipe, name -> module of its local/."""
    before = set(sys.modules)

    def load(recipe, name):
        monkeypatch.syspath_prepend(str(RECIPES / recipe / "lm" / "local"))
        return importlib.import_module(name)

    yield load
    for path in RECIPES.glob("*/lm/local/*.py"):
        if path.stem not in before:
            sys.modules.pop(path.stem, None)


@pytest.fixture
def script(local):
    """Return a function: name -> module of the sotu recipe's local/."""
    return functools.partial(local, "sotu")


@pytest.fixture
def place(tmp_path):
    """Return a function: recipe, files -> a folder with its scripts, and copies of the files."""

    def make(recipe, *copied):
        folder = tmp_path / "recipe"
        folder.mkdir()
        for path in (RECIPES / recipe / "lm").iterdir():
            if path.name in copied:
                shutil.copy(path, folder)
            elif path.name not in ("data", "exp"):
                (folder / path.name).symlink_to(path.resolve())
        return folder

    return make


@pytest.fixture
def refused(fails):
    """Return a function: folder of archives, options -> what is said of lists; none is written."""

    def run(archives, *options):
        output = archives.parent / "out"
        line = fails(lists.main, ["--nbest", archives, "--output", output, *options])
        assert line.startswith("local/nbest.sh: error: ") and not output.exists()
        return line

    return run
