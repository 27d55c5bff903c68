"""CTC prefix beam search: all alignments, torch's loss, LMs, vocabulary, hotwords, pyctcdecode."""

import dataclasses
import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from mixtures import mixture_of

from espnet_bayeslm.decoding import ctc_search, ctc_words
from espnet_bayeslm.decoding.bias_search import BiasTree
from espnet_bayeslm.decoding.ctc_lists import best_path
from espnet_bayeslm.decoding.ctc_search import BeamOptions, CTCSearch
from espnet_bayeslm.decoding.ctc_tokens import CTCTokens
from espnet_bayeslm.decoding.ctc_words import (
    LETTER_COST,
    LN_10,
    CTCFusion,
    Vocabulary,
)
from espnet_bayeslm.decoding.hotwords import hotword_list
from espnet_bayeslm.decoding.logits import log_probs_of
from espnet_bayeslm.ngram.estimation import build_ngram
from espnet_bayeslm.scoring.ngram_scorer import NgramScorer
from espnet_bayeslm.scoring.word_scores import WordScorer
from espnet_bayeslm.utils.errors import InputError

sys.path.insert(0, str(Path(__file__).parent.parent / "oracles"))

from ctc_paths import all_texts, collapsed, text_of

WIDE = BeamOptions(beam_size=10**6, beam_prune_logp=-math.inf, token_min_logp=-math.inf)
LETTERS = ["<pad>", "|", "a", "b"]
PIECES = ["<blank>", "\u2581", "\u2581a", "a", "b", "\u2581ab"]
SYMBOLS = ["x", "y"]  # the blank is the last column
TEXTS = ["a b ab", "ab a", "b b a ab", "a a b", "abb ab a", "ab ab b"] * 3


def logits_of(num_frames, num_tokens, seed=0, scale=2.0):
    return np.random.default_rng(seed).normal(0, scale, (num_frames, num_tokens))


def spoken(text, tokens, *, seed=0, margin=4.0, frames=3, noise=1.5):
    """Logits in which each letter of a text leads by about a margin, and blanks stand between."""
    rng = np.random.default_rng(seed)
    rows = []
    for letter in text.replace(" ", "|"):
        for target in ["<pad>"] * (frames - 1) + [letter]:
            row = rng.normal(0, noise, len(tokens))
            row[tokens.index(target)] += margin
            rows.append(row)
    return np.array(rows)


