"""Signal-to-noise ratios in closed form and against numpy; which weights a share prunes."""

import itertools
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from espnet_bayeslm.evaluation.signal_to_noise import (
    BIN_EDGES,
    CRITERIA,
    PERCENTILES,
    prune_weights,
    signal_to_noise,
    summarize,
    summarize_weights,
    zero_means,
)


class Weights(NamedTuple):
    """Of a posterior's block."""

    location: str
    mean: torch.Tensor
    std: torch.Tensor
    start_std: float


def posterior(mean, std, *, location="ffn@1", start=0.1):
    return Weights(location, mean, std.expand_as(mean), start)


def random_posteriors(seed):
    """Return three posteriors, one of them rows of a larger matrix, one 1-dimensional."""
    generator = torch.Generator().manual_seed(seed)
    draws = [torch.randn(*shape, generator=generator) for shape in ((6, 5), (7, 3), (11,))]
    stds = [torch.rand(d.shape, generator=generator) + 0.01 for d in draws]
    return [
        posterior(draws[0][2:5], stds[0][2:5]),
        posterior(draws[1], stds[1], location="ffn@2", start=0.2),
        posterior(draws[2], stds[2]),
    ]


def test_closed_form():
    mean = torch.tensor([[-3.0, 0.0], [1.0, 0.5], [2.0, -8.0]], dtype=torch.float64)
    (summary,) = summarize_weights([posterior(mean, torch.tensor(0.5, dtype=torch.float64))])
    # |mean| / 0.5 sorted: 0, 1, 2, 4, 6, 16; percentiles lie at 0.25, 1.25, 2.5, 3.75, 4.75
    assert (summary.location, summary.count) == ("ffn@1", 6)
    assert summary.percentiles == pytest.approx((0.25, 1.25, 3.0, 5.5, 13.5))
    assert summary.median == pytest.approx(3.0)
    assert summary.median_std == pytest.approx(0.5)
    assert summary.median_std_ratio == pytest.approx(5.0)


def test_locations_are_pooled_and_quantiles_are_numpys():
    first, second, third = random_posteriors(0)
    pooled, alone = summarize_weights([first, second, third])
    ratio = torch.cat([(p.mean.abs() / p.std).flatten() for p in (first, third)]).double().numpy()
    assert (pooled.location, alone.location) == ("ffn@1", "ffn@2")
    assert (pooled.count, alone.count) == (15 + 11, 21)
    # float32 division against float64
    assert pooled.percentiles == pytest.approx(np.percentile(ratio, PERCENTILES), rel=1e-6)
    assert alone.median_std_ratio == pytest.approx(float(np.median(second.std)) / 0.2, rel=1e-6)


def test_histogram_counts_every_weight_and_its_ends_take_the_tails():
    ratios = torch.tensor([0.0, 1e-9, 1e-4, 1.01, 1.02, 1e9], dtype=torch.float64)
    (summary,) = summarize_weights([posterior(ratios, torch.tensor(1.0, dtype=torch.float64))])
    assert sum(summary.histogram) == summary.count == 6
    assert (summary.histogram[0], summary.histogram[-1]) == (3, 1)
    assert summary.histogram[np.searchsorted(BIN_EDGES, 1.01) - 1] == 2


def test_latent_variables_over_batches_of_tokens():
    generator = torch.Generator().manual_seed(3)
    moments = [
        (torch.randn(*shape, 4, generator=generator), torch.rand(*shape, 4, generator=generator))
        for shape in ((2, 3), (1, 5))
    ]
    summary = summarize("hidden@1", moments)
    means, stds = (torch.cat([m.reshape(-1) for m in part]) for part in zip(*moments, strict=True))
    assert summary.count == (6 + 5) * 4 and summary.median_std_ratio is None
    expected = np.percentile(signal_to_noise(means, stds), PERCENTILES)
    assert summary.percentiles == pytest.approx(expected)
    assert summary.median_std == pytest.approx(float(np.median(stds)))


def pruned(posteriors, shares):
    """Return criterion -> for each share which of all weights are at zero."""

    def measure():
        return torch.cat([p.mean.reshape(-1) for p in posteriors]).numpy() == 0

    steps = prune_weights(posteriors, shares, measure)
    assert all(step.result.sum() == step.num_zeroed for step in steps)
    return {c: [step.result for step in steps if step.criterion == c] for c in CRITERIA}


def test_order_by_hand():
    posteriors = [
        posterior(torch.tensor([3.0, -1.0]), torch.tensor([30.0, 0.1])),
        posterior(torch.tensor([[-2.0], [0.01]]), torch.tensor([[0.4], [1.0]])),
    ]
    found = pruned(posteriors, [0.25, 0.5, 0.75])
    # ratios 0.1, 10, 5, 0.01; magnitudes 3, 1, 2, 0.01
    orders = {"snr": [3, 0, 2], "magnitude": [3, 1, 2]}
    for criterion, order in orders.items():
        for number, mask in enumerate(found[criterion], 1):
            assert set(np.flatnonzero(mask)) == set(order[:number])


@settings(max_examples=30)
@given(st.integers(0, 1000), st.lists(st.floats(0, 1), min_size=1, max_size=6))
def test_pruned_sets_are_nested_exact_and_the_least(seed, shares):
    posteriors = random_posteriors(seed)
    for criterion, masks in pruned(posteriors, sorted(shares)).items():
        worth = np.concatenate([CRITERIA[criterion](p.mean, p.std) for p in posteriors])
        for share, mask in zip(sorted(shares), masks, strict=True):
            assert abs(mask.sum() - share * len(mask)) <= 0.5
            if 0 < mask.sum() < len(mask):
                assert worth[mask].max() <= worth[~mask].min()
        for small, large in itertools.pairwise(masks):
            assert (small <= large).all()


def test_rows_of_a_matrix_are_pruned_in_the_matrix_itself_and_restored_after_an_error():
    matrix = torch.arange(1.0, 13.0).reshape(4, 3)
    before = matrix.clone()
    rows = [posterior(matrix[1:3], torch.ones(2, 3)), posterior(matrix[:, :1], torch.ones(4, 1))]
    with pytest.raises(ZeroDivisionError):
        # of magnitudes 4 to 9 and 1, 4, 7, 10 the least are 1 and 4, in the first row and second
        prune_weights(rows, [0.2], lambda: 1 / int((matrix[:2, 0] != 0).sum()))
    assert torch.equal(matrix, before)
    zero_means(rows, np.array([1, 9]))
    assert matrix[1, 1] == 0 and matrix[3, 0] == 0 and int((matrix == 0).sum()) == 2
