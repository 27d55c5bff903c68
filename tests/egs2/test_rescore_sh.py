"""local/rescore.sh: rescoring in jobs, through the programs of cmd.sh or without."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# a run.pl: [JOB=1:N] LOG COMMAND, and it says that it was there
RUNNER = """#!/usr/bin/env bash
echo "$@" >> calls
name=${1%%=*} last=${1#*=1:} log=$2; shift 2
for job in $(seq "${last}"); do
    "${@//${name}/${job}}" > "${log//${name}/${job}}" 2>&1 || exit 1
done
"""


@pytest.fixture
def scripts(recipe, tmp_path):
    """Return a folder with the recipe's scripts."""
    for name in ("path.sh", "cmd.sh", "local/rescore.sh"):
        target = tmp_path / name
        target.parent.mkdir(exist_ok=True)
        text = (recipe / name).read_text()
        # the recipe's folder is known by where path.sh is
        target.write_text(text.replace('$(dirname "${BASH_SOURCE[0]}")/../../..', str(ROOT)))
    return tmp_path


@pytest.fixture
def place(scripts, bayeslm):
    """Return a folder with scripts, lists of three utterances and a bigram."""
    tmp_path = scripts
    (tmp_path / "nbest").mkdir()
    lists = {"words_text": "a b", "acwt": "10", "lmwt.nolm": "0", "lmwt.withlm": "3"}
    for name, value in lists.items():
        lines = [f"u{n}-{rank} {value}" for n in range(3) for rank in (1, 2)]
        (tmp_path / "nbest" / name).write_text("\n".join(lines) + "\n")
    (tmp_path / "text").write_text("a b a c\nb a\na a b\n" * 20)
    bayeslm(tmp_path, "ngram", "--text", "text", "--order", "2", "--arpa", "lm.arpa",
            "--discount_fallback", "true")  # fmt: skip
    return tmp_path


@pytest.fixture
def environment(python):
    return {**os.environ, "PYTHON": python, "PYTHONPATH": str(ROOT)}


@pytest.fixture
def bayeslm(python, environment):
    def run(folder, *words):
        command = [python, "-m", "espnet_bayeslm.bin.bayeslm", *words]
        subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True)

    return run


@pytest.fixture
def rescore(environment):
    def run(place, *words):
        command = ["bash", "local/rescore.sh", "--nbest", "nbest", "--ngram", "lm.arpa", *words]
        return subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True)

    return run


def test_jobs_give_the_result_of_one(place, bayeslm, rescore):
    (place / "runner").write_text(RUNNER)
    (place / "runner").chmod(0o755)
    bayeslm(place, "rescore", "--nbest", "nbest", "--ngram", "lm.arpa", "--output", "one")
    runner = ["--cmd", "./runner"]
    for name, cmd in (("here", []), ("run", runner), ("JOBS", runner)):
        result = rescore(place, "--nj", "2", "--output", name, *cmd)
        assert result.returncode == 0, result.stderr[-2000:]
        for file in ("text", "trn", "lmwt.nn", "words_text"):
            assert (place / name / file).read_bytes() == (place / "one" / file).read_bytes()
    assert (place / "calls").read_text().startswith("JOB=1:2 run.jobs/log/rescore.JOB.log")


def test_a_job_that_fails_is_named(place, rescore):
    result = rescore(place, "--nj", "2", "--output", "out", "--max_oov_rate", "x")
    assert result.returncode != 0 and "job 1 failed" in result.stderr
    assert not (place / "out").exists()


@pytest.mark.parametrize(
    "words, said",
    [
        (["--nj", "2"], "--output is needed"),
        (["--nj", "0", "--output", "x"], "--nj 0"),
        (["--output"], "needs a value"),
    ],
)
def test_bad_options(scripts, rescore, words, said):
    result = rescore(scripts, *words)
    assert result.returncode == 1 and said in result.stderr