@pytest.fixture(scope="module")
def arpa(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ngram")
    (folder / "text").write_text("".join(f"{line}\n" for line in TEXTS))
    build_ngram(folder / "text", folder / "3.arpa", order=3, discount_fallback=True)
    return folder / "3.arpa"


@pytest.mark.parametrize("tokens", [LETTERS, PIECES, SYMBOLS])
def test_unpruned_scores_are_sums_over_all_alignments(tokens):
    known = CTCTokens(tokens)
    log_probs = log_probs_of(logits_of(5, len(known.tokens)))
    expected = all_texts(log_probs, known.blank, known.words.opens, known.words.texts)
    found = CTCSearch(known, CTCFusion(), WIDE)(log_probs)
    assert {text.words for text in found} == expected.keys()
    for text in found:
        assert text.am_score == pytest.approx(expected[text.words], abs=1e-9)
        assert (text.lm_score, text.phrase_score, text.score) == (None, 0.0, text.am_score)
    assert [text.score for text in found] == sorted((t.score for t in found), reverse=True)


def test_unpruned_scores_are_torchs_loss():
    tokens = CTCTokens(SYMBOLS)  # a text has one sequence of tokens
    log_probs = log_probs_of(logits_of(7, 3, seed=1))
    for text in CTCSearch(tokens, CTCFusion(), WIDE)(log_probs):
        target = torch.tensor([tokens.tokens.index(word) for word in text.words])
        loss = torch.nn.functional.ctc_loss(
            torch.tensor(log_probs)[:, None],
            target[None],
            torch.tensor([7]),
            torch.tensor([len(target)]),
            blank=tokens.blank,
            reduction="sum",
        )
        assert text.am_score == pytest.approx(-float(loss), abs=1e-9)


def test_log_probabilities_and_probabilities_are_read_as_logits():
    logits = logits_of(6, 4)
    log_probs = log_probs_of(logits)
    np.testing.assert_allclose(log_probs_of(log_probs), log_probs, atol=1e-12)
    np.testing.assert_allclose(log_probs_of(np.exp(log_probs)), log_probs, atol=1e-12)
    np.testing.assert_allclose(log_probs_of(torch.tensor(logits)), log_probs, atol=1e-12)
    np.testing.assert_allclose(np.exp(log_probs).sum(1), 1.0)


def test_a_narrow_beam_finds_the_best_text_of_clear_logits():
    tokens = CTCTokens(LETTERS)
    log_probs = log_probs_of(spoken("ab a bb", LETTERS, margin=9.0))
    found = CTCSearch(tokens, CTCFusion(), BeamOptions(beam_size=3))(log_probs)
    assert found[0].words == ("ab", "a", "bb") == tuple(best_path(log_probs, tokens))
    assert len(found) <= 3


def test_tokens_that_are_no_text_are_never_found():
    tokens = CTCTokens(["<s>", "<blank>", "</s>", "a", " "])
    logits = logits_of(6, 5)
    logits[:, [0, 2]] += 9.0
    for text in CTCSearch(tokens, CTCFusion(), BeamOptions())(log_probs_of(logits)):
        assert set("".join(text.words)) <= {"a"}


def expected_score(words, am, scorer, fusion):
    """Score of a text by its definition."""
    lm = float(scorer.word_scores([words])[0].log_probs.sum())
    unknown = sum(fusion.vocabulary is not None and w not in fusion.vocabulary for w in words)
    penalty = fusion.lm_weight * LN_10 * fusion.unk_score_offset * unknown
    return lm, am + fusion.lm_weight * lm + fusion.word_bonus * len(words) + penalty


@pytest.mark.parametrize("tokens", [LETTERS, PIECES])
@pytest.mark.parametrize("known", [None, ["a", "ab"]])
def test_scores_with_an_ngram_are_those_of_whole_texts(arpa, tokens, known):
    columns = CTCTokens(tokens)
    scorer, vocabulary = NgramScorer(arpa), Vocabulary(known) if known else None
    fusion = CTCFusion(mixture=mixture_of(scorer), lm_weight=0.7, vocabulary=vocabulary)
    log_probs = log_probs_of(logits_of(5, len(columns.tokens), seed=3))
    expected = all_texts(log_probs, columns.blank, columns.words.opens, columns.words.texts)
    found = CTCSearch(columns, fusion, WIDE)(log_probs)
    assert {text.words for text in found} == expected.keys()
    for text in found:
        lm, score = expected_score(text.words, expected[text.words], scorer, fusion)
        assert text.lm_score == pytest.approx(lm, abs=1e-4)
        assert text.score == pytest.approx(score, abs=1e-4)


class CountingScorer(WordScorer):
    """Scorer that counts its calls and pairs; every word has ln P -2, an end -1."""

    name = "counting"

    def __init__(self):
        self.calls, self.pairs = 0, []

    def next_words(self, states, words):
        self.calls += 1
        self.pairs += zip(states, words, strict=True)
        return np.array([-1.0 if word == "</s>" else -2.0 for word in words])


def test_each_word_is_paid_once_and_only_where_it_may_survive():
    logits = spoken("ab a bb ab", LETTERS, margin=5.0)
    scorer = CountingScorer()
    fusion = CTCFusion(mixture=mixture_of(scorer))
    found = CTCSearch(CTCTokens(LETTERS), fusion, BeamOptions(beam_size=20))(log_probs_of(logits))
    assert len(scorer.pairs) == len(set(scorer.pairs)) and scorer.calls <= len(logits) + 2
    for text in found:
        assert text.lm_score == -2.0 * len(text.words) - 1.0
    few = CountingScorer()
    fusion = CTCFusion(mixture=mixture_of(few))
    CTCSearch(CTCTokens(LETTERS), fusion, BeamOptions(beam_size=2))(log_probs_of(logits))
    assert len(few.pairs) < len(scorer.pairs)


def test_words_are_not_paid_where_no_lm_could_save_them():
    """Pruning by the bound changes nothing: the same texts as where every word is paid."""

    class SureScorer(CountingScorer):
        def next_words(self, states, words):
            return super().next_words(states, words) * 0.0

    class AllWords(Vocabulary):
        def __contains__(self, word):
            return True

        def begins(self, letters):
            return True

    log_probs = log_probs_of(spoken("ab a bb", LETTERS, margin=2.0))
    how = dict(word_bonus=0.0, vocabulary=AllWords(()))
    sure = CTCFusion(mixture=mixture_of(SureScorer()), **how)
    options = BeamOptions(beam_size=10)
    with_lm = CTCSearch(CTCTokens(LETTERS), sure, options)(log_probs)
    without = CTCSearch(CTCTokens(LETTERS), CTCFusion(), options)(log_probs)
    assert [(t.words, t.am_score) for t in with_lm] == [(t.words, t.am_score) for t in without]


def test_a_mixture_is_a_linear_interpolation(arpa):
    ngram, other = NgramScorer(arpa), CountingScorer()
    fusion = CTCFusion(mixture=mixture_of(ngram, other, weights=[0.3, 0.7]))
    log_probs = log_probs_of(logits_of(4, 4, seed=5))
    for text in CTCSearch(CTCTokens(LETTERS), fusion, WIDE)(log_probs):
        (scores,) = ngram.word_scores([text.words])
        flat = np.array([-2.0] * len(text.words) + [-1.0])
        mixed = np.log(0.3 * np.exp(scores.log_probs) + 0.7 * np.exp(flat))
        assert text.lm_score == pytest.approx(mixed.sum(), abs=1e-4)


def test_the_vocabulary_rules_out_words_that_begin_none():
    logits = spoken("ab", LETTERS, margin=5.0, noise=0.1)
    logits[2, LETTERS.index("b")] = logits[2].max() + 0.5  # `bb` is nearer
    log_probs = log_probs_of(logits)
    free = CTCSearch(CTCTokens(LETTERS), CTCFusion(), BeamOptions())(log_probs)
    assert free[0].words == ("bb",)
    bound = CTCFusion(vocabulary=Vocabulary(["ab", "abba"]))
    assert CTCSearch(CTCTokens(LETTERS), bound, BeamOptions())(log_probs)[0].words == ("ab",)


@pytest.mark.parametrize("cost", [0.0, LETTER_COST])
def test_no_word_without_end_gains_where_all_words_are_known(cost, monkeypatch):
    """Words are paid at their ends: where letters cost nothing, ends leave a small beam."""

    class FewWords(CountingScorer):
        def next_words(self, states, words):
            return np.array(
                [-2.0 if word in ("ab", "a", "bb", "</s>") else -40.0 for word in words]
            )

    monkeypatch.setattr(ctc_words, "LETTER_COST", cost)
    text = ("ab", "a", "bb", "ab", "a", "ab")
    logits = spoken(" ".join(text), LETTERS, margin=8.0, noise=0.1)
    for place in np.flatnonzero(logits.argmax(1) == LETTERS.index("|")):
        logits[place, 0] = logits[place].max() + 1.5
    fusion = CTCFusion(mixture=mixture_of(FewWords()))
    search = CTCSearch(CTCTokens(LETTERS), fusion, BeamOptions(beam_size=4))
    assert (search(log_probs_of(logits))[0].words == text) == bool(cost)


def hotwords_of(weights, labels):
    """Hotwords as a search has them."""
    return BiasTree(hotword_list(weights), CTCTokens(labels).words)


ALPHABET = ["<pad>", "|", *"abcdefghij"]


@pytest.mark.parametrize("phrase", ["cab", "face bad"])
@pytest.mark.parametrize("with_lm", [False, True])
def test_a_hotword_that_the_logits_nearly_support_wins(arpa, phrase, with_lm):
    """Two letters of the phrase are a little below others."""
    logits = spoken(f"{phrase} dig", ALPHABET, margin=8.0, noise=0.5)
    for place in (2, 8):
        letter = ALPHABET.index(phrase.replace(" ", "|")[place // 3])
        logits[place, ALPHABET.index("j")] = logits[place, letter] + 0.5
    log_probs = log_probs_of(logits)
    tokens, options = CTCTokens(ALPHABET), BeamOptions(beam_size=20)
    lm = dict(mixture=mixture_of(NgramScorer(arpa))) if with_lm else {}
    (without, *_) = CTCSearch(tokens, CTCFusion(**lm), options)(log_probs)
    assert without.words != (*phrase.split(), "dig")
    fusion = CTCFusion(**lm, bias=hotwords_of({phrase: 2.0}, ALPHABET))
    (best, *_) = CTCSearch(tokens, fusion, options)(log_probs)
    assert best.words == (*phrase.split(), "dig")
    assert best.phrase_score == 2.0 * len(phrase.split())


@pytest.mark.parametrize("text, first", [("cabbage", 2), ("dig cabbage", 14)])
def test_letters_of_hotwords_guide_the_search(text, first):
    """Each letter leads the search on: paid at the end, the word would have left the beam.

    In a phrase those of its second word, too.
    """
    logits = spoken(text, ALPHABET, margin=8.0, noise=0.5)
    for place in range(first, len(logits), 3):
        logits[place, ALPHABET.index("j")] = logits[place].max() + 1.2
    log_probs, tokens = log_probs_of(logits), CTCTokens(ALPHABET)
    options = BeamOptions(beam_size=4)
    without = CTCSearch(tokens, CTCFusion(), options)(log_probs)
    assert tuple(text.split()) not in [found.words for found in without]
    fusion = CTCFusion(bias=hotwords_of({text: 12.0}, ALPHABET))
    assert CTCSearch(tokens, fusion, options)(log_probs)[0].words == tuple(text.split())


def test_whole_texts_with_hotwords_have_their_scores(arpa):
    weights = {"a": 0.8, "ab a": 1.5}
    scorer = NgramScorer(arpa)
    fusion = CTCFusion(mixture=mixture_of(scorer), bias=hotwords_of(weights, LETTERS))
    log_probs = log_probs_of(logits_of(5, 4, seed=7))
    tokens = CTCTokens(LETTERS)
    expected = all_texts(log_probs, 0, tokens.words.opens, tokens.words.texts)
    for text in CTCSearch(tokens, fusion, WIDE)(log_probs):
        _, score = expected_score(text.words, expected[text.words], scorer, fusion)
        hot = hotword_list(weights).total(text.words)
        assert text.phrase_score == pytest.approx(hot)
        assert text.score == pytest.approx(score + hot, abs=1e-4)


def test_limits_are_those_of_pyctcdecode():
    """Its `DEFAULT_BEAM_WIDTH`, `DEFAULT_PRUNE_LOGP` and `DEFAULT_MIN_TOKEN_LOGP`."""
    assert dataclasses.astuple(BeamOptions()) == (100, -10.0, -5.0)


@pytest.mark.parametrize("hotwords", [(), ("ab",), ("bb", "aab")])
@pytest.mark.parametrize("with_lm", [True, False])
def test_beams_are_those_of_pyctcdecode(arpa, with_lm, hotwords):
    pyctcdecode = pytest.importorskip("pyctcdecode", reason="pyctcdecode is not installed")
    labels = ["", " ", *"ab"]
    lm = str(arpa) if with_lm else None
    theirs = pyctcdecode.build_ctcdecoder(labels, lm)
    fusion = CTCFusion(bias=hotwords_of(dict.fromkeys(hotwords, 10.0), labels))
    if with_lm:
        vocabulary = Vocabulary(["a", "b", "ab", "abb"])
        fusion = CTCFusion(
            mixture=mixture_of(NgramScorer(arpa)),
            vocabulary=vocabulary,
            bias=fusion.bias,
        )
    search = CTCSearch(CTCTokens(labels), fusion, BeamOptions())
    for seed in range(5):
        logits = spoken("ab a bb ab", LETTERS, seed=seed, margin=3.0)
        # pyctcdecode scores an empty word where a text ends in a delimiter
        logits = np.concatenate([logits, spoken("a", LETTERS, seed=seed, margin=12.0, frames=1)])
        logits[-1, 1] = -30
        expected = theirs.decode_beams(logits, hotwords=hotwords)
        found = {" ".join(text.words): text for text in search(log_probs_of(logits))}
        assert hotwords or {beam[0] for beam in expected} == found.keys()
        # there a hotword pays each time, which changes the beam, too
        for text, *_, logit_score, lm_score in expected:
            one, said = found.get(text), text.split()
            if hotwords and (one is None or any(said.count(word) > 1 for word in hotwords)):
                continue
            assert hotwords or one.am_score == pytest.approx(logit_score, abs=1e-4)
            assert one.score - one.am_score == pytest.approx(lm_score - logit_score, abs=1e-4)


def test_best_paths_are_the_best_tokens():
    tokens = CTCTokens(LETTERS)
    log_probs = log_probs_of(logits_of(30, 4, seed=2))
    path = collapsed(log_probs.argmax(1).tolist(), tokens.blank)
    expected = text_of(path, tokens.words.opens, tokens.words.texts)
    assert tuple(best_path(log_probs, tokens)) == expected


@pytest.mark.parametrize("kept", [None, 0])
def test_a_search_is_the_same_after_others(kept, monkeypatch):
    """Also where the first letters of words are forgotten, since there are too many."""
    if kept is not None:
        monkeypatch.setattr(ctc_search, "KEPT_BEGUN", kept)
    search = CTCSearch(CTCTokens(LETTERS), CTCFusion(), BeamOptions(beam_size=9))
    first, second = (log_probs_of(logits_of(20, 4, seed=seed)) for seed in (1, 2))
    once = search(first)
    search(second)
    known = search._begun
    assert search(first) == once
    assert (search._begun is known) == (kept is None)


def test_sizes_are_checked():
    for bad in ({"beam_size": 0}, {"beam_prune_logp": 1.0}, {"token_min_logp": math.nan}):
        with pytest.raises(InputError, match="expected"):
            BeamOptions(**bad)
    for bad in ({"a": 0.0}, {"a": math.inf}, {"a": -1.0}, {" ": 1.0}):
        with pytest.raises(InputError, match="above 0"):
            hotword_list(bad)
