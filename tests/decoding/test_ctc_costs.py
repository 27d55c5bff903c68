"""Costs before a word is complete, and bounds of a CTC search, which change no list."""

import sys
from pathlib import Path

import numpy as np
import pytest
from mixtures import mixture_of

from espnet_bayeslm.decoding.ctc_beam import LargeBeam
from espnet_bayeslm.decoding.ctc_search import BeamOptions, CTCSearch
from espnet_bayeslm.decoding.ctc_small_beam import SmallBeam
from espnet_bayeslm.decoding.ctc_tokens import CTCTokens
from espnet_bayeslm.decoding.ctc_words import CTCFusion, Vocabulary, WordHistories
from espnet_bayeslm.decoding.logits import log_probs_of
from espnet_bayeslm.scoring.word_scores import WordScorer

sys.path.insert(0, str(Path(__file__).parent))

from test_ctc_search import LETTERS, hotwords_of, logits_of


class EvenWords(WordScorer):
    """Scorer that is sure of words of even length."""

    name = "even"

    def next_words(self, states, words):
        return np.array([-3.0 * (len(word) % 2) for word in words])


LM = dict(mixture=mixture_of(EvenWords()))


@pytest.mark.parametrize("lm_weight", [0.0, 0.5, 2.0])
def test_costs_of_letters_before_a_word_is_complete(lm_weight):
    free = CTCFusion(**LM, lm_weight=lm_weight)
    known = dict(vocabulary=Vocabulary(["b" * 19]), unk_score_offset=-7.0)
    bound = CTCFusion(**LM, lm_weight=lm_weight, **known)
    for n in range(1, 20):
        assert free.ahead("a" * n) == pytest.approx(-lm_weight * 2 * n)
        assert CTCFusion(lm_weight=lm_weight).ahead("a" * n) == 0.0
        assert bound.ahead("a" * n) == pytest.approx(-7.0 * max(1, n / 6))
        assert bound.ahead("b" * n) == bound.ahead("") == 0.0


def test_histories_know_which_phrases_have_begun():
    fusion = CTCFusion(bias=hotwords_of({"a": 1.0, "b a": 2.0}, LETTERS))
    histories = WordHistories(fusion, CTCTokens(LETTERS).words)
    numbers = histories.add([(0, "a"), (0, "b"), (0, "ab")])
    numbers += histories.add([(numbers[0], "b"), (numbers[1], "a"), (numbers[1], "ab")])
    assert histories.has_begun[numbers].tolist() == [False, True, False, True, False, False]
    assert (histories.marks[numbers] > 0).tolist() == [True, False, False, True, True, False]
    assert histories.scores[numbers].tolist() == [1.0, 0.0, 0.0, 1.0, 4.0, 0.0]


FUSIONS = {
    "hotwords": dict(bias=hotwords_of({"b a": 4.0, "b a a": 2.0, "ab": 1.0}, LETTERS)),
    "bonus": dict(**LM, word_bonus=7.0),
    "malus": dict(**LM, word_bonus=-2.0),
    "phrases": dict(
        **LM, word_bonus=0.0, bias=hotwords_of({"b": 2.0, "b a": 3.0, "aa b": 3.0}, LETTERS)
    ),
    "known": dict(
        **LM, vocabulary=Vocabulary(["ab", "ba"]), bias=hotwords_of({"ab b": 5.0}, LETTERS)
    ),
}


@pytest.mark.parametrize("beam_size", [1, 3, 8])
@pytest.mark.parametrize("name", FUSIONS)
def test_bounds_and_what_was_searched_before_change_no_list(name, beam_size, monkeypatch):
    monkeypatch.setattr(CTCFusion, "keeps_prefixes", False)  # the scorer keeps nothing to collect
    tokens, options = CTCTokens(LETTERS), BeamOptions(beam_size=beam_size)
    utterances = [log_probs_of(logits_of(20, 4, seed=seed, scale=1.5)) for seed in range(5)]
    search = CTCSearch(tokens, CTCFusion(**FUSIONS[name]), options)
    found = [search(log_probs) for log_probs in utterances]
    assert [search(log_probs) for log_probs in utterances] == found
    for steps in (SmallBeam, LargeBeam):
        monkeypatch.setattr(steps, "_bar", lambda *_: -np.inf)
    free = CTCSearch(tokens, CTCFusion(**FUSIONS[name]), options)
    for log_probs, texts in zip(utterances, found, strict=True):
        expected = free(log_probs)
        assert [text.words for text in texts] == [text.words for text in expected]
        assert [text.score for text in texts] == pytest.approx([t.score for t in expected])


def test_words_and_ends_are_paid_before_the_last_hypotheses_are_dropped():
    fusion = CTCFusion(**LM, lm_weight=2.0)
    for limit in (-8.0, -2.0):
        options = BeamOptions(beam_prune_logp=limit)
        found = CTCSearch(CTCTokens(LETTERS), fusion, options)(log_probs_of(logits_of(12, 4)))
        least = found[0].score + limit
        assert len(found) > 1 and all(text.score >= least for text in found)
