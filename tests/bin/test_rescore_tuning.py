"""`bayeslm rescore`: tuning, folds, decisions and counts, and what is said of them."""

import dataclasses
import json
import random

import numpy as np
import pytest
import yaml
from command_lines import counted, json_lines, run, settings

import espnet_bayeslm
from espnet_bayeslm.evaluation.wer import Counted, read_transcripts
from espnet_bayeslm.nbest.formats import read_nbest
from espnet_bayeslm.nbest.types import Hypothesis, NBest
from espnet_bayeslm.report.nbest_section import make_view
from espnet_bayeslm.report.rescored_lists import read_references, read_rescored
from espnet_bayeslm.rescoring.bayes_risk import (
    edit_distances,
    list_posterior,
    word_confidences,
    words_in_place,
)
from espnet_bayeslm.rescoring.rescore_options import SharedRescoreOptions
from espnet_bayeslm.rescoring.scales import read_scales
from espnet_bayeslm.utils.errors import InputError


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
    paths = [str(tmp_path / name) for name in ("dev.jsonl", "ref")]
    for content, path in zip((own, file), paths, strict=True):
        assert content.pop("tuned_on") == path
        assert content.pop("counted") == counted(tuned_on=path)
    assert own == file and own["wer"]["rescored"] < own["wer"]["first pass"]
    # other lists: scales are given, and their references count the errors
    write_jsonl(tmp_path / "test.jsonl", seed=1)
    found = rescore("test", "test", scales=tmp_path / "own" / "scales.yaml")
    assert "tuning" not in found and found["wer"]["rescored"] < found["wer"]["first pass"]
    assert "\nwithout the LM - rescored: MAPSSWE z = " in capsys.readouterr().out
    assert found["control"] == own["control"]
    assert found["counted"] == counted(tuned_on=paths[0]) and "tuned_on" not in found


def test_scales_of_other_lms_are_warned_of(rescore, ngram, tmp_path, caplog):
    write_jsonl(tmp_path / "dev.jsonl", num_utts=20)
    rescore("dev", "tuned")
    scales = tmp_path / "tuned" / "scales.yaml"
    tuned = {**yaml.safe_load(scales.read_text()), "lmwt": 9.0, "word_penalty": 0.0}
    tuned.pop("features", None)  # which may leave out the LM
    scales.write_text(yaml.safe_dump(tuned))
    rescore("dev", "same", scales=scales)
    assert "was tuned with" not in caplog.text
    other = tmp_path / "other.arpa"
    other.write_text(ngram.read_text().replace("\\end\\", "\n\\end\\"))
    rescore("dev", "other", scales=scales, ngram=other)
    names = f"was tuned with {ngram.stem}, and this run has other: give the same LMs, or tune again"
    assert names in caplog.text
    renamed = tmp_path / "elsewhere" / ngram.name
    renamed.parent.mkdir()
    renamed.write_text(other.read_text())
    rescore("dev", "renamed", scales=scales, ngram=renamed)
    assert f"was tuned with other files of {ngram.stem}" in caplog.text


def test_with_folds_the_scales_that_are_kept_are_those_of_all_lists(rescore, tmp_path, capsys):
    write_jsonl(tmp_path / "all.jsonl")
    folds = rescore("all", "folds", folds=3)
    assert "held out in 3 folds" in capsys.readouterr().out
    whole = rescore("all", "all")
    assert folds["tuning"] == whole["tuning"] and folds.get("lmwt") == whole.get("lmwt")
    # the errors are not
    assert folds["wer"]["rescored"] >= whole["wer"]["rescored"] - 1
    assert folds["wer"]["first pass"] == whole["wer"]["first pass"]
    assert len(read_transcripts(tmp_path / "folds" / "text")) == 60


WRONG = {"engine": "foo", "precision": "half", "context": "next", "decision": "vote"}
WRONG |= {"max_tokens": 0, "max_context": -1}


@pytest.mark.parametrize("name", WRONG)
def test_values_that_a_parser_refuses_are_refused_from_python(name):
    options = {"segments": {}, name: WRONG[name]}
    with pytest.raises(InputError, match=f"--{name} {WRONG[name]}: expected"):
        SharedRescoreOptions.of(**options)


