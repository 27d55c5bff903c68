"""`bayeslm rescore` in parts, by other combinations, and tuned mixtures."""

import contextlib
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import time

import numpy as np
import pytest
import yaml

from espnet_bayeslm.bin.rescore import main
from espnet_bayeslm.evaluation.wer import count_errors, read_transcripts
from espnet_bayeslm.rescoring import read_nbest
from espnet_bayeslm.utils.files import read_keyed_lines


def run(*command):
    main([str(part) for part in command])


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def costs(path):
    return {key: [*map(float, line.split())] for key, (_, line) in read_keyed_lines(path).items()}


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr("espnet_bayeslm.rescoring.pipeline.BLOCK_SIZE", 20)


@pytest.fixture
def lms(point, bayes):
    return ["--lm", point, "--lm", bayes, "--weights", "0.4,0.6"]


@pytest.fixture
def segments(nbest, tmp_path):
    """Return a `segments` of four recordings, the utterances of each in an order of their own."""
    rng = random.Random(1)
    utts = [item.utt for item in read_nbest(nbest / "dev")]
    lines = [f"{u} rec{n % 4} {rng.random():.3f} 9" for n, u in enumerate(utts)]
    (tmp_path / "segments").write_text("\n".join(lines) + "\n")
    return tmp_path / "segments"


@pytest.mark.parametrize("with_segments", [False, True])
def test_merged_jobs_are_one_job_bit_for_bit(
    nbest, lms, tmp_path, small_blocks, segments, with_segments
):
    command = ["--nbest", nbest / "dev", *lms, "--token_scores", "true", "--lmwt", "9"]
    command += ["--segments", segments] if with_segments else []
    run(*command, "--output", tmp_path / "one")
    for job in (1, 2, 3):
        run(*command, "--output", tmp_path / f"job{job}", "--job", job, "--num_jobs", 3)
    merging = [x for job in (3, 1, 2) for x in ("--merge", tmp_path / f"job{job}")]
    options = ["--token_scores", "true", "--lmwt", "9", "--output", tmp_path / "merged"]
    run("--nbest", nbest / "dev", *merging, *options)
    one, merged = contents(tmp_path / "one"), contents(tmp_path / "merged")
    if with_segments:  # recordings one after the other; merged lists are in the lists' order
        one, merged = ({n: sorted(v.splitlines()) for n, v in c.items()} for c in (one, merged))
    assert one.keys() == merged.keys()
    assert all(one[name] == merged[name] for name in one if name != "scales.yaml")
    sizes = [len(list(read_nbest(tmp_path / f"job{job}"))) for job in (1, 2, 3)]
    assert sum(sizes) == 30 and min(sizes) > 0


def test_more_jobs_than_work(nbest, lms, tmp_path):
    command = ["--nbest", nbest / "dev", *lms]
    run(*command, "--output", tmp_path / "one")
    for job in (1, 2):  # one block is all
        run(*command, "--output", tmp_path / f"job{job}", "--job", job, "--num_jobs", 2)
    assert not (tmp_path / "job2" / "words_text").exists()
    merging = ["--merge", tmp_path / "job1", "--merge", tmp_path / "job2"]
    run("--nbest", nbest / "dev", *merging, "--output", tmp_path / "merged")
    for name in ("text", "lmwt.nn", "words_text"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "merged" / name).read_bytes()


def test_merging_can_tune(nbest, lms, tmp_path, small_blocks):
    command = ["--nbest", nbest / "dev", *lms]
    tuning = ["--tune_ref", nbest / "dev.ref"]
    run(*command, *tuning, "--output", tmp_path / "one")
    for job in (1, 2):
        run(*command, "--output", tmp_path / f"job{job}", "--job", job, "--num_jobs", 2)
    merging = ["--merge", tmp_path / "job1", "--merge", tmp_path / "job2"]
    run("--nbest", nbest / "dev", *merging, *tuning, "--output", tmp_path / "merged")
    for name in ("text", "lmwt.nn", "sweep.tsv"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "merged" / name).read_bytes()


def test_jobs_that_cannot_be_merged(nbest, lms, tmp_path, small_blocks, fails):
    command = ["--nbest", nbest / "dev", *lms]
    for job in (1, 2):
        run(*command, "--output", tmp_path / f"job{job}", "--job", job, "--num_jobs", 2)
    run(*command[:-1], "0.5,0.5", "--output", tmp_path / "x", "--job", 2, "--num_jobs", 2)
    run(*command, "--output", tmp_path / "whole")

    def merge(*names, lists="dev", more=()):
        words = [part for name in names for part in ("--merge", tmp_path / name)]
        output = ["--output", tmp_path / "out"]
        return fails(main, ["--nbest", nbest / lists, *words, *output, *more])

    assert "1 of 2 jobs are missing, the first 2" in merge("job1")
    assert "is job 1 as" in merge("job1", "job2", "job1")
    assert "has other settings" in merge("job1", "x")
    assert "not a job of `bayeslm rescore --job`" in merge("whole")
    assert "was made from other lists" in merge("job1", "job2", lists="test")
    assert "lmwt.nn.words" in merge("job1", "job2", more=["--token_scores", "true"])
    assert "--merge with --job" in merge("job1", "job2", more=["--num_jobs", "2"])
    assert not (tmp_path / "out").exists()


