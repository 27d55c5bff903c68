"""`bayeslm rescore`: scales of another set, context, uncertainty; whole outputs or none."""

import dataclasses
import json
import logging
import os
import shutil

import numpy as np
import pytest
import yaml
from command_lines import (
    contents,
    costs,
    counted,
    is_whole_png,
    json_lines,
    run,
    same_files,
    settings,
)
from tiny_training import words
from written_files import write

import espnet_bayeslm
from espnet_bayeslm.bin import rescore
from espnet_bayeslm.bin.rescore import main
from espnet_bayeslm.evaluation.wer import Counted, count_errors, read_transcripts
from espnet_bayeslm.loading.trained_lm import load_lm
from espnet_bayeslm.nbest.formats import write_nbest
from espnet_bayeslm.rescoring import read_nbest, token_log_probs
from espnet_bayeslm.rescoring.list_worker import scored_lists
from espnet_bayeslm.rescoring.rescore import tune_and_choose, with_tuned_histories
from espnet_bayeslm.rescoring.rescore_options import RescoreOptions
from espnet_bayeslm.scoring.ngram_scorer import NgramScorer
from espnet_bayeslm.scoring.scorer import token_scorer
from espnet_bayeslm.utils.files import read_keyed_lines

FILES = {"words_text", "acwt", "lmwt.nolm", "lmwt.withlm", "lmwt.nn", "text", "trn"}
FILES |= {"scales.yaml", "command"}


@pytest.fixture(scope="module")
def tuned(tuning, mixture, tmp_path_factory):
    output = tmp_path_factory.mktemp("dev") / "new" / "dev"
    return run(**tuning, **mixture, token_scores="true", output=output)


def test_lists_come_out_as_they_went_in_with_the_mixtures_costs(nbest, tuned, mixture):
    assert {path.name for path in tuned.iterdir()} >= FILES | {"lmwt.nn.words"}
    assert list(read_nbest(tuned)) == list(read_nbest(nbest / "dev"))
    assert list(costs(tuned / "lmwt.nn")) == list(read_keyed_lines(nbest / "dev" / "words_text"))
    texts = {key: line.split() for key, (_, line) in read_keyed_lines(tuned / "words_text").items()}
    assert [] in texts.values()
    trained = [load_lm(exp) for exp in mixture["lm"]]
    found, by_word = costs(tuned / "lmwt.nn"), costs(tuned / "lmwt.nn.words")
    assert list(found) == list(by_word) == list(texts)
    for key, hyp in texts.items():
        parts = [token_log_probs(lm.lm, [lm.ids(hyp)])[0] for lm in trained]
        parts.append(NgramScorer(mixture["ngram"]).word_scores([hyp])[0].log_probs)
        log_probs = np.log(np.array([0.3, 0.5, 0.2]) @ np.exp(parts))
        np.testing.assert_allclose(by_word[key], -log_probs, atol=1e-5)
        assert found[key] == pytest.approx([-log_probs.sum()], abs=1e-5)
        # 6 decimals of each are written
        assert found[key] == pytest.approx([sum(by_word[key])], abs=1e-6 * (len(hyp) + 2))


def test_scales_of_one_set_are_applied_to_another(nbest, mixture, tuned, tmp_path, capsys):
    lists = {"nbest": nbest / "test", "ref": nbest / "test.ref", **mixture}
    found = settings(run(**lists, scales=tuned / "scales.yaml", output=tmp_path / "a"))
    scales = settings(tuned)
    lmwt, word_penalty = scales["lmwt"], scales["word_penalty"]
    table = capsys.readouterr().out
    assert table.startswith(f"LMWT {lmwt:g}, word penalty {word_penalty:g}\n")
    names = ["first pass", "without the", "rescored", "oracle"]
    names += ["counted: wor", "first pass -", "without the"]
    assert [row[:12].strip() for row in table.splitlines()[2:]] == names
    # tuned where the scales were
    assert found["counted"] == scales["counted"] == counted(tuned_on=str(nbest / "dev.ref"))
    assert table.splitlines()[6] == str(Counted(tuned_on=str(nbest / "dev.ref")))
    assert list(found["wer"]) == ["first pass", "without the LM", "rescored", "oracle"]
    assert "tuned_on" not in found and scales["tuned_on"] == str(nbest / "dev.ref")
    run(**lists, lmwt=lmwt, word_penalty=word_penalty, output=tmp_path / "b")
    a, b = contents(tmp_path / "a"), contents(tmp_path / "b")
    assert len(a.pop("text_without_lm").splitlines()) == 20
    of_file, of_options = (yaml.safe_load(files.pop("scales.yaml")) for files in (a, b))
    assert a == b and of_file["lmwt"] == of_options["lmwt"] == lmwt
    assert of_options["counted"] == counted()


