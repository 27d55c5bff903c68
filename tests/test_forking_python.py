"""The `python` of the tests does what Python does."""

import json
import os
import signal
import subprocess
import sys
import time

import forking_python
import pytest

SCRIPT = """
import json, os, sys
seen = [__name__, sys.argv, sys.path[:2], os.getcwd(), os.environ.get("X"), sys.stdin.read()]
print(json.dumps(seen))
print("warning", file=sys.stderr)
"""


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    """The command of a client whose server has `decimal`."""
    path = str(tmp_path_factory.mktemp("server") / "socket")
    with forking_python.hold(path, "decimal"):
        yield [sys.executable, "-I", "-S", forking_python.__file__, path]


@pytest.fixture
def write(tmp_path):
    def write(text):
        (tmp_path / "script.py").write_text(text)
        return tmp_path / "script.py"

    return write


def test_a_script_as_python_runs_it(words, write, tmp_path):
    script = write(SCRIPT)
    environment = {**os.environ, "X": "1", "PYTHONPATH": "/nowhere"}
    results = [
        subprocess.run(
            [*python, script, "a b", "-c"],
            cwd=tmp_path.parent,
            env=environment,
            input="stdin",
            capture_output=True,
            text=True,
        )
        for python in (words, [sys.executable])
    ]
    assert results[0].stdout == results[1].stdout and json.loads(results[0].stdout)[5] == "stdin"
    assert [result.stderr for result in results] == ["warning\n"] * 2
    assert [result.returncode for result in results] == [0, 0]


@pytest.mark.parametrize(
    "text, status",
    [
        ("raise SystemExit(3)", 3),
        ("raise SystemExit('message')", 1),
        ("1 / 0", 1),
        ("import sys; sys.exit()", 0),
        ("import os; os.kill(os.getpid(), 9)", -9),
        # threads are waited for, then the functions registered with atexit are called
        ("import atexit, os; atexit.register(os._exit, 4)", 4),
        (
            "import os, threading, time\ndef end(): time.sleep(0.1); os._exit(5)\n"
            "threading.Thread(target=end).start()",
            5,
        ),
        ("import sys; sys.exit('decimal' not in sys.modules)", 0),
    ],
)
def test_how_it_ends(words, write, text, status):
    result = subprocess.run([*words, write(text)], capture_output=True, text=True)
    assert result.returncode == status
    assert ("message" in result.stderr) == ("message" in text)
    assert ("ZeroDivisionError" in result.stderr) == ("/" in text)


def test_it_ends_with_its_client(words, write, tmp_path):
    script = write(
        "import os, pathlib, time\n"
        "pathlib.Path('new').write_text(str(os.getpid()))\n"
        "os.rename('new', 'pid')\n"
        "time.sleep(3600)\n"
    )
    client = subprocess.Popen([*words, script], cwd=tmp_path)
    while not (tmp_path / "pid").exists():
        assert client.poll() is None
        time.sleep(0.01)
    child = os.pidfd_open(int((tmp_path / "pid").read_text()))
    client.kill()
    assert client.wait() == -signal.SIGKILL
    with pytest.raises(ProcessLookupError):
        while True:  # until it has ended
            signal.pidfd_send_signal(child, 0)
            time.sleep(0.01)
