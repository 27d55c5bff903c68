"""Mixture weights by EM, interpolation of word probabilities, kept scores, blocks."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from mixtures import mixture_of
from oracles.em_plain import log_likelihood, plain_em, scipy_optimum

from espnet_bayeslm.engine.work import LOCAL
from espnet_bayeslm.nbest.segments import Segment, place_finder, read_segments, recordings
from espnet_bayeslm.nbest.types import Hypothesis, NBest
from espnet_bayeslm.rescoring import list_worker as module
from espnet_bayeslm.rescoring.list_worker import blocks, scored_lists
from espnet_bayeslm.rescoring.rescore_options import RescoreOptions
from espnet_bayeslm.rescoring.scales import Scales
from espnet_bayeslm.rescoring.tuning import AS_USUAL
from espnet_bayeslm.scoring.cache import CachedScorer
from espnet_bayeslm.scoring.interpolation import (
    check_weights,
    em_weights,
    estimate_weights,
    mixed_scores,
)
from espnet_bayeslm.scoring.word_scores import END, WordScorer, WordScores
from espnet_bayeslm.utils.errors import InputError

# ln p of words, no smaller than what exp() still holds
LOG_PROBS = st.integers(1, 5).flatmap(
    lambda k: arrays(
        np.float64,
        st.tuples(st.integers(1, 12), st.just(k)),
        elements=st.floats(-30, 0, allow_nan=False),
    )
)


def random_log_probs(num_words, num_components, seed, spread=2.0):
    """Return ln p that differ between the components by about `spread`."""
    rng = np.random.default_rng(seed)
    common = -rng.gamma(2.0, 2.0, (num_words, 1))
    return np.minimum(common + spread * rng.normal(size=(num_words, num_components)), -1e-3)


@pytest.mark.parametrize("num_components, spread", [(2, 0.3), (2, 2.0), (3, 2.0), (5, 2.0)])
@pytest.mark.parametrize("seed", range(3))
def test_equals_plain_em_and_a_general_optimiser(seed, num_components, spread):
    log_probs = random_log_probs(150, num_components, seed, spread)
    weights = em_weights(log_probs)
    assert weights.dtype == np.float64 and weights.shape == (num_components,)
    for optimum in (plain_em, scipy_optimum):
        assert np.allclose(weights, optimum(log_probs), atol=1e-4, rtol=0)


def test_steps_of_em_where_the_quadratic_model_has_no_maximum(monkeypatch):
    def fails(*_):
        raise RuntimeError("maximum number of iterations reached")

    monkeypatch.setattr("scipy.optimize.nnls", fails)
    log_probs = random_log_probs(150, 2, 0)
    assert np.allclose(em_weights(log_probs, tol=1e-8), plain_em(log_probs), atol=1e-4, rtol=0)
    # a few of many steps are better than none
    monkeypatch.setattr("espnet_bayeslm.scoring.interpolation.MAX_STEPS", 3)
    before, after = ([0.5, 0.5], em_weights(log_probs, tol=1e-8))
    assert log_likelihood(log_probs, after) > log_likelihood(log_probs, before)


def test_closed_form_of_words_that_one_component_each_knows():
    """p is w_1 for 30 words and w_2 for 10: the maximum of 30 ln w_1 + 10 ln w_2 is 3/4."""
    log_probs = np.full((40, 2), -np.inf)
    log_probs[:30, 0] = log_probs[30:, 1] = -2.0
    assert np.allclose(em_weights(log_probs), [0.75, 0.25], atol=1e-6)
    log_probs = random_log_probs(80, 3, 4)
    assert np.allclose(em_weights(log_probs - 5000.0), em_weights(log_probs), atol=1e-9)


def test_better_equal_and_impossible_components():
    one, two = random_log_probs(50, 1, 0), random_log_probs(60, 2, 2)
    # one that is better everywhere takes all
    weights = em_weights(np.hstack([one, one - 1.0, one - 0.1]))
    assert np.allclose(weights, [1, 0, 0], atol=1e-4)
    best = em_weights(two)
    weights = em_weights(two[:, [0, 1, 1]])
    assert np.allclose([weights[0], weights[1] + weights[2]], best, atol=1e-4)
    weights = em_weights(np.hstack([two, np.full((60, 1), -np.inf)]))
    assert weights[2] == pytest.approx(0, abs=1e-9) and np.allclose(weights[:2], best, atol=1e-4)
    assert em_weights(np.array([[-3.0], [-700.0]])).tolist() == [1.0]


@settings(max_examples=50)
@given(log_probs=LOG_PROBS)
def test_the_likelihood_never_falls(log_probs):
    # the less a weight may change at the end, the later the step
    steps = [em_weights(log_probs, tol) for tol in (1.0, 0.3, 0.1, 0.03, 0.01, 1e-3, 1e-6, 0.0)]
    values = [log_likelihood(log_probs, weights) for weights in steps]
    # 1e-9 of a sum of up to 12 terms of up to 30: rounding of the oracle's own sum
    assert all(b >= a - 1e-9 for a, b in itertools.pairwise(values))
    assert np.allclose(steps[0], 1 / log_probs.shape[1])
    for weights in steps:
        assert (weights >= 0).all() and weights.sum() == pytest.approx(1)


@settings(max_examples=50)
@given(log_probs=LOG_PROBS)
def test_nothing_nearby_is_better(log_probs):
    """The likelihood is concave: at its maximum no mixture with a single component helps."""
    weights = em_weights(log_probs, tol=1e-9)
    best = log_likelihood(log_probs, weights)
    for corner in np.eye(len(weights)):
        for step in (1e-3, 1e-2, 0.5):
            other = (1 - step) * weights + step * corner
            assert log_likelihood(log_probs, other) <= best + 1e-6 * len(log_probs)


@pytest.mark.parametrize(
    "log_probs, message",
    [
        (np.zeros(3), r"shape \(3,\)"),
        (np.zeros((0, 2)), r"shape \(0, 2\)"),
        (np.zeros((4, 0)), r"shape \(4, 0\)"),
        (np.array([[-1.0, -2.0], [-1.0, np.nan]]), "1 of 2 rows .* the first 1"),
        (np.array([[np.inf, -1.0]]), "1 of 1 rows"),
        (np.array([[-1.0, -1.0], [-np.inf, -np.inf]]), "the first 1"),
    ],
)
def test_what_has_no_maximum_is_refused(log_probs, message):
    with pytest.raises(InputError, match=message):
        em_weights(log_probs)


SENTENCES = [["a", "b"], [], ["c", "zz", "a"], ["a", "b"]]


class Table(WordScorer):
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


def test_any_scorer_goes_on_word_by_word(components):
    """And in a recording it takes each sentence by itself."""
    scorer = components[0]
    states = [scorer.after(scorer.begin(), word) for word in "ab"]
    found = scorer.next_words([*states, states[0]], ["b", "c", END])
    (ab, bc, a) = scorer.word_scores([["a", "b"], ["b", "c"], ["a"]])
    assert found.tolist() == [ab.log_probs[1], bc.log_probs[1], a.log_probs[1]]
    histories = scorer.extended([None], [["a"]])
    ((again,),) = scorer.scores_in_context([[["a", "b"]]], histories)
    assert again.log_probs.tolist() == ab.log_probs.tolist()
    assert scorer.token_counts(["a", "b"]).tolist() == [1, 1, 1]


def test_probabilities_are_mixed_word_by_word(components):
    weights = [0.5, 0.3, 0.2]
    parts = [c.word_scores(SENTENCES) for c in components]
    for n, scores in enumerate(mixed_scores(parts, weights)):
        p = sum(w * np.exp(part[n].log_probs) for w, part in zip(weights, parts, strict=True))
        np.testing.assert_allclose(np.exp(scores.log_probs), p, rtol=1e-12)
        np.testing.assert_array_equal(scores.oov, sum(part[n].oov for part in parts) > 0)


@pytest.mark.filterwarnings("error")
def test_what_one_component_excludes_another_may_know():
    scores = [
        [WordScores(np.array([-np.inf, -1.0]), np.zeros(2, bool))],
        [WordScores(np.array([-2.0, -np.inf]), np.zeros(2, bool))],
    ]
    (mixed,) = mixed_scores(scores, [0.25, 0.75])
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
        mixed_scores([c.word_scores(SENTENCES) for c in components], weights)


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


LM = mixture_of(Table("table", "a", 0))


class Parrot(WordScorer):
    """An LM that likes the words that it has heard, and b and c before it has heard any."""

    name = "parrot"

    def scores_in_context(self, groups, histories):
        """Return 0 of each word that was heard, and -9 of each other word."""
        pairs = zip(groups, histories, strict=True)
        return [[self._scores(words, heard or "bc") for words in g] for g, heard in pairs]

    def _scores(self, words, heard):
        values = [0.0 if word in heard else -9.0 for word in words]
        return WordScores(np.array([*values, 0.0]), np.zeros(len(words) + 1, bool))

    def extended(self, histories, sentences):
        """Return what was heard so far."""
        pairs = zip(histories, sentences, strict=True)
        return [(*(heard or ()), *words) for heard, words in pairs]


def scored(patch, lists, options, mixture):
    """Return the lists with their scores by a mixture that is loaded."""
    patch.setattr(RescoreOptions, "load_mixture", lambda *_, **__: mixture)
    with (
        LOCAL.pool() as pool,
        scored_lists(pool, lists, options, tunes=False, ngpu=0) as (found, _),
    ):
        return list(found)


def test_context_is_the_best_of_the_rescored_list(monkeypatch):
    """Neither the recogniser's best nor the LM's."""
    best = [Hypothesis(("a",), 0.0), Hypothesis(("b", "c"), -1.0), Hypothesis(("b",), -20.0)]
    following = [Hypothesis((word,), 0.0) for word in "abc"]
    recording = [NBest("u1", tuple(best)), NBest("u2", tuple(following))]
    segments = {f"u{n}": Segment("r", float(n)) for n in (1, 2)}
    options = RescoreOptions.of(context="previous", segments=segments, scales=Scales(lmwt=1.0))
    found = scored(monkeypatch, recording, options, mixture_of(Parrot()))
    totals = [float(p.sum()) for p in found[1].log_probs]
    assert totals == [-9.0, 0.0, 0.0]


def make(sizes):
    return [NBest(f"u{n}", (Hypothesis(("a",), 0.0),) * size) for n, size in enumerate(sizes)]


def test_segments_and_recordings(tmp_path):
    files = {
        "a-1 rec1 2.5 3\nb-1 rec2 0 1.5\n": {"a-1": ("rec1", 2.5), "b-1": ("rec2", 0.0)},
        "a 3.5\nb 1\n": {"a": ("", 3.5), "b": ("", 1.0)},
        "a rec 3.5\n": {"a": ("rec", 3.5)},
    }
    for text, expected in files.items():
        (tmp_path / "segments").write_text(text)
        assert read_segments(tmp_path / "segments") == expected
    segments = {"u0": Segment("r", 3.0), "u1": Segment("s", 0.0), "u2": Segment("r", 1.0)}
    found = [
        [item.utt for item in items]
        for items in recordings(make([1, 1, 1]), place_finder(segments))
    ]
    assert found == [["u2", "u0"], ["u1"]]
    lines = "u0 r 3.0 4.0\nu1 s 0.0 1.0\nu2 r 1.0 2.0\n"
    (tmp_path / "segments").write_text(lines)
    with pytest.raises(InputError, match="segments: has no line for the utterance 'u3'"):
        list(recordings(make([1] * 4), place_finder(tmp_path / "segments")))


def utterances(places, **given):
    """Utterances of each recording, of lists `a-1`, `a-2`, .. with (recording, start) each."""
    hyps = (Hypothesis(("a",), 0.0),)
    lists = [
        NBest(f"{'ab'[n % 2]}-{n}", hyps, recording=recording, start=start)
        for n, (recording, start) in enumerate(places)
    ]
    return [[item.utt for item in items] for items in recordings(lists, place_finder(**given))]


def test_recordings_of_ids_speakers_and_lists(tmp_path):
    """In the order of `start`, or in which they come."""
    unknown = [(None, None)] * 4
    of_ids = [["a-0", "a-2"], ["b-1", "b-3"]]
    assert utterances(unknown, recording_of="^([a-z])-") == of_ids
    assert utterances(unknown, recording_of="^[a-z]") == of_ids
    (tmp_path / "utt2spk").write_text("a-0 s\nb-1 t\na-2 t\nb-3 s\n")
    of_speakers = [["a-0", "b-3"], ["b-1", "a-2"]]
    assert utterances(unknown, utt2spk=tmp_path / "utt2spk") == of_speakers
    assert utterances([("r", None)] * 4) == [["a-0", "b-1", "a-2", "b-3"]]
    timed = [("r", 3), ("s", 1.5), ("r", 0.5), ("s", 1.5)]
    assert utterances(timed) == [["a-2", "a-0"], ["b-1", "b-3"]]
    assert utterances(timed, recording_of="^") == [["a-2", "b-1", "b-3", "a-0"]]


def test_recordings_that_are_not_known(tmp_path):
    (tmp_path / "utt2spk").write_text("a-0 s\n")
    (tmp_path / "two").write_text("a-0 s\nb-1 s t\n")
    (tmp_path / "empty").write_text("")
    known = [("r", 0.0), ("r", 1.0)]
    for places, source, message in [
        (known, {"utt2spk": tmp_path / "utt2spk"}, "utt2spk: has no line for the utterance 'b-1'"),
        (known, {"utt2spk": {"a-0": "s"}}, "has no line for the utterance 'b-1'"),
        (known, {"utt2spk": tmp_path / "two"}, "two:2: expected `utterance speaker`, got 's t'"),
        (known, {"utt2spk": tmp_path / "empty"}, "no utterances"),
        (known, {"recording_of": "(a)-"}, "finds nothing in the utterance id 'b-1'"),
        (known, {"recording_of": "(a)|b"}, "finds nothing in the utterance id 'b-1'"),
        ([("r", 0.0), (None, 1.0)], {}, "the list of the utterance 'b-1' has none.*--utt2spk FILE"),
        (
            [("r", None), ("r", 1.0)],
            {},
            "1 of the 2 lists of the recording 'r' have a start, 'b-1'",
        ),
    ]:
        with pytest.raises(InputError, match=message):
            utterances(places, **source)
    with pytest.raises(InputError, match=r"--recording_of '\(' is not a regular expression"):
        RescoreOptions.of(recording_of="(")
    with pytest.raises(InputError, match="--segments and --utt2spk: two sources of the recordings"):
        RescoreOptions.of(segments={}, utt2spk={})


@pytest.mark.parametrize("name", ["utt2dur", "utt2num_frames", "durations.txt", "utt2start"])
def test_the_name_tells_starts_from_durations(tmp_path, name):
    (tmp_path / name).write_text("a 3.5\nb 1\n")
    if name == "utt2start":
        assert read_segments(tmp_path / name) == {"a": Segment("", 3.5), "b": Segment("", 1.0)}
        return
    with pytest.raises(InputError, match=rf"{name}:1: expected .* may be a duration, got '3.5'"):
        read_segments(tmp_path / name)


@pytest.mark.parametrize(
    "line", ["a", "a b c", "a rec nan 1", "a rec 1 2 3", "a inf", "a rec 3 1", "a rec 3 x"]
)
def test_lines_that_are_no_segments(tmp_path, line):
    (tmp_path / "segments").write_text(f"ok rec 0 1\n{line}\n")
    with pytest.raises(InputError, match="segments:2: expected `utterance recording start"):
        read_segments(tmp_path / "segments")
    (tmp_path / "ends").write_text("a rec 3 -1\nb rec 4 5\n")  # as Kaldi's
    assert len(read_segments(tmp_path / "ends")) == 2
    (tmp_path / "empty").write_text("")
    with pytest.raises(InputError, match="no utterances"):
        read_segments(tmp_path / "empty")


@given(sizes=st.lists(st.integers(1, 9), max_size=30), size=st.integers(1, 20))
def test_blocks_have_as_many_hypotheses_as_are_wanted(sizes, size):
    nbests = make(sizes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "BLOCK_SIZE", size)
        whole = list(blocks(nbests))
        found = [x.nbest for x in scored(patch, nbests, AS_USUAL, LM)]
    assert [items[0] for block in whole for items in block] == nbests == found
    for block in whole[:-1]:
        counts = [len(items[0].hypotheses) for items in block]
        assert sum(counts) >= size > sum(counts[:-1])
