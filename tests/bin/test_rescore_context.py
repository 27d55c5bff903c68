"""`bayeslm rescore` with context, without a softmax, and with uncertainty."""

import numpy as np
from command_lines import costs as costs_of_keys
from command_lines import json_lines, run, words

from espnet_bayeslm.bin.rescore import main
from espnet_bayeslm.loading.trained_lm import load_lm
from espnet_bayeslm.rescoring import read_nbest
from espnet_bayeslm.scoring.neural import NeuralScorer
from espnet_bayeslm.utils.files import read_keyed_lines


def costs(output):
    """Return {key: cost} of an output."""
    return {key: cost for key, (cost,) in costs_of_keys(output / "lmwt.nn").items()}


def test_context_is_the_best_so_far_of_the_recording(nbest, point, ngram, segments, tmp_path):
    lists = {"nbest": nbest / "dev", "lm": point, "ngram": ngram, "weights": "0.7,0.3", "lmwt": 8}
    found = costs(run(**lists, context="previous", segments=segments, output=tmp_path / "out"))
    best = {u: tuple(w.split()) for u, (_, w) in read_keyed_lines(tmp_path / "out/text").items()}
    lm = NeuralScorer(load_lm(point))
    alone = costs(run(**lists, output=tmp_path / "alone"))
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
            assert (abs(found[key] - alone[key]) < 1e-5) == same
            moved += not same
        (histories[recording],) = lm.extended(history, [best[item.utt]])
    assert moved > 100


def test_uncertainty_of_each_word_is_written(nbest, bayes, ngram, tmp_path):
    lms = {"lm": bayes, "ngram": ngram, "weights": "0.5,0.5", "num_samples": 3}
    output = run(nbest=nbest / "dev", **lms, uncertainty="true", output=tmp_path / "out")
    rows = json_lines(output / "uncertainty.ndjson")
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


def test_uncertainty_needs_a_bayesian_lm(nbest, point, tmp_path, refused):
    lists = {"nbest": nbest / "dev", "uncertainty": "true", "output": tmp_path / "out"}
    refused(main, words(**lists, lm=point, num_samples=3), "no LM is uncertain")
