"""What the tests of the AMI recipe's N-best lists share."""

import importlib
import sys
from pathlib import Path

import pytest

RECIPE = Path(__file__).resolve().parents[2] / "egs2" / "ami" / "lm"


@pytest.fixture(name="nbest")
def nbest_lists(monkeypatch):
    """Return the module nbest_lists of the recipe's local/."""
    monkeypatch.syspath_prepend(str(RECIPE / "local"))
    yield importlib.import_module("nbest_lists")
    for name in ("nbest_lists", "nbest_lattices"):
        sys.modules.pop(name, None)


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def failure(nbest, capsys, archives, *options):
    """Return the line in which a call ends; it must have written nothing."""
    output = archives.parent / "out"
    with pytest.raises(SystemExit) as stopped:
        nbest.main(["--nbest", str(archives), "--output", str(output), *map(str, options)])
    assert stopped.value.code == 1
    assert not output.exists()
    (line,) = capsys.readouterr().err.splitlines()[-1:]
    assert line.startswith("local/nbest.sh: error: ")
    return line
