"""local/rescore.sh: rescoring in jobs, through the programs of cmd.sh or without."""

import pytest
from recipe_scripts import run_script

from espnet_bayeslm.bin import rescore as tool
from espnet_bayeslm.ngram.build import build_ngram

# a run.pl: [JOB=1:N] LOG COMMAND, and it says that it was there
RUNNER = """#!/usr/bin/env bash
echo "$@" >> calls
name=${1%%=*} last=${1#*=1:} log=$2; shift 2
for job in $(seq "${last}"); do
    "${@//${name}/${job}}" > "${log//${name}/${job}}" 2>&1 || exit 1
done
"""


@pytest.fixture
def folder(place):
    """Return a folder with the recipe's scripts, lists of three utterances and a bigram."""
    folder = place("sotu")
    (folder / "nbest").mkdir()
    lists = {"words_text": "a b", "acwt": "10", "lmwt.nolm": "0", "lmwt.withlm": "3"}
    for name, value in lists.items():
        lines = [f"u{n}-{rank} {value}" for n in range(3) for rank in (1, 2)]
        (folder / "nbest" / name).write_text("\n".join(lines) + "\n")
    (folder / "text").write_text("a b a c\nb a\na a b\n" * 20)
    build_ngram(folder / "text", folder / "lm.arpa", order=2, discount_fallback=True)
    return folder


@pytest.fixture
def rescore(folder, python):
    def run(*words):
        lists = ["--nbest", "nbest", "--ngram", "lm.arpa"]
        return run_script(folder, "local/rescore.sh", *lists, *words, PYTHON=python)

    return run


def test_jobs_give_the_result_of_one(folder, rescore, monkeypatch):
    (folder / "runner").write_text(RUNNER)
    (folder / "runner").chmod(0o755)
    monkeypatch.chdir(folder)
    tool.main(["--nbest", "nbest", "--ngram", "lm.arpa", "--output", "one"])
    runner = ["--cmd", "./runner"]
    for name, cmd in (("here", []), ("run", runner), ("JOBS", runner)):
        result = rescore("--nj", "2", "--output", name, *cmd)
        assert result.returncode == 0, result.stderr[-2000:]
        for file in ("text", "trn", "lmwt.nn", "words_text"):
            assert (folder / name / file).read_bytes() == (folder / "one" / file).read_bytes()
    assert (folder / "calls").read_text().startswith("JOB=1:2 run.jobs/log/rescore.JOB.log")


def test_a_job_that_fails_is_named(folder, rescore):
    result = rescore("--nj", "2", "--output", "out", "--max_oov_rate", "x")
    assert result.returncode != 0 and "job 1 failed" in result.stderr
    assert not (folder / "out").exists()


@pytest.mark.parametrize(
    "words, said",
    [
        (["--nj", "2"], "--output is needed"),
        (["--nj", "0", "--output", "x"], "--nj 0"),
        (["--output"], "needs a value"),
    ],
)
def test_bad_options(rescore, words, said):
    result = rescore(*words)
    assert result.returncode == 1 and said in result.stderr
