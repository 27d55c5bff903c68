"""Linear interpolation of word probabilities, and scores that are kept in files."""

import numpy as np
import pytest
from oracles.em_plain import plain_em

from espnet_bayeslm.evaluation.interpolation import check_weights, estimate_weights, mix
from espnet_bayeslm.evaluation.word_scores import WordScores
from espnet_bayeslm.scoring.cache import CachedScorer
from espnet_bayeslm.utils.errors import InputError

SENTENCES = [["a", "b"], [], ["c", "zz", "a"], ["a", "b"]]


class Table:
    """A scorer that knows some words, with probabilities of its own."""

    def __init__(self, name, known, seed):
        self.name, self.known, self.seed, self.calls = name, known, seed, 0

    def word_scores(self, sentences):
        self.calls += 1
        rng = np.random.default_rng(self.seed)
        table = {word: -rng.gamma(2.0) for word in ["a", "b", "c", "zz", "</s>"]}
        return [
            WordScores(
                np.array([table[w] for w in (*words, "</s>")]),
                np.array([w not in self.known for w in words] + [False]),
            )
            for words in sentences
        ]


@pytest.fixture
def components():
    return [Table("x", "abc", 0), Table("y", ["a", "b", "c", "zz"], 1), Table("z", "ac", 2)]


def test_probabilities_are_mixed_word_by_word(components):
    weights = [0.5, 0.3, 0.2]
    parts = [c.word_scores(SENTENCES) for c in components]
    for n, scores in enumerate(mix(parts, weights)):
        p = sum(w * np.exp(part[n].log_probs) for w, part in zip(weights, parts, strict=True))
        np.testing.assert_allclose(np.exp(scores.log_probs), p, rtol=1e-12)
        np.testing.assert_array_equal(scores.oov, sum(part[n].oov for part in parts) > 0)


@pytest.mark.filterwarnings("error")
def test_what_one_component_excludes_another_may_know():
    scores = [
        [WordScores(np.array([-np.inf, -1.0]), np.zeros(2, bool))],
        [WordScores(np.array([-2.0, -np.inf]), np.zeros(2, bool))],
    ]
    (mixed,) = mix(scores, [0.25, 0.75])
    np.testing.assert_allclose(mixed.log_probs, [np.log(0.75) - 2, np.log(0.25) - 1])


def test_weights_are_estimated_on_words_that_all_components_know(components):
    parts = [c.word_scores(SENTENCES) for c in components]
    rows = [
        [part[n].log_probs[i] for part in parts]
        for n, words in enumerate(SENTENCES)
        for i, word in enumerate([*words, "</s>"])
        if word in ("a", "c", "</s>")
    ]
    assert len(rows) == 8
    np.testing.assert_allclose(estimate_weights(parts), plain_em(rows), atol=1e-4)


def test_weights_are_scaled_to_one():
    assert check_weights([0.3334, 0.3333, 0.3334], 3).sum() == pytest.approx(1, abs=1e-15)
    assert check_weights([1], 1).dtype == np.float64


@pytest.mark.parametrize(
    "weights, message",
    [
        ([0.5, 0.5], "2 weights for 3 components"),
        ([], "0 weights for 3 components"),
        ([0.5, 0.6, -0.1], "numbers from 0 to 1"),
        ([float("nan"), 0.5, 0.5], "numbers from 0 to 1"),
        ([0.5, 0.5, 0.5], r"with the sum 1\.5000, not 1"),
    ],
)
def test_weights_that_do_not_fit(components, weights, message):
    with pytest.raises(InputError, match=message):
        mix([c.word_scores(SENTENCES) for c in components], weights)


def cached(scorer, folder, fingerprint="v1"):
    """Return a cached scorer, and the list that grows when the scorer is loaded."""
    loads = []

    def load():
        loads.append(scorer.name)
        return scorer

    return CachedScorer(load, name="c", folder=folder, fingerprint=fingerprint), loads


def test_cached_scores_are_the_same_and_load_nothing(tmp_path):
    table = Table("x", "ab", 0)
    first, loads = cached(table, tmp_path / "new")
    expected = first.word_scores(SENTENCES)
    assert loads == ["x"] and table.calls == 1
    second, loads = cached(table, tmp_path / "new")
    again = second.word_scores(SENTENCES)
    assert loads == [] and table.calls == 1
    for a, b in zip(again, expected, strict=True):
        np.testing.assert_array_equal(a.log_probs, b.log_probs)
        np.testing.assert_array_equal(a.oov, b.oov)
        assert a.log_probs.dtype == np.float64 and a.oov.dtype == bool
    assert second.token_counts(["a", "b"]).tolist() == [1, 1, 1]
    third, loads = cached(table, tmp_path / "none")
    assert third.word_scores([]) == [] and loads == [] and not (tmp_path / "none").exists()


OTHERS = [SENTENCES[:3], SENTENCES[::-1], [["a", "b"], ["c"], ["zz", "a"], ["a", "b"]]]


@pytest.mark.parametrize(
    "sentences, fingerprint", [(SENTENCES, "v2"), *((other, "v1") for other in OTHERS)]
)
def test_other_sentences_or_another_lm_are_scored_anew(tmp_path, sentences, fingerprint):
    cached(Table("x", "ab", 0), tmp_path)[0].word_scores(SENTENCES)
    scorer, loads = cached(Table("y", "ab", 1), tmp_path, fingerprint)
    scores = scorer.word_scores(sentences)
    assert loads == ["y"]
    expected = Table("y", "ab", 1).word_scores(sentences)
    assert [s.log_probs.tolist() for s in scores] == [s.log_probs.tolist() for s in expected]