def test_the_cache_changes_nothing_and_loads_nothing(nbest, mixture, bayes, tmp_path, monkeypatch):
    lists, cache = {"nbest": nbest / "test"}, {"cache": tmp_path / "cache"}
    run(**lists, **mixture, output=tmp_path / "without")
    run(**lists, **mixture, **cache, output=tmp_path / "first")
    assert len(list((tmp_path / "cache").iterdir())) == 2  # the two neural LMs
    with monkeypatch.context() as patch:
        patch.setattr("espnet_bayeslm.loading.trained_lm.load_lm", None)
        run(**lists, **mixture, **cache, output=tmp_path / "second")
        with pytest.raises(TypeError):  # other draws are other scores: the LM is needed
            run(**lists, lm=bayes, num_samples=2, **cache, output=tmp_path / "third")
    expected = contents(tmp_path / "without")
    assert contents(tmp_path / "first") == contents(tmp_path / "second") == expected
    assert not (tmp_path / "third").exists()


def test_a_rerun_replaces_its_own_output_whole(nbest, ngram, tmp_path):
    output = tmp_path / "out"
    output.mkdir()  # an empty folder may be taken
    run(nbest=nbest / "dev", ngram=ngram, token_scores="true", output=output)
    (output / "notes").write_text("mine")
    run(nbest=nbest / "test", ngram=ngram, output=output)
    assert {path.name for path in output.iterdir()} == FILES | {"notes"}
    assert (output / "notes").read_text() == "mine"
    assert len((output / "text").read_text().splitlines()) == 20
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("decision", ["max", "mbr"])
def test_the_best_of_each_list_are_lists_for_another_lm(nbest, ngram, tmp_path, decision):
    """The new best leads, the others follow by the total that the formula gives them."""
    given = {"nbest": nbest / "dev", "ngram": ngram, "lmwt": 9, "word_penalty": 0.5}
    out = run(**given, decision=decision, write_best=3, output=tmp_path / "out")
    lists, found = list(read_nbest(out)), list(read_nbest(out / "best"))
    assert lists == list(read_nbest(nbest / "dev"))
    assert "best/words_text" in settings(out)["files"]
    chosen, of_lm = read_transcripts(out / "text"), costs(out / "lmwt.nn")
    moved = 0
    for whole, cut in zip(lists, found, strict=True):
        totals = {}
        for rank, hyp in enumerate(whole.hypotheses, 1):
            known = hyp.am_score / 9 + (hyp.graph_score or 0.0) - 0.5 * len(hyp.words)
            totals.setdefault(hyp, known - of_lm[f"{whole.utt}-{rank}"][0])
        first, *others = cut.hypotheses
        assert list(first.words) == list(chosen[whole.utt])
        assert len(cut.hypotheses) == min(3, len(whole.hypotheses))
        best = sorted(totals, key=lambda hyp: -totals[hyp])
        assert others == [hyp for hyp in best if hyp != first][: len(others)]
        moved += cut.hypotheses != whole.hypotheses[:3]
    assert moved > 5


