"""`bayeslm rescore` in parts, by other combinations."""

import json

import numpy as np
import pytest
from command_lines import contents, is_whole_png, run, run_jobs, same_files
from tiny_training import words

from espnet_bayeslm.bin.rescore import main
from espnet_bayeslm.evaluation.wer import count_errors, read_transcripts
from espnet_bayeslm.rescoring import read_nbest


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr("espnet_bayeslm.rescoring.list_worker.BLOCK_SIZE", 20)


@pytest.fixture
def lms(point, bayes):
    return {"lm": [point, bayes], "weights": "0.4,0.6"}


@pytest.mark.parametrize("with_segments", [False, True])
def test_merged_jobs_are_one_job_bit_for_bit(
    nbest, lms, ngram, tmp_path, small_blocks, segments, with_segments
):
    given = {"nbest": nbest / "dev", "token_scores": "true", "lmwt": 9, "subtract_weight": -0.3}
    lms = {**lms, "subtract_lm": ngram, **({"segments": segments} if with_segments else {})}
    one = contents(run(**given, **lms, output=tmp_path / "one"))
    last, *others = run_jobs(tmp_path, 3, **given, **lms)[::-1]
    merged = contents(run(**given, merge=[last, *others[::-1]], output=tmp_path / "merged"))
    if with_segments:  # recordings one after the other; merged lists are in the lists' order
        one, merged = ({n: sorted(v.splitlines()) for n, v in c.items()} for c in (one, merged))
    assert one.keys() == merged.keys()
    assert all(one[name] == merged[name] for name in one if name != "scales.yaml")
    sizes = [len(list(read_nbest(folder))) for folder in (last, *others)]
    assert sum(sizes) == 30 and min(sizes) > 0


def test_merging_can_tune_and_there_may_be_more_jobs_than_work(nbest, lms, tuning, tmp_path):
    one = run(**tuning, **lms, output=tmp_path / "one")
    jobs = run_jobs(tmp_path, 2, nbest=nbest / "dev", **lms)  # one block is all
    assert not (jobs[1] / "words_text").exists()
    merged = run(**tuning, merge=jobs, output=tmp_path / "merged")
    assert same_files(one, merged, "text", "lmwt.nn", "words_text", "sweep.json")


def test_jobs_that_cannot_be_merged(nbest, lms, tmp_path, small_blocks, refused):
    lists = {"nbest": nbest / "dev", **lms}
    run_jobs(tmp_path, 2, **lists)
    run(**{**lists, "weights": "0.5,0.5"}, output=tmp_path / "x", job=2, num_jobs=2)
    run(**lists, output=tmp_path / "whole")

    def check(message, *names, lists="dev", **options):
        folders = [tmp_path / name for name in names]
        output = tmp_path / "out"
        command = words(nbest=nbest / lists, merge=folders, output=output, **options)
        refused(main, command, message)

    check("1 of 2 jobs are missing, the first 2", "job1")
    check("is job 1 as", "job1", "job2", "job1")
    check("has other settings", "job1", "x")
    check("not a job of `bayeslm rescore --job`", "whole")
    check("was made from other lists", "job1", "job2", lists="test")
    check("lmwt.nn.words", "job1", "job2", token_scores="true")
    costs_of_job = tmp_path / "job2" / "lmwt.nn"
    good = costs_of_job.read_text()
    first = good.split()[0]
    for damaged, error in (
        (good.replace(first, "other-1", 1), f"no job has a cost of '{first}'"),
        (f"{good}other-1 2.5\n", "1 costs of hypotheses that are not in the lists"),
        (good.replace(f"{first} ", f"{first} x", 1), "lmwt.nn:1: expected costs, got 'x"),
    ):
        costs_of_job.write_text(damaged)
        check(error, "job1", "job2")


def test_the_sweep_is_written_with_its_heat_map(nbest, outputs):
    """In the middle stands what was chosen."""
    output = outputs / "ngram"
    sweep = json.loads((output / "sweep.json").read_text())
    rates, place = np.array(sweep["wer"]), tuple(sweep["best"])
    assert rates.shape == tuple(len(feature["weights"]) for feature in sweep["features"])
    assert rates[place] == sweep["rescored"]
    refs, best = (read_transcripts(p) for p in (nbest / "dev.ref", output / "text"))
    assert sweep["rescored"] == pytest.approx(100 * count_errors(refs, best).rate, abs=1e-3)
    assert sweep["oracle"] <= sweep["rescored"] <= sweep["first_pass"]
    assert is_whole_png(output / "sweep.png")
