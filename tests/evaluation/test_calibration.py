"""Calibration of confidences, against brute force and closed forms."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from espnet_bayeslm.evaluation.calibration import (
    Platt,
    auroc,
    calibration_error,
    fit_platt,
    log_odds,
)


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=12))
def test_area_under_the_curve_by_brute_force(pairs):
    values, wrong = [v for v, _ in pairs], [w for _, w in pairs]
    bad, good = ([v for v, w in pairs if w == chosen] for chosen in (True, False))
    found = auroc(values, wrong)
    if not bad or not good:
        assert found is None
    else:
        wins = sum((b > g) + (b == g) / 2 for b in bad for g in good)
        assert found == pytest.approx(wins / len(bad) / len(good))


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=30))
def test_calibration_error_by_its_definition(pairs):
    total = 0.0
    for k in range(15):
        # the last bin has its upper edge too
        inside = [(c, y) for c, y in pairs if min(int(c * 15), 14) == k]
        if inside:
            accuracy = np.mean([y for _, y in inside])
            total += len(inside) / len(pairs) * abs(accuracy - np.mean([c for c, _ in inside]))
    confidences, correct = map(np.array, zip(*pairs, strict=True))
    assert calibration_error(confidences, correct) == pytest.approx(total, abs=1e-12)


def test_scaling_finds_what_the_confidences_were_made_with():
    rng = np.random.default_rng(0)
    raw = rng.uniform(0.01, 0.99, size=20_000)
    truth = Platt(0.4, 0.7).calibrated(raw)
    correct = rng.random(len(raw)) < truth
    platt, loss = fit_platt(raw, correct)
    # standard errors are about 0.01 and 0.015
    assert platt.slope == pytest.approx(0.4, abs=0.05)
    assert platt.offset == pytest.approx(0.7, abs=0.07)
    scaled = platt.calibrated(raw)
    assert calibration_error(scaled, correct) < 0.02 < calibration_error(raw, correct)
    assert auroc(scaled, correct) == pytest.approx(auroc(raw, correct), abs=1e-12)
    nats = -np.log(np.where(correct, scaled, 1 - scaled)).mean()
    assert loss == pytest.approx(nats, abs=1e-3)  # the targets are smoothed


def test_scaling_is_at_a_minimum():
    rng = np.random.default_rng(1)
    raw = rng.uniform(size=500)
    correct = rng.random(500) < raw**2
    platt, _ = fit_platt(raw, correct)

    def nats(slope, offset):
        p = 1 / (1 + np.exp(-(slope * log_odds(raw) + offset)))
        right = correct.sum()
        t = np.where(correct, (right + 1) / (right + 2), 1 / (500 - right + 2))
        return -(t * np.log(p) + (1 - t) * np.log(1 - p)).mean()

    for slope, offset in [(0.05, 0), (-0.05, 0), (0, 0.05), (0, -0.05)]:
        assert nats(*platt) < nats(platt.slope + slope, platt.offset + offset)


@pytest.mark.parametrize("correct", [[True] * 4, [False] * 4, [True, False, True, False]])
def test_scaling_of_extreme_confidences_is_finite(correct):
    platt, loss = fit_platt(np.array([1.0, 0.0, 1.0, 0.0]), np.array(correct))
    assert np.isfinite([*platt, loss]).all() and platt.slope >= 0
    found = platt.calibrated(np.array([0.0, 0.5, 1.0]))
    assert ((found > 0) & (found < 1)).all() and (np.diff(found) >= 0).all()
