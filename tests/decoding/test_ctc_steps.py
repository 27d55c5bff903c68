"""Steps of few and of many hypotheses, frames in a row as one step, and frames of words."""

import math
import sys
from pathlib import Path

import numpy as np
import pytest

from espnet_bayeslm.decoding import ctc_search
from espnet_bayeslm.decoding.ctc_frames import FrameStep, steps_of
from espnet_bayeslm.decoding.ctc_search import BeamOptions, CTCSearch
from espnet_bayeslm.decoding.ctc_tokens import CTCTokens
from espnet_bayeslm.decoding.ctc_words import CTCFusion
from espnet_bayeslm.decoding.logits import log_probs_of
from espnet_bayeslm.decoding.word_times import WordTimes

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "oracles"))

from ctc_paths import best_frames
from test_ctc_costs import FUSIONS
from test_ctc_search import LETTERS, PIECES, WIDE, logits_of, spoken


def framed(found, tokens):
    """Texts and frames of hypotheses, and their scores."""
    times = WordTimes(range(10**6), tokens.words)
    return [times.of(text) for text in found], [(text.am_score, text.score) for text in found]


@pytest.mark.parametrize("prune_history", [False, True])
@pytest.mark.parametrize("name", [None, *FUSIONS])
def test_few_and_many_hypotheses_are_moved_alike(name, prune_history, monkeypatch):
    monkeypatch.setattr(CTCFusion, "keeps_prefixes", False)  # the scorer keeps nothing to collect
    fusion = CTCFusion(**FUSIONS.get(name, {}), context_words=1)
    options = BeamOptions(beam_size=9)
    for tokens in (CTCTokens(LETTERS), CTCTokens(PIECES)):
        utterances = [
            log_probs_of(scale * logits_of(20, len(tokens.tokens), seed))
            for seed, scale in enumerate((0.5, 1.0, 2.0, 4.0))
        ]
        found = []
        for limits in ((math.inf, math.inf), (-1, -1), (8, 16)):
            monkeypatch.setattr(ctc_search, "SMALL", limits[0])
            monkeypatch.setattr(ctc_search, "LARGE", limits[1])
            search = CTCSearch(tokens, fusion, options, prune_history=prune_history)
            found.append([search(log_probs) for log_probs in utterances])
            how = {"prune_history": prune_history, "traced": False}
            untraced = CTCSearch(tokens, fusion, options, **how)
            assert [[text._replace(trace=None) for text in texts] for texts in found[-1]] == [
                [text._replace(trace=None) for text in untraced(each)] for each in utterances
            ]
        for one, *others in zip(*found, strict=True):
            texts, scores = framed(one, tokens)
            for other in others:
                assert framed(other, tokens)[0] == texts
                np.testing.assert_allclose(framed(other, tokens)[1], scores, atol=1e-9)


def frame_by_frame(log_probs, silent, least):
    """Steps of one frame each."""
    for n in range(len(log_probs)):
        for step in steps_of(log_probs[n : n + 1], silent, least):
            yield FrameStep(step.tokens, step.rest, n, n + 1)


@pytest.mark.parametrize("margin", [3.0, 6.0, 12.0])
def test_frames_in_a_row_are_one_step(margin, monkeypatch):
    tokens = CTCTokens(LETTERS)
    logits = np.repeat(spoken("ab a bb ab", LETTERS, margin=margin), [1, 3, 2] * 10, axis=0)
    noise = np.random.default_rng(0).normal(0, 0.1, logits.shape)  # no two alignments are alike
    log_probs = log_probs_of(logits + noise)
    steps = list(steps_of(log_probs, ~np.array(tokens.spoken), -5.0))
    assert [step.end for step in steps[:-1]] == [step.start for step in steps[1:]]
    assert (len(steps) < len(log_probs)) == (margin > 5)
    search = CTCSearch(tokens, CTCFusion(), BeamOptions())
    texts, scores = framed(search(log_probs), tokens)
    monkeypatch.setattr(ctc_search, "steps_of", frame_by_frame)
    expected, theirs = framed(search(log_probs), tokens)
    assert texts == expected
    np.testing.assert_allclose(scores, theirs, atol=1e-9)


@pytest.mark.parametrize("limit", [math.inf, -1])
@pytest.mark.parametrize("labels", [LETTERS, PIECES])
def test_frames_of_words_are_those_of_the_best_alignment(labels, limit, monkeypatch):
    for name in ("SMALL", "LARGE"):
        monkeypatch.setattr(ctc_search, name, limit)
    tokens = CTCTokens(labels)
    rules = tokens.words
    log_probs = log_probs_of(logits_of(5, len(labels), seed=4))
    times = WordTimes(range(5), rules)
    found = CTCSearch(tokens, CTCFusion(), WIDE)(log_probs)
    assert len(found) > 20
    for text in found[:20]:
        frames = times.of(text)
        expected = best_frames(log_probs, text.words, tokens.blank, rules.opens, rules.texts)
        assert frames == list(zip(text.words, expected, strict=True))


def test_a_token_of_probability_one_that_is_never_found_ends_no_search():
    tokens = CTCTokens(["<pad>", "<s>", "a", "|"])
    probabilities = np.array([[0.0, 0, 1, 0], [0, 1, 0, 0], [1, 0, 0, 0], [0, 0, 1, 0]])
    found = CTCSearch(tokens, CTCFusion(), BeamOptions())(log_probs_of(probabilities))
    assert found[0].words == ("aa",)
