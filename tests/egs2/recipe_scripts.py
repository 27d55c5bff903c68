"""Files of the recipes' tests, and the recipes' scripts as a shell runs them."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RECIPES = ROOT / "egs2"
# what tells the recipes of corpora and of a Python
VARIABLES = ("AMI", "AMI_TEXT", "FISHER", "LRS2", "NBEST", "VENV")


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def files_of(folder):
    """Return {file below a folder: its lines}."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): path.read_text().splitlines() for path in files}


def run_script(folder, *words, **variables):
    """Run a script of a recipe in a folder."""
    environment = {k: v for k, v in os.environ.items() if k not in VARIABLES}
    environment |= {
        "PYTHON": sys.executable,
        "PYTHONPATH": f"{ROOT}:{RECIPES}/TEMPLATE/lm",
        **variables,
    }
    command = ["bash", *map(str, words)]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
