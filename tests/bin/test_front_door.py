"""What `import espnet_bayeslm` gives: `load` and `rescore`, with the results of the tools."""

import json
import subprocess
import sys

import numpy as np
import pytest
from command_lines import run, settings

import espnet_bayeslm
from espnet_bayeslm.evaluation.wer import read_transcripts
from espnet_bayeslm.rescoring import read_nbest, token_log_probs
from espnet_bayeslm.rescoring.scales import Scales
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import read_keyed_lines


def values(path):
    return {key: line for key, (_, line) in read_keyed_lines(path).items()}


def check_same(rescored, output):
    """Check that rescored lists are what a tool has written, digit for digit."""
    costs, words = values(output / "lmwt.nn"), values(output / "lmwt.nn.words")
    best = read_transcripts(output / "text")
    found = 0
    for item in rescored:
        assert item.words == best[item.nbest.utt]
        assert item.words == item.nbest.hypotheses[item.best].words
        for rank, (score, log_probs) in enumerate(
            zip(item.lm_scores, item.word_log_probs, strict=True), 1
        ):
            key = f"{item.nbest.utt}-{rank}"
            assert f"{-score:.6f}" == costs[key]
            assert " ".join(f"{-x:.6f}" for x in log_probs) == words[key]
            found += 1
    assert found == len(costs) > 0


WAYS = {
    "second job": {"job": 2, "num_jobs": 2, "num_samples": 2},
    "context": {"context": "previous", "segments": "segments"},
    "tuned": {"tune": True, "tune_lms": True, "tune_folds": 2},
}


@pytest.mark.parametrize("way", WAYS)
def test_rescore_is_the_tool(nbest, bayes, ngram, segments, tmp_path, monkeypatch, way):
    monkeypatch.setattr("espnet_bayeslm.rescoring.list_worker.BLOCK_SIZE", 40)
    options = dict(WAYS[way])
    if "segments" in options:
        options["segments"] = segments
    tool = {name: value for name, value in options.items() if name != "tune"}
    if "tune" in options:
        tool["tune_ref"] = nbest / "dev.ref"
        options["refs"] = read_transcripts(nbest / "dev.ref")
    mixture = {"lm": bayes, "ngram": ngram, "weights": "0.6,0.4", "token_scores": "true"}
    run(nbest=nbest / "dev", **mixture, **tool, output=tmp_path / "out")
    lists = list(read_nbest(nbest / "dev"))
    lm = espnet_bayeslm.load(bayes) if way == "tuned" else bayes
    given = dict(lms=[lm], ngrams=[ngram], weights=[0.6, 0.4], **options)
    rescoring = espnet_bayeslm.rescore(iter(lists), **given)
    check_same(rescoring, tmp_path / "out")
    scales = settings(tmp_path / "out")
    # weights of features have no LMWT where the LM has no weight
    assert rescoring.weighting.scales.lmwt == scales.get("lmwt", Scales.lmwt)
    assert list(rescoring.weighting.weights) == list(scales["components"].values())
    assert (rescoring.tuned is not None) == ("tune" in options)


def test_lists_are_taken_as_they_are_needed(nbest, ngram, monkeypatch):
    monkeypatch.setattr("espnet_bayeslm.rescoring.list_worker.BLOCK_SIZE", 10)
    taken = []

    def lists():
        for item in read_nbest(nbest / "dev"):
            taken.append(item.utt)
            yield item

    rescoring = espnet_bayeslm.rescore(lists(), ngrams=[ngram])
    assert not taken
    assert next(rescoring).nbest.utt == taken[0] and len(taken) == 2


def test_lists_without_references_are_not_tuned_on(nbest, ngram):
    with pytest.raises(InputError, match="has no reference to tune on"):
        espnet_bayeslm.rescore(read_nbest(nbest / "dev"), ngrams=[ngram], tune=True)


def test_a_loaded_lm_scores_strings_and_words(bayes, plain_text):
    trained = espnet_bayeslm.load(bayes)
    assert trained.tokens[-1] == "<sos/eos>" and len(trained.tokens) == trained.lm.vocab_size
    lines = (plain_text / "valid.txt").read_text().splitlines()[:5]
    for num_samples in (0, 3):
        ids = [trained.ids(line.split()) for line in lines]
        expected = token_log_probs(trained.lm, ids, num_samples=num_samples)
        for texts in (lines, [line.split() for line in lines]):
            found = trained.word_scores(texts, num_samples=num_samples)
            for scores, log_probs, text in zip(found, expected, texts, strict=True):
                np.testing.assert_array_equal(scores.log_probs, log_probs)
                score = trained.score(text, num_samples=num_samples)
                assert score == pytest.approx(log_probs.sum(), abs=1e-5)
    assert trained.score("") == trained.score([]) < 0
    assert trained.word_scores(["a zebra"])[0].oov.tolist() == [False, True, False]
    with pytest.raises(InputError, match="where a list of sentences was expected"):
        trained.word_scores("a b")


def test_a_loaded_lm_knows_its_uncertainty(bayes, capfd):
    trained = espnet_bayeslm.load(bayes)
    capfd.readouterr()
    trained.score("a b c")
    found = trained.uncertainty("a b c", num_samples=3)
    assert found.draws.shape == (3, 4) and found.mutual_information.max() > 0
    same = trained.uncertainty(["a", "b", "c"], num_samples=3)
    np.testing.assert_array_equal(found.draws, same.draws)
    assert capfd.readouterr() == ("", "")  # no bar where nobody waits


def test_importing_takes_nothing_heavy():
    script = "import sys, json, espnet_bayeslm; print(json.dumps(sorted(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    loaded = json.loads(result.stdout)
    assert "espnet_bayeslm" in loaded
    assert not {"torch", "numpy", "espnet2", "matplotlib"} & set(loaded)