def test_outputs_that_cannot_be_replaced_are_known_before_the_scoring(
    nbest, ngram, tuned, tmp_path, refused, monkeypatch
):
    monkeypatch.setattr(rescore.Rescoring, "run", lambda *_, **__: pytest.fail("it was scored"))
    (tmp_path / "link").symlink_to("nowhere")
    write(tmp_path / "mine" / "thesis", "of years")
    lists = shutil.copytree(tuned, tmp_path / "lists")
    for given, output, message in (
        (nbest / "dev", "link", "a link to nowhere"),
        (nbest / "dev", "mine", "mine: is there, and is not the output of an earlier `bayeslm"),
        (lists, "lists", f"--nbest {lists} is in it"),
    ):
        refused(main, words(nbest=given, ngram=ngram, output=tmp_path / output), message)


def test_lists_without_graph_costs(nbest, ngram, tmp_path):
    (tmp_path / "nbest").mkdir()
    for name in ("words_text", "acwt"):
        shutil.copy(nbest / "test" / name, tmp_path / "nbest" / name)
    first = run(nbest=tmp_path / "nbest", ngram=ngram, output=tmp_path / "out")
    assert {path.name for path in first.iterdir()} == FILES - {"lmwt.nolm", "lmwt.withlm"}
    # an output can be rescored again; references change no choice
    again = run(nbest=first, ngram=ngram, lmwt=10, ref=nbest / "test.ref", output=tmp_path / "b")
    assert same_files(first, again, "text", "lmwt.nn") and "wer" in settings(again)


def test_a_failure_while_writing_leaves_the_old_output(nbest, ngram, tmp_path, fails, monkeypatch):
    """The blocks that were finished stay beside it, for the next run."""
    lists = {"nbest": nbest / "dev", "ngram": ngram, "output": tmp_path / "out"}
    before = contents(run(**lists))

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(rescore, "write_settings", full)
    assert "No space left" in fails(main, words(**lists, lmwt=3))
    assert contents(tmp_path / "out") == before
    assert len([*tmp_path.rglob(".out.blocks")]) == 1


def shouted(line):
    """Return a line with its words in upper case, a comma after each."""
    key, *text = line.split()
    return " ".join([key, *(f"{word.upper()}," for word in text)])


def test_normalised_text_is_scored_and_counted_and_what_is_written_stays(
    nbest, point, ngram, tuning, tmp_path, refused
):
    """Lists and references in upper case with punctuation give what plain ones give."""
    lists = shutil.copytree(nbest / "dev", tmp_path / "nbest")
    ref, output = tmp_path / "ref", tmp_path / "out"
    for path, source in ((lists / "words_text", lists / "words_text"), (ref, nbest / "dev.ref")):
        path.write_text("".join(f"{shouted(x)}\n" for x in source.read_text().splitlines()))
    # lists that the LM does not know name the option that mends it, here and from workers
    for workers in (1, 2):
        loud = words(nbest=lists, lm=point, output=output, workers=workers)
        refused(main, loud, "case and punctuation (", ": --normalize lower,punct")
    lms = {"lm": point, "ngram": ngram, "weights": "0.5,0.5"}
    plain = run(**tuning, **lms, output=tmp_path / "plain")
    loud = {**tuning, "nbest": lists, "tune_ref": ref, "normalize": "lower,punct"}
    loud = run(**loud, **lms, output=output)
    assert (loud / "lmwt.nn").read_text() == (plain / "lmwt.nn").read_text()
    best = (plain / "text").read_text().splitlines()
    assert (loud / "text").read_text().splitlines() == [shouted(line) for line in best]
    assert (loud / "words_text").read_text() == (lists / "words_text").read_text()
    assert settings(plain)["wer"] == settings(loud)["wer"]


