"""Minimum Bayes risk against exhaustive enumeration; its tuning, where the posterior is known."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from oracles.alignment_naive import edit_distance

from espnet_bayeslm.rescoring.bayes_risk import (
    SAME_RISK,
    Posterior,
    edit_distances,
    least_risk,
    list_posterior,
    spread,
    tuned_posterior,
    word_confidences,
    words_in_place,
)
from espnet_bayeslm.utils.errors import InputError

WORDS = st.lists(st.sampled_from("abc"), max_size=5).map(tuple)
# integer totals: sums in any order are the same to the last digits that matter
LISTS = st.lists(st.tuples(WORDS, st.integers(-6, 6)), min_size=1, max_size=7)


def best_alignments(words, other):
    """All alignments with the fewest errors: of each word whether the other has it there."""
    if not words:
        yield len(other), ()
        return
    found = [(cost + 1, (False, *rest)) for cost, rest in best_alignments(words[1:], other)]
    if other:
        wrong = words[0] != other[0]
        paired = best_alignments(words[1:], other[1:])
        found += [(cost + wrong, (not wrong, *rest)) for cost, rest in paired]
        found += [(cost + 1, rest) for cost, rest in best_alignments(words, other[1:])]
    least = min(cost for cost, _ in found)
    yield from {item for item in found if item[0] == least}


@settings(max_examples=50)
@example(items=[((), 0), ((), 5), (("a",), 0), (("a",), 5), (("a", "a"), 0)], sharpness=4.0)
@given(items=LISTS, sharpness=st.sampled_from([0.25, 1.0, 4.0]))
def test_risk_is_that_of_exhaustive_enumeration(items, sharpness):
    hyps, totals = [words for words, _ in items], np.array([float(total) for _, total in items])
    mass = [np.exp(sharpness * total) for total in totals]
    posterior = list_posterior(totals, sharpness)
    np.testing.assert_allclose(posterior, np.array(mass) / sum(mass), rtol=1e-12)
    pairs = list(zip(hyps, posterior, strict=True))
    risks = [sum(p * edit_distance(ref, hyp) for ref, p in pairs) for hyp in hyps]
    distances = edit_distances(hyps)
    np.testing.assert_allclose(distances @ posterior, risks, atol=1e-12)
    best = least_risk(posterior, distances)
    # the first of those with the least
    assert risks[best] == pytest.approx(min(risks), abs=1.1 * SAME_RISK * max(risks))
    assert all(risk > risks[best] for risk in risks[:best])


@settings(max_examples=50)
@given(WORDS, st.lists(WORDS, min_size=1, max_size=4))
def test_places_are_those_of_an_alignment_with_the_fewest_errors(words, others):
    found = words_in_place(words, others)
    assert found.shape == (len(others), len(words))
    for other, row in zip(others, found, strict=True):
        assert tuple(row) in {places for _, places in best_alignments(words, other)}


def test_confidence_of_a_word_by_hand():
    hyps = [("the", "cat", "sat"), ("the", "cat"), ("a", "cat", "sat"), ()]
    posterior = np.array([0.4, 0.3, 0.2, 0.1])
    places = words_in_place(hyps[0], hyps)
    np.testing.assert_allclose(word_confidences(posterior, places), [0.7, 0.9, 0.6], rtol=1e-12)
    assert word_confidences(posterior, words_in_place((), hyps)).shape == (0,)


def test_what_is_impossible_has_no_mass():
    np.testing.assert_allclose(
        list_posterior(np.array([-np.inf, 1.0, 1.0])), [0, 0.5, 0.5], rtol=1e-12
    )
    # no overflow however large the totals are
    np.testing.assert_allclose(list_posterior(np.array([1e8, 0.0]), 5.0), [1.0, 0.0], atol=1e-12)


@pytest.mark.parametrize(
    "totals, named",
    [
        ([0.0, np.nan], "hypothesis 2 of 2 is nan"),
        ([np.inf, 0.0], "hypothesis 1 of 2 is inf"),
        ([-np.inf, -np.inf], "hypothesis 1 of 2 is -inf"),
    ],
)
def test_no_posterior_without_finite_totals(totals, named):
    with pytest.raises(InputError, match=named):
        list_posterior(np.array(totals))


LETTERS = list("abcdefgh")


def make_lists(*, num_lists, sharpness, seed=0, size=6):
    """Return lists of which each reference is drawn from the posterior of known sharpness."""
    rng = np.random.default_rng(seed)
    totals, hyps, refs = [], [], []
    for _ in range(num_lists):
        base = rng.choice(LETTERS, size=5)
        changed = rng.random((size, 5)) < 0.4
        lists = np.where(changed, rng.choice(LETTERS, size=(size, 5)), base)
        values = rng.normal(size=size) * 4
        ref = rng.choice(size, p=list_posterior(values, sharpness))
        totals.append(values)
        hyps.append([tuple(map(str, row)) for row in lists])
        refs.append(hyps[-1][ref])
    return totals, hyps, refs


def test_the_sharpness_that_made_the_references_is_found():
    sharpness = 0.6
    totals, hyps, refs = make_lists(num_lists=1500, sharpness=sharpness)
    best = [int(values.argmax()) for values in totals]
    found = tuned_posterior(totals, hyps, refs, best)
    # the grid's step is a factor of 1.19; a few steps are within sampling error
    assert abs(np.log2(found.sharpness / sharpness)) < 0.8
    # calibrated by nature: the scaling is nearly the identity
    assert found.slope == pytest.approx(1.0, abs=0.35) and abs(found.offset) < 0.35
    test_totals, test_hyps, test_refs = make_lists(num_lists=1500, sharpness=sharpness, seed=1)
    gaps = []
    for posterior in (Posterior(1000.0), found):
        confidences, correct = [], []
        for values, words, ref in zip(test_totals, test_hyps, test_refs, strict=True):
            k = int(values.argmax())
            masses = word_confidences(
                list_posterior(values, posterior.sharpness), words_in_place(words[k], words)
            )
            confidences.extend(posterior.scaling.calibrated(masses))
            correct.extend(words_in_place(words[k], [ref])[0])
        gaps.append(abs(np.mean(confidences) - np.mean(correct)))
    assert gaps[1] < 0.02 < gaps[0]


def test_lists_that_say_nothing():
    assert tuned_posterior([np.zeros(1)], [[()]], [("a",)], [0]) == Posterior()
    assert spread([np.zeros(3), np.array([-np.inf, 1.0])]) == 1.0
    single = tuned_posterior([np.zeros(1)] * 3, [[("a", "b")]] * 3, [("a", "c")] * 3, [0] * 3)
    # half of the words are right, and nothing tells which
    masses = single.scaling.calibrated(np.ones(1))
    assert masses == pytest.approx([0.5], abs=1e-3)


@pytest.mark.parametrize(
    "values", [(0.0, 1.0, 0.0), (np.inf, 1.0, 0.0), (1.0, -1.0, 0.0), (1.0, 1.0, np.nan)]
)
def test_a_posterior_checks_itself(values):
    with pytest.raises(ValueError, match="sharpness must be positive"):
        Posterior(*values)
