"""Costs before a word is complete, and bounds of a CTC search, which change no list."""

import itertools
import sys
from pathlib import Path

import numpy as np
import pytest
from mixtures import mixture_of

from espnet_bayeslm.decoding.ctc_beam import LargeBeam
from espnet_bayeslm.decoding.ctc_search import BeamOptions, CTCSearch
from espnet_bayeslm.decoding.ctc_small_beam import SmallBeam
from espnet_bayeslm.decoding.ctc_tokens import CTCTokens
from espnet_bayeslm.decoding.ctc_words import Vocabulary, WordFusion, WordHistories
from espnet_bayeslm.decoding.hotwords import Hotwords, HotwordState
from espnet_bayeslm.decoding.logits import log_probs_of
from espnet_bayeslm.scoring.word_scores import WordScorer

sys.path.insert(0, str(Path(__file__).parent))

from test_ctc_search import LETTERS, logits_of, plain_hotword_score

START = HotwordState()


class EvenWords(WordScorer):
    """Scorer that is sure of words of even length."""

    name = "even"

    def next_words(self, states, words):
        return np.array([-3.0 * (len(word) % 2) for word in words])


LM = dict(mixture=mixture_of(EvenWords()))


@pytest.mark.parametrize("lm_weight", [0.0, 0.5, 2.0])
def test_costs_of_letters_before_a_word_is_complete(lm_weight):
    free = WordFusion(**LM, lm_weight=lm_weight)
    known = dict(vocabulary=Vocabulary(["b" * 19]), unk_score_offset=-7.0)
    bound = WordFusion(**LM, lm_weight=lm_weight, **known)
    for n in range(1, 20):
        assert free.ahead(START, "a" * n) == pytest.approx(-lm_weight * 2 * n)
        assert WordFusion(lm_weight=lm_weight).ahead(START, "a" * n) == 0.0
        assert bound.ahead(START, "a" * n) == pytest.approx(-7.0 * max(1, n / 6))
        assert bound.ahead(START, "b" * n) == bound.ahead(START, "") == 0.0


WEIGHTS = {"a": 3.0, "a b": 5.0, "a b c": 7.0, "b ab": 6.0, "ab": 1.0}


def share_of_phrases(words, letters):
    """Gain of a next word's letters, by trying all phrases that may have begun."""
    best = score = plain_hotword_score(words, WEIGHTS)
    for start in range(len(words) + 1):
        before, said = plain_hotword_score(words[:start], WEIGHTS), list(words[start:])
        for phrase, weight in WEIGHTS.items():
            parts = phrase.split()
            goes_on = parts[: len(said)] == said and len(parts) > len(said)
            if goes_on and parts[len(said)].startswith(letters):
                rate = weight * len(parts) / sum(map(len, parts))
                best = max(best, before + rate * (sum(map(len, said)) + len(letters)))
    return best - score


def test_letters_pay_the_most_of_all_phrases_so_far():
    hotwords = Hotwords(WEIGHTS)
    for words in itertools.chain.from_iterable(
        itertools.product(("a", "b", "ab", "c"), repeat=n) for n in range(4)
    ):
        state = START
        for word in words:
            state = hotwords.after(state, word)
        for letters in ("", "a", "b", "ab", "c", "x"):
            share = hotwords.ahead(state, letters) or 0.0
            assert share == pytest.approx(share_of_phrases(words, letters))


def test_a_phrase_that_stands_twice_has_its_higher_weight():
    hotwords = Hotwords({"a b": 5.0, "a  b": 3.0})
    state = hotwords.after(START, "a")
    assert hotwords.ahead(state, "b") == hotwords.after(state, "b").score == hotwords.most == 10.0


def test_histories_know_which_phrases_have_begun():
    fusion = WordFusion(hotwords=Hotwords({"a": 1.0, "b a": 2.0}))
    histories = WordHistories(fusion, CTCTokens(LETTERS).words)
    numbers = histories.add([(0, "a"), (0, "b"), (0, "ab")])
    numbers += histories.add([(numbers[0], "b"), (numbers[1], "a"), (numbers[1], "ab")])
    assert histories.in_phrase[numbers].tolist() == [False, True, False, True, False, False]
    assert histories.scores[numbers].tolist() == [1.0, 0.0, 0.0, 1.0, 4.0, 0.0]


FUSIONS = {
    "hotwords": dict(hotwords=Hotwords({"b a": 4.0, "b a a": 2.0, "ab": 1.0})),
    "bonus": dict(**LM, word_bonus=7.0),
    "malus": dict(**LM, word_bonus=-2.0),
    "phrases": dict(**LM, word_bonus=0.0, hotwords=Hotwords({"b": 2.0, "b a": 3.0, "aa b": 3.0})),
    "known": dict(**LM, vocabulary=Vocabulary(["ab", "ba"]), hotwords=Hotwords({"ab b": 5.0})),
}


@pytest.mark.parametrize("beam_size", [1, 3, 8])
@pytest.mark.parametrize("name", FUSIONS)
def test_bounds_and_what_was_searched_before_change_no_list(name, beam_size, monkeypatch):
    monkeypatch.setattr(WordFusion, "keeps_prefixes", False)  # the scorer keeps nothing to collect
    tokens, options = CTCTokens(LETTERS), BeamOptions(beam_size=beam_size)
    utterances = [log_probs_of(logits_of(20, 4, seed=seed, scale=1.5)) for seed in range(5)]
    search = CTCSearch(tokens, WordFusion(**FUSIONS[name]), options)
    found = [search(log_probs) for log_probs in utterances]
    assert [search(log_probs) for log_probs in utterances] == found
    for steps in (SmallBeam, LargeBeam):
        monkeypatch.setattr(steps, "_bar", lambda *_: -np.inf)
    free = CTCSearch(tokens, WordFusion(**FUSIONS[name]), options)
    for log_probs, texts in zip(utterances, found, strict=True):
        expected = free(log_probs)
        assert [text.words for text in texts] == [text.words for text in expected]
        assert [text.score for text in texts] == pytest.approx([t.score for t in expected])


def test_words_and_ends_are_paid_before_the_last_hypotheses_are_dropped():
    fusion = WordFusion(**LM, lm_weight=2.0)
    for limit in (-8.0, -2.0):
        options = BeamOptions(beam_prune_logp=limit)
        found = CTCSearch(CTCTokens(LETTERS), fusion, options)(log_probs_of(logits_of(12, 4)))
        least = found[0].score + limit
        assert len(found) > 1 and all(text.score >= least for text in found)