def test_context_is_the_best_so_far_of_the_recording(nbest, point, ngram, segments, tmp_path):
    lists = {"nbest": nbest / "dev", "lm": point, "ngram": ngram, "weights": "0.7,0.3", "lmwt": 8}
    run(**lists, context="previous", segments=segments, output=tmp_path / "out")
    best = {u: tuple(w.split()) for u, (_, w) in read_keyed_lines(tmp_path / "out/text").items()}
    lm = token_scorer(load_lm(point))
    run(**lists, output=tmp_path / "alone")
    found, alone = (costs(tmp_path / name / "lmwt.nn") for name in ("out", "alone"))
    histories, moved = {}, 0
    for number, item in enumerate(read_nbest(nbest / "dev")):
        recording = number % 4
        history = [histories.get(recording)]
        hyps = [hyp.words for hyp in item.hypotheses]
        (scores,) = lm.scores_in_context([hyps], history)
        plain = lm.word_scores(hyps)
        for rank, (score, without) in enumerate(zip(scores, plain, strict=True), 1):
            key = f"{item.utt}-{rank}"
            same = np.allclose(score.log_probs, without.log_probs, atol=1e-6)
            assert same == (history == [None])
            # the n-gram's share is without context in both
            assert (abs(found[key][0] - alone[key][0]) < 1e-5) == same
            moved += not same
        (histories[recording],) = lm.extended(history, [best[item.utt]])
    assert moved > 100


def test_recordings_of_every_source_are_those_of_segments(nbest, point, segments, tmp_path):
    """Bit for bit, the order of the lists too, with two workers as with one."""
    # without speakers and times lists are in the order in which they come
    places = {utt: line.split()[:2] for utt, (_, line) in read_keyed_lines(segments).items()}
    lists = [
        dataclasses.replace(item, utt=f"{places[item.utt][0]}-{item.utt}")
        for item in read_nbest(nbest / "dev")
    ]
    held = [
        dataclasses.replace(item, recording=item.utt.partition("-")[0], start=n)
        for n, item in enumerate(lists)
    ]
    for name, items in {"plain": lists, "held": held, "late": held[::-1]}.items():
        write_nbest(items, tmp_path / f"{name}.jsonl", format="jsonl")
    lines = segments.read_text().splitlines()
    for name, rows in {
        "segments": [f"{line.split()[1]}-{line}" for line in lines],
        "utt2spk": [f"{item.utt} {item.recording}" for item in held],
    }.items():
        (tmp_path / name).write_text("".join(f"{row}\n" for row in rows))
    given = {"lm": point, "lmwt": 8, "context": "previous"}
    by_segments = {"nbest": tmp_path / "plain.jsonl", "segments": tmp_path / "segments"}
    expected = contents(run(**given, **by_segments, output=tmp_path / "expected"))
    for name, options in {
        "of_ids": {"nbest": tmp_path / "plain.jsonl", "recording_of": "^([^-]+)-"},
        "of_speakers": {"nbest": tmp_path / "plain.jsonl", "utt2spk": tmp_path / "utt2spk"},
        "held": {"nbest": tmp_path / "held.jsonl"},
        "workers": {"nbest": tmp_path / "held.jsonl", "workers": 2},
    }.items():
        found = contents(run(**given, **options, output=tmp_path / name))
        assert {**found, "nbest.jsonl": b""} == {**expected, "nbest.jsonl": b""}
    late = run(**given, nbest=tmp_path / "late.jsonl", output=tmp_path / "late")
    assert costs(late / "lmwt.nn") == costs(tmp_path / "expected" / "lmwt.nn")
    # each recording is written in the order of its starts
    assert sorted(read_nbest(late), key=lambda item: item.start) == held


