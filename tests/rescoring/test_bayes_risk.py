"""Minimum Bayes risk: expected word errors and confidences against exhaustive enumeration."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from espnet_bayeslm.rescoring.bayes_risk import (
    edit_distances,
    least_risk,
    list_posterior,
    word_confidences,
    words_in_place,
)
from espnet_bayeslm.utils.errors import InputError

WORDS = st.lists(st.sampled_from("abc"), max_size=5).map(tuple)
# integer totals: sums in any order are the same to the last digits that matter
LISTS = st.lists(st.tuples(WORDS, st.integers(-6, 6)), min_size=1, max_size=7)


def errors(ref, hyp):
    """Fewest insertions, deletions and substitutions, by trying all of them."""
    if not ref or not hyp:
        return len(ref) + len(hyp)
    paired = errors(ref[1:], hyp[1:]) + (ref[0] != hyp[0])
    return min(paired, errors(ref[1:], hyp) + 1, errors(ref, hyp[1:]) + 1)


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


@settings(max_examples=100)
@given(LISTS, st.sampled_from([0.25, 1.0, 4.0]))
def test_risk_is_that_of_exhaustive_enumeration(items, sharpness):
    hyps, totals = [words for words, _ in items], np.array([float(total) for _, total in items])
    mass = [np.exp(sharpness * total) for total in totals]
    posterior = list_posterior(totals, sharpness)
    np.testing.assert_allclose(posterior, np.array(mass) / sum(mass), rtol=1e-12)
    pairs = list(zip(hyps, posterior, strict=True))
    risks = [sum(p * errors(ref, hyp) for ref, p in pairs) for hyp in hyps]
    distances = edit_distances(hyps)
    np.testing.assert_allclose(distances @ posterior, risks, atol=1e-12)
    best = least_risk(posterior, distances)
    # the first of those with the least
    assert risks[best] == pytest.approx(min(risks), abs=1e-9)
    assert all(risk > risks[best] for risk in risks[:best])


@settings(max_examples=100)
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