@pytest.mark.parametrize("num_lists", [1, 3, 7])
def test_too_few_lists_to_tune_are_said_to_be_too_few(rescore, tmp_path, capsys, num_lists):
    write_jsonl(tmp_path / "dev.jsonl", num_utts=num_lists)
    assert rescore("dev", "out")["features"] == {"is_first": 1.0}
    said = "as it came: too few lists of several hypotheses (8 for each weight)"
    out = capsys.readouterr().out
    assert out.startswith(f"as it came\n{said}\nwithout the LM: {said}\n")


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


# no word is in the n-gram, and most words are several characters
LISTS = {
    "u-1": ["a bread kite [laugh]", "a red kite [laugh]"],
    "u-2": ["bread !SIL", "red !SIL"],
    "u-3": ["bread kite", "red kite"],
}
REFS = {"u-1": "a { red / blue } kite", "u-2": "red (uh)", "u-3": "{ ten / @ } red kite"}


@pytest.fixture
def files(tmp_path):
    """A folder with the lists, the score of rank n being -n, and the references."""
    rows = []
    for utt, texts in LISTS.items():
        hyps = [{"text": text, "am_score": -float(n)} for n, text in enumerate(texts)]
        rows.append(json.dumps({"utt": utt, "hypotheses": hyps}) + "\n")
    (tmp_path / "lists.jsonl").write_text("".join(rows))
    (tmp_path / "ref").write_text("".join(f"{text} ({utt})\n" for utt, text in REFS.items()))
    (tmp_path / "noise").write_text("[laugh]\n!SIL\n")
    return tmp_path


def table(text):
    """Return {row's name: its numbers} of the printed table of errors."""
    rows = (line.rsplit(maxsplit=5) for line in text.splitlines())
    return {row[0].strip(): row[1:] for row in rows if len(row) == 6}


@pytest.mark.parametrize(
    "unit, first_pass, num_units",
    [("word", ["42.86", "3", "0", "0", "7"], 7), ("char", None, 20)],
)
def test_the_table_the_settings_and_the_report_count_alike(
    files, ngram, capsys, unit, first_pass, num_units
):
    lists = {"nbest": files / "lists.jsonl", "tune_ref": files / "ref", "max_oov_rate": 1}
    counting = {"ignore_words": files / "noise", "unit": unit}
    output = run(**lists, **counting, ngram=ngram, output=files / "out")
    printed = capsys.readouterr().out
    assert ("CER %" in printed) == ("WER" not in printed) == (unit == "char")
    rows = table(printed)
    assert first_pass is None or rows["first pass"] == first_pass
    assert rows["first pass"][-1] == str(num_units) and rows["oracle"][0] == "0.00"
    # what is written keeps its words
    lists = list(read_nbest(output / "nbest.jsonl", "jsonl"))
    written = {item.utt: [" ".join(hyp.words) for hyp in item.hypotheses] for item in lists}
    assert written == LISTS
    content = yaml.safe_load((output / "scales.yaml").read_text())
    assert content["ignore_words"] == ["!SIL", "[laugh]"]
    assert content.get("unit", "word") == unit and content["tuning"]["words"] == num_units
    fields = {"unit": unit, "ignored": ("!SIL", "[laugh]"), "tuned_on": str(files / "ref")}
    assert content["counted"] == counted(**fields) and f"\n{Counted(**fields)}\n" in printed
    item = read_rescored("lm", str(output), "jsonl")
    refs = read_references([str(files / "ref")], [item], [("lm", str(output))])
    assert item.counted == Counted(**fields)
    for name, counts in make_view(item, refs, {}).errors.items():
        assert [*map(str, dataclasses.astuple(counts))] == rows[name][1:]


@pytest.fixture(scope="module")
def tuned(tuning, ngram, tmp_path_factory):
    """Return the output of a rescoring by least risk that was tuned on dev."""
    output = tmp_path_factory.mktemp("mbr") / "dev"
    return run(**tuning, ngram=ngram, decision="mbr", output=output)


