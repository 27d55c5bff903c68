"""`bayeslm rescore`: the lists' own references, splits and folds, and what is said of them."""

import json
import random

import numpy as np
import pytest
import yaml

from espnet_bayeslm.bin.rescore import main
from espnet_bayeslm.evaluation.wer import read_transcripts
from espnet_bayeslm.nbest.formats import read_nbest


def run(*command):
    main([str(part) for part in command])


def write_jsonl(path, *, num_utts=60, scores="total", with_refs=True, good=True, seed=0):
    """Write lists of five noisy copies; their scores know the errors where they are `good`."""
    rng = random.Random(seed)
    rows = []
    for utt in range(num_utts):
        ref = rng.choices("abcdefghij", k=rng.randint(3, 9))
        hyps = []
        for _ in range(5):
            words = [rng.choice("abcdefghij") if rng.random() < 0.3 else w for w in ref]
            wrong = sum(a != b for a, b in zip(words, ref, strict=True))
            hyp = {"text": " ".join(words)}
            if scores == "total":
                hyp["score"] = -3.0 * len(words) - (wrong if good else 0) + rng.gauss(0, 0.3)
            hyps.append(hyp)
        if not good:  # the first is the best there is
            hyps.sort(
                key=lambda h: sum(a != b for a, b in zip(h["text"].split(), ref, strict=True))
            )
        row = {"utt": f"u{utt:03d}", "speaker": f"s{utt % 6}", "hypotheses": hyps}
        if with_refs is True or (with_refs == "half" and utt % 2):
            row["ref"] = " ".join(ref)
        rows.append(row)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return rows


def command(lists, ngram, output, *more):
    options = ["--nbest", lists, "--nbest_format", "jsonl", "--ngram", ngram, "--output", output]
    return [*options, *more]


def settings(output):
    return yaml.safe_load((output / "scales.yaml").read_text())


def test_the_lists_own_references_are_the_defaults(ngram, tmp_path, capsys):
    rows = write_jsonl(tmp_path / "dev.jsonl")
    refs = "".join(f"{row['utt']} {row['ref']}\n" for row in rows)
    (tmp_path / "ref").write_text(refs)
    run(*command(tmp_path / "dev.jsonl", ngram, tmp_path / "own"))
    out = capsys.readouterr().out
    assert "errors on held-out lists (5 folds)" in out and "first pass" in out
    run(*command(tmp_path / "dev.jsonl", ngram, tmp_path / "file", "--tune_ref", tmp_path / "ref"))
    own, file = settings(tmp_path / "own"), settings(tmp_path / "file")
    assert own.pop("tuned_on") == str(tmp_path / "dev.jsonl") != file.pop("tuned_on")
    assert own == file and own["wer"]["rescored"] < own["wer"]["first pass"]
    # other lists: scales are given, and their references count the errors
    write_jsonl(tmp_path / "test.jsonl", seed=1)
    scales = ["--scales", tmp_path / "own" / "scales.yaml"]
    run(*command(tmp_path / "test.jsonl", ngram, tmp_path / "test", *scales))
    found = settings(tmp_path / "test")
    assert "tuning" not in found and found["wer"]["rescored"] < found["wer"]["first pass"]


def test_a_part_is_tuned_on_and_the_other_tested(ngram, tmp_path, capsys):
    write_jsonl(tmp_path / "all.jsonl")
    run(*command(tmp_path / "all.jsonl", ngram, tmp_path / "out", "--split", 0.5))
    out = capsys.readouterr().out
    assert out.index("\ntuning ") < out.index("\ntest ")
    found = settings(tmp_path / "out")
    # three speakers of six
    lines = (tmp_path / "all.jsonl").read_text().splitlines(keepends=True)
    refs = {r["utt"]: r["ref"] for r in map(json.loads, lines)}
    mine = {u: refs[u] for n, u in enumerate(refs) if n % 6 < 3}
    assert found["tuning"]["words"] == sum(len(ref.split()) for ref in mine.values())
    assert found["wer"]["rescored"] < found["wer"]["first pass"]
    own = [line for line in lines if json.loads(line)["utt"] in mine]
    (tmp_path / "mine.jsonl").write_text("".join(own))
    run(*command(tmp_path / "mine.jsonl", ngram, tmp_path / "mine"))
    alone = settings(tmp_path / "mine")
    assert alone["wer"] == found["wer_of_tuning"]
    for key in ("lmwt", "word_penalty", "features"):
        assert alone.get(key) == found.get(key)


def test_folds_are_rescored_with_what_the_others_tell(ngram, tmp_path):
    write_jsonl(tmp_path / "all.jsonl")
    run(*command(tmp_path / "all.jsonl", ngram, tmp_path / "folds", "--folds", 3))
    run(*command(tmp_path / "all.jsonl", ngram, tmp_path / "all"))
    folds, whole = settings(tmp_path / "folds"), settings(tmp_path / "all")
    # the scales that are kept are those of all lists; the errors are not
    assert folds["tuning"] == whole["tuning"] and folds.get("lmwt") == whole.get("lmwt")
    assert folds["wer"]["rescored"] >= whole["wer"]["rescored"] - 1
    assert folds["wer"]["first pass"] == whole["wer"]["first pass"]
    assert len(read_transcripts(tmp_path / "folds" / "text")) == 60


