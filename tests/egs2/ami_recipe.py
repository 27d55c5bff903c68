"""Imports the AMI recipe's scripts as the recipe does, in a folder with a table of a few lines."""

import importlib
import sys
from pathlib import Path

import pytest

LOCAL = Path(__file__).resolve().parents[2] / "egs2" / "ami" / "lm" / "local"
LINES = """# table line lm kind where options ppl wer
some 1 lstm point - - 60.4/59.6 24.7/27.3
some 2 lstm map - - 52.5/53.7 24.5/27.0
some 3 lstm bayes cell_input@1-2 - 46.0/47.1 24.2/26.7
some 4 lstm bayes nas nas=1 - -
some 5 transformer point - - 46.9/48.4 24.5/27.0
some 6 transformer variational hidden_output@1 - - -
some 7 - mix point_lstm+point_transformer - 54.8/55.1 24.2/26.8
"""


def make_recipe(folder):
    """Make a recipe's folder with one table and one size."""
    (folder / "conf" / "tables").mkdir(parents=True)
    (folder / "conf" / "tables" / "some.txt").write_text(LINES)
    (folder / "conf" / "small_lstm_half.yaml").write_text("lm: bayes_lstm\n")


@pytest.fixture(name="ami")
def ami_recipe(monkeypatch, tmp_path):
    """Return a function: name -> module of local/; the working folder has the table `some`."""
    names = [path.stem for path in LOCAL.glob("*.py")]
    for name in names:
        sys.modules.pop(name, None)
    make_recipe(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(LOCAL))
    yield importlib.import_module
    for name in names:
        sys.modules.pop(name, None)