def test_settings_of_least_risk(tuned, nbest, ngram):
    found = settings(tuned)
    errors = found["tuning"]["errors"]
    assert errors["mbr"] <= errors["first pass"]
    rate = 100 * errors["mbr"] / found["tuning"]["words"]
    assert found["wer"]["rescored"] == pytest.approx(rate, abs=1e-3)
    assert found["decision"] == "mbr"
    assert set(found["posterior"]) == {"sharpness", "slope", "offset"}
    measures = found["confidence"]
    assert measures["ece_of_confidence"] <= measures["ece_of_posterior"]
    with pytest.raises(InputError, match="--decision vote: expected one of max, mbr"):
        espnet_bayeslm.rescore(read_nbest(nbest / "test"), ngrams=[ngram], decision="vote")


def test_scales_of_one_set_decide_on_another_and_in_memory(tuned, nbest, ngram, tmp_path):
    # the decision is that of the scales
    options = {"scales": tuned / "scales.yaml"}
    output = run(nbest=nbest / "test", ngram=ngram, **options, output=tmp_path / "test")
    best, posterior = read_transcripts(output / "text"), read_scales(options["scales"]).posterior
    known = {item["utt"]: item for item in json_lines(output / "confidence.ndjson")}
    lists = read_nbest(nbest / "test", "kaldi")
    found = espnet_bayeslm.rescore(lists, ngrams=[ngram], **options)
    for item in found:
        line = known.pop(item.nbest.utt)
        assert item.words == best[item.nbest.utt] == tuple(line["words"])
        hyps = [hyp.words for hyp in item.nbest.hypotheses]
        p = list_posterior(item.totals, posterior.sharpness)
        risks = edit_distances(hyps) @ p
        for errors in (item.expected_errors, line["expected_errors"]):
            assert errors == pytest.approx(risks[item.best], abs=1e-6)
        assert risks[item.best] == pytest.approx(min(risks))
        masses = word_confidences(p, words_in_place(item.words, hyps))
        for expected, *both in (
            (masses, item.masses, line["posterior"]),
            (posterior.scaling.calibrated(masses), item.confidences, line["confidence"]),
        ):
            np.testing.assert_allclose(both, [expected] * 2, atol=1e-6)
    assert not known
    assert "posterior" in settings(output) and settings(output)["decision"] == "mbr"


def test_lists_are_normalised_in_memory_with_their_references(nbest, ngram):
    lists = list(read_nbest(nbest / "dev"))
    refs = read_transcripts(nbest / "dev.ref")
    upper = [
        dataclasses.replace(
            item,
            hypotheses=tuple(
                dataclasses.replace(hyp, words=tuple(map(str.upper, hyp.words)))
                for hyp in item.hypotheses
            ),
        )
        for item in lists
    ]
    loud = {utt: tuple(map(str.upper, words)) for utt, words in refs.items()}
    given = {"ngrams": [ngram], "tune": True}
    plain = espnet_bayeslm.rescore(lists, **given, refs=refs)
    found = espnet_bayeslm.rescore(upper, **given, refs=loud, normalize="lower")
    assert found.scales == plain.scales
    for item, expected in zip(found, plain, strict=True):
        assert item.words == expected.words
        assert item.text == tuple(map(str.upper, expected.text))


def test_where_least_risk_is_worse_than_the_first_pass_max_decides(ngram, caplog):
    repaired = (Hypothesis(("a", "x"), am_score=-9.0), Hypothesis(("a", "b"), am_score=-1.0))
    # no score tells these apart, of words that no LM knows, and two of three agree on most words
    equal = [Hypothesis(tuple(words), am_score=-9.0) for words in ("qrs", "xyz", "xyw")]
    lists = [NBest(f"a{n}", repaired, ref=("a", "b")) for n in range(30)]
    lists += [NBest(f"b{n}", tuple(equal), ref=("q", "r", "s")) for n in range(30)]
    options = {"ngrams": [ngram], "tune": True, "max_oov_rate": 1}
    by_max = espnet_bayeslm.rescore(lists, **options)
    by_risk = espnet_bayeslm.rescore(lists, **options, decision="mbr")
    assert by_risk.scales.decision == "max"
    assert by_risk.tuned.risk_errors > by_risk.tuned.chosen.errors["first pass"]
    assert "max decides" in caplog.text
    for a, b in zip(by_max, by_risk, strict=True):
        assert a.words == b.words and b.confidences is not None