def test_lists_whose_first_is_the_best_stay_as_they_came(ngram, tmp_path, capsys):
    rows = write_jsonl(tmp_path / "dev.jsonl", good=False)
    run(*command(tmp_path / "dev.jsonl", ngram, tmp_path / "out"))
    assert capsys.readouterr().out.startswith("as it came\nas it came: no gain is sure")
    found = settings(tmp_path / "out")
    assert found["features"] == {"is_first": 1.0} and "lmwt" not in found
    best = read_transcripts(tmp_path / "out" / "text")
    first = {row["utt"]: tuple(row["hypotheses"][0]["text"].split()) for row in rows}
    assert best == first
    scales = ["--scales", tmp_path / "out" / "scales.yaml"]
    run(*command(tmp_path / "dev.jsonl", ngram, tmp_path / "again", *scales))
    assert read_transcripts(tmp_path / "again" / "text") == first


def test_a_result_below_the_first_pass_is_said(ngram, tmp_path, caplog):
    write_jsonl(tmp_path / "dev.jsonl", good=False, scores="none")
    run(*command(tmp_path / "dev.jsonl", ngram, tmp_path / "out", "--lmwt", 1))
    warnings = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert any("rescored is worse than the first pass: " in message for message in warnings)


def test_lists_without_scores_have_a_rank(ngram, tmp_path, caplog):
    write_jsonl(tmp_path / "dev.jsonl", scores="none")
    caplog.set_level("INFO")
    run(*command(tmp_path / "dev.jsonl", ngram, tmp_path / "out"))
    assert any("the rank stands in" in r.getMessage() for r in caplog.records)
    wer = settings(tmp_path / "out")["wer"]
    assert wer["rescored"] <= wer["first pass"]


def test_bad_references_and_options(ngram, tmp_path, fails):
    write_jsonl(tmp_path / "half.jsonl", with_refs="half")
    write_jsonl(tmp_path / "none.jsonl", with_refs=False)
    half = command(tmp_path / "half.jsonl", ngram, tmp_path / "out")
    assert "half.jsonl: 30 of 60 lists have a reference, 'u000' has none" in fails(main, half)
    none = command(tmp_path / "none.jsonl", ngram, tmp_path / "out")
    assert "--split needs references to tune on" in fails(main, [*none, "--split", "0.5"])
    assert "--tune_lms needs references" in fails(main, [*none, "--tune_lms", "true"])
    assert "expected a share between 0 and 1" in fails(main, [*none, "--split", "1.5"])
    assert "--split and --folds" in fails(main, [*none, "--split", "0.5", "--folds", "2"])
    assert "expected 2 or more" in fails(main, [*none, "--folds", "1"])
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("tune_by", ["mert", "risk"])
def test_each_lm_may_have_a_weight_of_its_own(ngram, tmp_path, tune_by):
    write_jsonl(tmp_path / "dev.jsonl", num_utts=100)
    more = ["--ngram", ngram, "--weights", "0.5,0.5", "--tune_by", tune_by, "--tune_lms", "true"]
    run(*command(tmp_path / "dev.jsonl", ngram, tmp_path / "out", *more))
    found = settings(tmp_path / "out")
    assert found["tuning"]["errors"]["tuned"] <= found["tuning"]["errors"]["first pass"]
    tried = found["tuning"]["held_out_errors"]
    assert "all features" in tried and np.isfinite(list(tried.values())).all()


def test_in_the_middle_of_the_picture_stands_what_was_chosen(ngram, tmp_path):
    write_jsonl(tmp_path / "dev.jsonl")
    run(*command(tmp_path / "dev.jsonl", ngram, tmp_path / "out"))
    picture = json.loads((tmp_path / "out" / "sweep.json").read_text())
    found = settings(tmp_path / "out")
    lmwt, penalty = found["lmwt"], found["word_penalty"]
    chosen = found.get("features", {"am_score": 1 / lmwt, "log_prob": 1.0, "words": -penalty})
    rows, columns = (np.array(axis["weights"]) for axis in picture["features"])
    row, column = picture["best"]
    for axis, place in zip(picture["features"], (row, column), strict=True):
        name = axis["name"].split("+")[0]
        assert axis["weights"][place] == pytest.approx(chosen[name])
    assert picture["wer"][row][column] == picture["rescored"]
    assert np.shape(picture["wer"]) == (len(rows), len(columns))


@pytest.mark.parametrize("normalize", ["", "lower,punct"])
def test_lists_keep_what_they_hold_beside_words_and_scores(ngram, tmp_path, normalize):
    write_jsonl(tmp_path / "dev.jsonl", num_utts=20)
    run(*command(tmp_path / "dev.jsonl", ngram, tmp_path / "out", "--normalize", normalize))
    written = list(read_nbest(tmp_path / "out", "jsonl"))
    assert written == list(read_nbest(tmp_path / "dev.jsonl", "jsonl"))
    assert all(item.ref is not None and item.speaker is not None for item in written)
