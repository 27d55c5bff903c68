"""Lets the tests import the recipe's scripts as the recipe does."""

import importlib
import sys
from pathlib import Path

import pytest

RECIPE = Path(__file__).resolve().parents[2] / "egs2" / "sotu" / "lm"


@pytest.fixture
def recipe() -> Path:
    return RECIPE


@pytest.fixture
def script(monkeypatch):
    """Return a function: name -> module of local/."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(RECIPE / "local"))
    yield importlib.import_module
    local = (path.stem for path in (RECIPE / "local").glob("*.py"))
    for name in local:
        if name not in before:
            sys.modules.pop(name, None)
