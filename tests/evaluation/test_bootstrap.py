"""Bootstrap intervals against a plain loop over the same draws, kaldialign, and closed forms."""

import random

import kaldialign
import numpy as np
import pytest

from espnet_bayeslm.evaluation import comparison
from espnet_bayeslm.evaluation.comparison import difference_of_totals, replicate_totals
from espnet_bayeslm.evaluation.wer import word_errors
from espnet_bayeslm.utils.errors import InputError


def make_texts(seed, num_utts):
    """Return references and two systems, the second one slightly better."""
    rng = random.Random(seed)
    refs = [[rng.choice("abcde") for _ in range(rng.randint(0, 12))] for _ in range(num_utts)]

    def noisy(rate):
        return [["x" if rng.random() < rate else word for word in ref] for ref in refs]

    return refs, noisy(0.2), noisy(0.18)


def counts(refs, *systems):
    errors = [
        np.array([word_errors(*pair).errors for pair in zip(refs, system, strict=True)])
        for system in systems
    ]
    return [*errors, np.array([len(ref) for ref in refs])]


def bootstrap(errors_a, errors_b, words, *, level=0.95, **draws):
    table = np.stack([errors_a, words, errors_b, words], axis=1)
    drawn = replicate_totals(table, **draws)
    return difference_of_totals(table.sum(axis=0), drawn, level=level)


@pytest.mark.parametrize("level", [0.95, 0.8])
def test_a_plain_loop_over_the_same_draws(level, monkeypatch):
    errors_a, errors_b, words = counts(*make_texts(1, 37))
    # several blocks, the last one not full
    monkeypatch.setattr(comparison, "_HELD", 37 * 60)
    found = bootstrap(errors_a, errors_b, words, num_replicates=200, level=level, seed=5)
    differences = []
    for row in np.random.default_rng(5).integers(37, size=(200, 37), dtype=np.int32):
        a = sum(int(errors_a[n]) for n in row)
        b = sum(int(errors_b[n]) for n in row)
        differences.append((a - b) / sum(int(words[n]) for n in row))
    differences.sort()

    def quantile(q):
        # between the two nearest of the sorted values
        low, rest = divmod(q * 199, 1)
        below, above = differences[int(low)], differences[min(int(low) + 1, 199)]
        return below + rest * (above - below)

    assert found.low == pytest.approx(quantile((1 - level) / 2), abs=1e-12)
    assert found.high == pytest.approx(quantile((1 + level) / 2), abs=1e-12)
    assert found.improvement == sum(d > 0 for d in differences) / 200
    assert found.difference == (sum(errors_a) - sum(errors_b)) / sum(words)
    assert found.level == level


def test_kaldialign():
    refs, a, b = make_texts(2, 400)
    errors_a, errors_b, words = counts(refs, a, b)
    reference = kaldialign.bootstrap_wer_ci(refs, a, b, replications=10_000, seed=1)
    found = bootstrap(errors_a, errors_b, words)
    # 10,000 draws each: a standard error of 0.005 for a probability
    assert found.improvement == pytest.approx(reference["p_s2_improv_over_s1"], abs=0.02)
    for errors, key in ((errors_a, "system1"), (errors_b, "system2")):
        # its intervals are of one system: one less a system without errors
        alone = bootstrap(errors, np.zeros_like(errors), words)
        # its interval is 1.96 standard deviations, ours are quantiles
        assert alone.low == pytest.approx(reference[key]["ci95min"], abs=1.5e-3)
        assert alone.high == pytest.approx(reference[key]["ci95max"], abs=1.5e-3)


def test_exchanged_systems_change_the_sign():
    errors_a, errors_b, words = counts(*make_texts(3, 60))
    there = bootstrap(errors_a, errors_b, words, num_replicates=999)
    back = bootstrap(errors_b, errors_a, words, num_replicates=999)
    assert (back.difference, back.low, back.high) == pytest.approx(
        (-there.difference, -there.high, -there.low)
    )
    assert there.improvement + back.improvement <= 1
    assert there == bootstrap(errors_a, errors_b, words, num_replicates=999)
    assert there != bootstrap(errors_a, errors_b, words, num_replicates=999, seed=1)


def test_replicates_without_a_word_are_left_out():
    # half of the utterances have no words, so that some draws have none
    found = bootstrap(np.array([0, 1]), np.array([0, 0]), np.array([0, 4]))
    assert (found.low, found.high, found.improvement) == (0.25, 0.25, 1.0)


@pytest.mark.parametrize("num_utts", [0, 3])
def test_references_without_words(num_utts):
    zeros = np.zeros(num_utts, dtype=int)
    with pytest.raises(InputError, match="the references have no words"):
        bootstrap(zeros + 1, zeros, zeros)
