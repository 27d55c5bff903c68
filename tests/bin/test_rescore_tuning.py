"""`bayeslm rescore`: the lists' own references and folds, and what is said of them."""

import json
import random

import pytest
from command_lines import run, settings

from espnet_bayeslm.evaluation.wer import read_transcripts
from espnet_bayeslm.nbest.formats import read_nbest


def write_jsonl(path, *, num_utts=60, scored=True, good=True, seed=0):
    """Write lists of five noisy copies; their scores know the errors where they are `good`."""
    rng = random.Random(seed)
    rows = []
    for utt in range(num_utts):
        ref = rng.choices("abcdefghij", k=rng.randint(3, 9))
        hyps = []
        for _ in range(5):
            words = [rng.choice("abcdefghij") if rng.random() < 0.3 else w for w in ref]
            wrong = sum(a != b for a, b in zip(words, ref, strict=True))
            score = -3.0 * len(words) - (wrong if good else 0) + rng.gauss(0, 0.3)
            hyps.append((wrong, {"text": " ".join(words), **({"score": score} if scored else {})}))
        if not good:  # the first is the best there is
            hyps.sort(key=lambda item: item[0])
        row = {"utt": f"u{utt:03d}", "speaker": f"s{utt % 6}", "ref": " ".join(ref)}
        rows.append({**row, "hypotheses": [hyp for _, hyp in hyps]})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return rows


@pytest.fixture
def rescore(ngram, tmp_path):
    """Return a function: name of lists and of an output, and options -> scales.yaml."""

    def call(lists, output, **options):
        lists = {"nbest": tmp_path / f"{lists}.jsonl", "nbest_format": "jsonl"}
        options = {"ngram": ngram, "tune_folds": 2, **options}
        return settings(run(**lists, output=tmp_path / output, **options))

    return call


def test_the_lists_own_references_are_the_defaults(rescore, tmp_path, capsys):
    rows = write_jsonl(tmp_path / "dev.jsonl")
    refs = "".join(f"{row['utt']} {row['ref']}\n" for row in rows)
    (tmp_path / "ref").write_text(refs)
    own = rescore("dev", "own")
    out = capsys.readouterr().out
    assert "errors on held-out lists (2 folds)" in out and "first pass" in out
    # the last step: what the LM adds to weights that were tuned without it
    assert "\nwithout the LM - rescored: MAPSSWE z = " in out
    assert "\nwithout the LM: " in out and "held_out_errors" in own["tuning"]["without_lm"]
    file = rescore("dev", "file", tune_ref=tmp_path / "ref")
    assert own.pop("tuned_on") == str(tmp_path / "dev.jsonl") != file.pop("tuned_on")
    assert own == file and own["wer"]["rescored"] < own["wer"]["first pass"]
    # other lists: scales are given, and their references count the errors
    write_jsonl(tmp_path / "test.jsonl", seed=1)
    found = rescore("test", "test", scales=tmp_path / "own" / "scales.yaml")
    assert "tuning" not in found and found["wer"]["rescored"] < found["wer"]["first pass"]
    assert "\nwithout the LM - rescored: MAPSSWE z = " in capsys.readouterr().out
    assert found["control"] == own["control"]


def test_scales_of_other_lms_are_warned_of(rescore, ngram, tmp_path, caplog):
    write_jsonl(tmp_path / "dev.jsonl", num_utts=20)
    rescore("dev", "tuned")
    scales = tmp_path / "tuned" / "scales.yaml"
    rescore("dev", "same", scales=scales)
    assert "was tuned with" not in caplog.text
    other = tmp_path / "other.arpa"
    other.write_text(ngram.read_text().replace("\\end\\", "\n\\end\\"))
    rescore("dev", "other", scales=scales, ngram=other)
    names = f"was tuned with {ngram.stem}, and this run has other: give the same LMs, or tune again"
    assert names in caplog.text


def test_folds_are_rescored_with_what_the_others_tell(rescore, tmp_path, capsys):
    write_jsonl(tmp_path / "all.jsonl")
    folds = rescore("all", "folds", folds=3)
    lines = capsys.readouterr().out.splitlines()
    whole = rescore("all", "all")
    assert [line[:6] for line in lines[:3]] == ["fold 1", "fold 2", "fold 3"]
    assert lines[4].startswith("errors: ") and "held out in 3 folds" in lines[4]
    assert not any("as it came" in line for line in lines)
    # the scales that are kept are those of all lists; the errors are not
    assert folds["tuning"] == whole["tuning"] and folds.get("lmwt") == whole.get("lmwt")
    assert folds["wer"]["rescored"] >= whole["wer"]["rescored"] - 1
    assert folds["wer"]["first pass"] == whole["wer"]["first pass"]
    assert len(read_transcripts(tmp_path / "folds" / "text")) == 60


def test_lists_whose_first_is_the_best_stay_as_they_came(rescore, tmp_path, capsys):
    rows = write_jsonl(tmp_path / "dev.jsonl", good=False)
    found = rescore("dev", "out")
    assert capsys.readouterr().out.startswith("as it came\nas it came: no gain is sure")
    assert found["features"] == {"is_first": 1.0} and "lmwt" not in found
    best = read_transcripts(tmp_path / "out" / "text")
    first = {row["utt"]: tuple(row["hypotheses"][0]["text"].split()) for row in rows}
    assert best == first
    rescore("dev", "again", scales=tmp_path / "out" / "scales.yaml")
    assert read_transcripts(tmp_path / "again" / "text") == first


@pytest.mark.parametrize("normalize", ["", "lower,punct"])
def test_lists_keep_what_they_hold_beside_words_and_scores(rescore, tmp_path, normalize):
    write_jsonl(tmp_path / "dev.jsonl", num_utts=20)
    rescore("dev", "out", normalize=normalize)
    written = list(read_nbest(tmp_path / "out", "jsonl"))
    assert written == list(read_nbest(tmp_path / "dev.jsonl", "jsonl"))
    assert all(item.ref is not None and item.speaker is not None for item in written)