def test_a_job_cannot_tune(nbest, lms, tmp_path, fails):
    command = ["--nbest", nbest / "dev", *lms, "--output", tmp_path / "out", "--num_jobs", "2"]
    assert "a job has a part" in fails(main, [*command, "--tune_ref", nbest / "dev.ref"])


def test_a_killed_run_leaves_nothing_and_a_rerun_completes(python, nbest, lms, tmp_path):
    out = tmp_path / "new" / "out"
    command = ["--nbest", nbest / "dev", *lms, "--output", out]
    run(*command[:-1], tmp_path / "other")
    words = [python, "-m", "espnet_bayeslm.bin.rescore", *map(str, command)]
    # as many threads as here: sums of floats then agree
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "FORKED_PID": str(tmp_path / "pid")}
    for _ in range(3):  # the output may be there already when the kill arrives
        with open(tmp_path / "log", "w") as log:
            process = subprocess.Popen(words, stderr=log, stdout=log, env=environment)
            while not any(tmp_path.glob("new/.out.*/words_text")) and process.poll() is None:
                time.sleep(0.001)
            with contextlib.suppress(ProcessLookupError):
                os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
            process.wait()
        if not out.exists():
            assert process.returncode == -signal.SIGKILL
            break
        assert contents(out) == contents(tmp_path / "other")
        shutil.rmtree(out)
    run(*command)
    assert contents(out) == contents(tmp_path / "other")


def test_loglinear_costs_are_weighted_sums(nbest, point, bayes, tmp_path):
    lists = ["--nbest", nbest / "dev"]
    for name, lm in (("a", point), ("b", bayes)):
        run(*lists, "--lm", lm, "--output", tmp_path / name)
    options = ["--combine", "loglinear", "--weights", "0.5,1.25"]
    run(*lists, "--lm", point, "--lm", bayes, *options, "--output", tmp_path / "both")
    a, b, both = (costs(tmp_path / name / "lmwt.nn") for name in ("a", "b", "both"))
    for key, (cost,) in both.items():
        assert cost == pytest.approx(0.5 * a[key][0] + 1.25 * b[key][0], abs=1e-4)


def test_weights_that_fit_no_combination(nbest, point, bayes, tmp_path, fails):
    lms = ["--nbest", nbest / "dev", "--lm", point, "--lm", bayes, "--output", tmp_path / "out"]
    assert "with the sum" in fails(main, [*lms, "--weights", "0.5,1.25"])
    loglinear = [*lms, "--combine", "loglinear", "--weights"]
    assert "2 numbers from 0" in fails(main, [*loglinear, "0.5,-1"])
    assert "2 numbers from 0" in fails(main, [*loglinear, "0.5,1,1"])


def test_tuned_weights_have_the_fewest_errors_and_go_with_the_scales(
    nbest, point, ngram, tmp_path, capsys, fails
):
    lms = ["--lm", point, "--ngram", ngram]
    tuning = ["--weights", "0.35,0.65", "--tune_ref", nbest / "dev.ref", "--tune_weights", "true"]
    run("--nbest", nbest / "dev", *lms, *tuning, "--output", tmp_path / "dev")
    found = yaml.safe_load((tmp_path / "dev" / "scales.yaml").read_text())
    assert list(found["weights"]) == ["point", "bigram"]
    tried = json.loads((tmp_path / "dev" / "sweep.json").read_text())["weights"]
    rates = {tuple(row["weights"].values()): row["wer"] for row in tried}
    assert len(rates) == 12 and rates[tuple(found["weights"].values())] == min(rates.values())
    assert max(rates.values()) <= found["wer"]["first pass"] + 0.01
    capsys.readouterr()
    scales = ["--scales", tmp_path / "dev" / "scales.yaml"]
    run("--nbest", nbest / "test", *lms, *scales, "--output", tmp_path / "test")
    applied = yaml.safe_load((tmp_path / "test" / "scales.yaml").read_text())
    assert applied["components"] == found["weights"]
    assert all(applied.get(key) == found.get(key) for key in ("lmwt", "word_penalty", "features"))
    other = ["--nbest", nbest / "test", "--ngram", ngram, *scales, "--output", tmp_path / "other"]
    assert "--scales has weights for point, bigram" in fails(main, other)


def test_the_sweep_is_written_as_table_and_heat_map(nbest, ngram, tmp_path):
    tuning = ["--tune_ref", nbest / "dev.ref", "--output", tmp_path / "dev"]
    run("--nbest", nbest / "dev", "--ngram", ngram, *tuning)
    sweep = json.loads((tmp_path / "dev" / "sweep.json").read_text())
    rates = np.array(sweep["wer"])
    assert rates.shape == tuple(len(feature["weights"]) for feature in sweep["features"])
    row, column = sweep["best"]
    assert rates[row, column] == sweep["rescored"]
    best = read_transcripts(tmp_path / "dev" / "text")
    refs = read_transcripts(nbest / "dev.ref")
    assert sweep["rescored"] == pytest.approx(100 * count_errors(refs, best).rate, abs=1e-3)
    assert sweep["oracle"] <= sweep["rescored"] <= sweep["first_pass"]
    table = [line.split("\t") for line in (tmp_path / "dev" / "sweep.tsv").read_text().splitlines()]
    assert float(table[1 + row][1 + column]) == pytest.approx(rates[row, column], abs=0.01)
    assert (tmp_path / "dev" / "sweep.png").read_bytes().startswith(b"\x89PNG")
    assert all(len(line) == len(table[0]) for line in itertools.islice(table, 5))