def test_tuned_weights_choose_the_histories(tuning, point, ngram, segments, tmp_path, caplog):
    """The second time's scores are those of a run with the first time's scales, without context."""
    caplog.set_level("INFO")
    lms = {"lm": point, "ngram": ngram, "weights": "0.7,0.3"}
    given = {**lms, "context": "previous", "segments": segments}
    # two folds: there are few lists
    tuned = run(**tuning, **given, tune_folds=2, output=tmp_path / "tuned")
    assert caplog.text.count("--context: the lists are scored twice") == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["segments", "tuned"]
    untuned = run(nbest=tuning["nbest"], **given, output=tmp_path / "untuned")
    refs = read_transcripts(tuning["tune_ref"])
    options = RescoreOptions.of(
        lms=[point],
        ngrams=[ngram],
        weights="0.7,0.3",
        context="previous",
        segments=segments,
        tune_folds=2,
    )
    lists = list(read_nbest(tuning["nbest"]))
    options, _ = with_tuned_histories(None, lists, options, refs=refs, ngpu=0)
    (tmp_path / "scales.yaml").write_text(yaml.safe_dump(options.scales.content()))
    given["nbest"] = tuning["nbest"]
    once = run(**given, scales=tmp_path / "scales.yaml", output=tmp_path / "once")
    assert same_files(tuned, once, "lmwt.nn")
    assert not same_files(tuned, untuned, "lmwt.nn")
    # the written scales are the second time's; on these lists they choose the same histories
    later = run(**given, scales=tuned / "scales.yaml", output=tmp_path / "later")
    assert same_files(tuned, later, "lmwt.nn")
    # weights of subtracted LMs and of each LM choose too
    more = {"subtract_lm": ngram, "tune_lms": "true", "decision": "mbr", "tune_folds": 2}
    given = {**tuning, "lm": point, "context": "previous", "segments": segments}
    less = run(**given, **more, output=tmp_path / "less")
    assert (less / "confidence.ndjson").exists()


def test_with_folds_weights_of_other_recordings_choose_the_histories(
    tuning, point, segments, tmp_path
):
    refs, lists = read_transcripts(tuning["tune_ref"]), list(read_nbest(tuning["nbest"]))
    given = {"context": "previous", "segments": segments, "tune_folds": 2, "folds": 2}
    folder = run(**tuning, lm=point, **given, output=tmp_path / "out")
    options = RescoreOptions.of(lms=[point], **{**given, "context": "none"})
    with scored_lists(None, lists, options, tunes=True, ngpu=0) as (scored, mixture):
        first = tune_and_choose(scored, mixture, options, refs=refs)
        held_out = {item.nbest.utt: item.words for item in first.lists}
    once = dataclasses.replace(options, folds=None)
    with scored_lists(None, lists, once, tunes=True, ngpu=0) as (scored, mixture):
        of_all = tune_and_choose(scored, mixture, once, refs=refs)
        assert any(held_out[item.nbest.utt] != item.words for item in of_all.lists)
    lm, found, histories = token_scorer(load_lm(point)), costs(folder / "lmwt.nn"), {}
    for number, item in enumerate(lists):
        history = [histories.get(number % 4)]
        (scores,) = lm.scores_in_context([[hyp.words for hyp in item.hypotheses]], history)
        for rank, score in enumerate(scores, 1):
            expected = -score.log_probs.sum()
            assert found[f"{item.utt}-{rank}"][0] == pytest.approx(expected, abs=1e-4)
        (histories[number % 4],) = lm.extended(history, [held_out[item.utt]])


def test_each_word_of_a_bayesian_lm_has_its_uncertainty(
    nbest, bayes, ngram, tmp_path, point, refused
):
    lms = {"lm": bayes, "ngram": ngram, "weights": "0.5,0.5", "num_samples": 3}
    given = {"nbest": nbest / "dev", "uncertainty": "true", "output": tmp_path / "out"}
    rows = json_lines(run(**given, **lms) / "uncertainty.ndjson")
    hyps = [
        (item.utt, rank, list(hyp.words))
        for item in read_nbest(nbest / "dev")
        for rank, hyp in enumerate(item.hypotheses, 1)
    ]
    assert [(row["utt"], row["rank"], row["words"]) for row in rows] == hyps
    for row in rows:
        size = len(row["words"]) + 1
        for name in ("log_prob", "entropy", "mutual_information", "variance"):
            assert len(row[name]) == size and np.isfinite(row[name]).all()
        assert min(row["mutual_information"]) >= 0 and min(row["variance"]) >= 0
        assert max(row["mutual_information"]) > 0
        assert all(e <= np.log(13) * 1.001 for e in row["entropy"])
    refused(main, words(**given, lm=point, num_samples=3), "no LM is uncertain")


