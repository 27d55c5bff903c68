"""The notebooks run, cell by cell, and hold no outputs."""

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])
def test_a_notebook_runs(path, capsys):
    cells = [c for c in json.loads(path.read_text())["cells"] if c["cell_type"] == "code"]
    assert cells and not any(cell["outputs"] for cell in cells)
    names: dict = {}
    for number, cell in enumerate(cells, 1):
        exec(compile("".join(cell["source"]), f"{path.name}[{number}]", "exec"), names)
    shown = capsys.readouterr().out
    right, wrong = (float(x) for x in shown.splitlines()[0].split())
    assert wrong < right < 0
    # the second best of the recogniser, which the LM finds likely
    assert shown.splitlines()[-1] == "utt1 ann likes tea"


def test_the_package_says_that_it_is_typed():
    assert (ROOT / "espnet_bayeslm" / "py.typed").is_file()
    assert "espnet_bayeslm = py.typed" in (ROOT / "setup.cfg").read_text()
