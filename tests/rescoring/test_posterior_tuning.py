"""The posterior's sharpness and scaling: found again where it is known, and never worse."""

import numpy as np
import pytest

from espnet_bayeslm.rescoring.bayes_risk import (
    Posterior,
    edit_distances,
    least_risk,
    list_posterior,
    not_above,
    spread,
    tune_posterior,
    word_confidences,
    words_in_place,
)

WORDS = list("abcdefgh")


def make_lists(*, num_lists, sharpness, seed=0, size=6):
    """Return lists of which each reference is drawn from the posterior of known sharpness."""
    rng = np.random.default_rng(seed)
    totals, hyps, refs = [], [], []
    for _ in range(num_lists):
        base = rng.choice(WORDS, size=5)
        changed = rng.random((size, 5)) < 0.4
        lists = np.where(changed, rng.choice(WORDS, size=(size, 5)), base)
        values = rng.normal(size=size) * 4
        ref = rng.choice(size, p=list_posterior(values, sharpness))
        totals.append(values)
        hyps.append([tuple(map(str, row)) for row in lists])
        refs.append(hyps[-1][ref])
    return totals, hyps, refs


@pytest.mark.parametrize("sharpness", [0.15, 0.6])
def test_the_sharpness_that_made_the_references_is_found(sharpness):
    totals, hyps, refs = make_lists(num_lists=1500, sharpness=sharpness)
    best = [int(values.argmax()) for values in totals]
    found = tune_posterior(totals, hyps, refs, best)
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


def test_scores_in_other_units_give_the_same_posterior():
    totals, hyps, refs = make_lists(num_lists=50, sharpness=0.5)
    best = [int(values.argmax()) for values in totals]
    one = tune_posterior(totals, hyps, refs, best)
    other = tune_posterior([1024.0 * values for values in totals], hyps, refs, best)
    assert 1024.0 * other.sharpness == pytest.approx(one.sharpness, rel=1e-12)
    assert (other.slope, other.offset) == pytest.approx((one.slope, one.offset), rel=1e-6)


def test_least_risk_is_held_to_a_limit():
    totals, hyps, refs = make_lists(num_lists=80, sharpness=2.0)
    errors = [
        np.array([edit_distances([ref, hyp])[0, 1] for hyp in words])
        for words, ref in zip(hyps, refs, strict=True)
    ]

    def by_risk(sharpness):
        rows = zip(totals, hyps, errors, strict=True)
        chosen = [least_risk(list_posterior(t, sharpness), edit_distances(h)) for t, h, _ in rows]
        return sum(int(e[k]) for e, k in zip(errors, chosen, strict=True))

    by_max = sum(int(e[t.argmax()]) for e, t in zip(errors, totals, strict=True))
    flat = Posterior(0.001, 0.5, 0.1)
    assert by_risk(flat.sharpness) > by_max
    found, count = not_above(by_max, flat, totals, hyps, errors)
    assert count == by_risk(found.sharpness) <= by_max
    assert (found.slope, found.offset) == (0.5, 0.1)
    # the least that is enough
    assert by_risk(found.sharpness / 2) > by_max
    assert not_above(10**6, flat, totals, hyps, errors) == (flat, by_risk(flat.sharpness))


def test_lists_that_say_nothing():
    assert tune_posterior([np.zeros(1)], [[()]], [("a",)], [0]) == Posterior()
    assert spread([np.zeros(3), np.array([-np.inf, 1.0])]) == 1.0
    single = tune_posterior([np.zeros(1)] * 3, [[("a", "b")]] * 3, [("a", "c")] * 3, [0] * 3)
    # half of the words are right, and nothing tells which
    masses = single.scaling.calibrated(np.ones(1))
    assert masses == pytest.approx([0.5], abs=1e-3)


@pytest.mark.parametrize(
    "values", [(0.0, 1.0, 0.0), (np.inf, 1.0, 0.0), (1.0, -1.0, 0.0), (1.0, 1.0, np.nan)]
)
def test_a_posterior_checks_itself(values):
    with pytest.raises(ValueError, match="sharpness must be positive"):
        Posterior(*values)