def test_the_best_of_lists_with_ranks_are_read_in_their_new_order(ngram, tmp_path):
    rows = ((1, "a a a a", -40.0), (2, "b", -1.0))
    hyps = [{"text": text, "am_score": score, "rank": rank} for rank, text, score in rows]
    lists = tmp_path / "dev.jsonl"
    lists.write_text(json.dumps({"utt": "u", "hypotheses": hyps}) + "\n")
    out = run(nbest=lists, ngram=ngram, lmwt=1, write_best=2, output=tmp_path / "o")
    (item,) = read_nbest(out / "best")
    assert [" ".join(hyp.words) for hyp in item.hypotheses] == ["b", "a a a a"]


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


def test_the_command_of_a_tuned_run_applies_its_scales(nbest, tuning, mixture, tmp_path, caplog):
    """With --scales in place of --tune_ref: whatever tuning was told may stay."""
    caplog.set_level(logging.INFO)
    common = {"nbest": nbest / "dev", "tune_lms": "true", "tune_folds": 2, **mixture}
    tuned = run(**common, tune_ref=tuning["tune_ref"], output=tmp_path / "tuned")
    scales = {"scales": tuned / "scales.yaml", "output": tmp_path / "applied"}
    applied = run(**common, **scales, folds=2, ref=tuning["tune_ref"])
    assert "--folds and --tune_lms: --scales holds the tuned weights" in caplog.text
    assert same_files(tuned, applied, "text", "lmwt.nn", "text_without_lm")
    assert settings(applied)["wer"] == settings(tuned)["wer"]


@pytest.mark.parametrize("option", ["tune_ref", "ref"])
def test_references_may_come_through_a_pipe(option, nbest, ngram, tmp_path):
    reading, writing = os.pipe()
    with open(writing, "wb") as pipe:
        pipe.write((nbest / "dev.ref").read_bytes())
    refs = {option: f"/dev/fd/{reading}"}
    output = run(nbest=nbest / "dev", ngram=ngram, **refs, output=tmp_path / "out")
    os.close(reading)
    assert "rescored" in settings(output)["wer"]


@pytest.mark.parametrize("given", [["tune_ref"], ["ref"], []])
def test_a_normalisation_that_lowers_the_error_rate_is_said_first(
    given, nbest, ngram, tmp_path, caplog, monkeypatch
):
    """With references at hand, whichever these are; an LM that knows each word says nothing."""
    lists = tmp_path / "nbest.jsonl"
    texts = read_transcripts(nbest / "dev.ref")
    with open(lists, "w") as f:
        for utt, ref in texts.items():
            own = {} if given else {"ref": " ".join(ref).title()}
            f.write(json.dumps({"utt": utt, "hypotheses": [" ".join(ref)], **own}) + "\n")
    (tmp_path / "ref").write_text("".join(f"{u} {' '.join(w).title()}\n" for u, w in texts.items()))
    refs = dict.fromkeys(given, tmp_path / "ref")
    scored = []
    whole = rescore.Rescoring.run
    monkeypatch.setattr(
        rescore.Rescoring, "run", lambda *a, **k: scored.append(caplog.text) or whole(*a, **k)
    )
    run(nbest=lists, nbest_format="jsonl", ngram=ngram, **refs, output=tmp_path / "out")
    assert "--normalize lower: first pass 100.00 -> 0.00 %" in scored[0]
    assert caplog.text.count("first pass 100.00") == 1
    caplog.clear()
    refs = {"refs": read_transcripts(tmp_path / "ref")} if given else {}
    espnet_bayeslm.rescore(read_nbest(lists, format="jsonl"), ngrams=[ngram], tune=True, **refs)
    assert caplog.text.count("--normalize lower: first pass 100.00 -> 0.00 %") == 1
