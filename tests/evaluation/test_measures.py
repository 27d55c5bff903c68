"""Perplexity, calibration of confidences and signal-to-noise ratios, by hand and in closed form."""

import itertools
import math
from types import SimpleNamespace

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
from espnet_bayeslm.mixture.facts import ComponentFacts
from espnet_bayeslm.rescoring.bayes_risk import (
    Platt,
    auroc,
    calibration_error,
    fit_platt,
    log_odds,
    normalized_cross_entropy,
    risk_coverage,
)
from espnet_bayeslm.scoring.perplexity import (
    Tally,
    perplexity_text,
    read_sentences,
    text_perplexities,
    total,
)
from espnet_bayeslm.scoring.word_scores import WordScorer, WordScores
from espnet_bayeslm.utils.errors import InputError

# multiples of 1/8 add without rounding
TALLIES = st.lists(
    st.builds(Tally, st.integers(-800, 0).map(lambda n: n / 8), *[st.integers(0, 50).map(int)] * 3)
)


def sentence(words, probs, *, tokens=(1, 1, 1), excluded=()):
    """Tallies of the words that count in both figures, of the excluded ones, and of all."""
    scores = WordScores(np.log(probs), np.isin(np.arange(len(probs)), excluded))
    counts = [[np.array(tokens)]]
    (text,) = text_perplexities([ComponentFacts("x")], [words.split()], [[scores]], counts)
    (known,), (left_out,) = text.known, text.excluded
    return known, left_out, total((known, left_out))


def test_a_sentence_by_hand():
    """`the cat` with probabilities 1/2, 1/8 and 1/4 of </s>."""
    _, excluded, every = sentence("the cat", [1 / 2, 1 / 8, 1 / 4])
    assert every.log_prob == pytest.approx(math.log(1 / 64))
    assert every.perplexity("words") == pytest.approx(4)  # the, cat, </s>
    assert every.perplexity("characters") == pytest.approx(64 ** (1 / 8))  # the_cat, </s>
    assert (every.words, every.tokens, every.characters) == (3, 3, 8)
    assert excluded == Tally()
    _, _, in_pieces = sentence("the cat", [1 / 2, 1 / 8, 1 / 4], tokens=[1, 4, 1])
    assert in_pieces.tokens == 6 and in_pieces.perplexity("tokens") == pytest.approx(2)
    known, excluded, every = sentence("a zz", [1 / 4, 1 / 64, 1 / 4], excluded=[1])
    assert known.perplexity() == pytest.approx(4)
    assert every.perplexity() == pytest.approx((4 * 64 * 4) ** (1 / 3))
    assert excluded.words == 1


@given(a=TALLIES, b=TALLIES)
def test_tallies_add(a, b):
    assert total([*a, *b]) == total((total(a), total(b))) == total([*b, *a])
    assert total([]) == Tally()


def test_counts_of_nothing_and_of_tokens():
    assert math.isnan(Tally().perplexity())
    assert math.isfinite(Tally(-1e6, 1, 1, 1).perplexity())
    assert math.isfinite(Tally(-math.inf, 1, 1, 1).perplexity())
    assert WordScorer().token_counts(["ab", "c"]).tolist() == [1, 1, 1]


def test_words_that_any_component_does_not_know_are_left_out_for_all():
    """Each of two components does not know a word of its own."""
    values = np.log([[0.5, 0.25, 0.125, 0.5], [0.25, 0.5, 0.5, 0.125]])
    unknown = [[False, True, False, False], [False, False, True, False]]
    scores = [[WordScores(v, np.array(u))] for v, u in zip(values, unknown, strict=True)]
    kinds, tokens = [ComponentFacts("x"), ComponentFacts("y")], [[np.ones(4, int)]] * 2
    texts = text_perplexities(kinds, [["a", "b", "c"]], scores, tokens, np.array([0.5, 0.5]))
    found = [text.summary() for text in texts]
    assert [row["excluded"] for row in found] == [2, 2, 2]
    known = [row["perplexity_without_oov"]["word"] for row in found]
    expected = [np.exp(-v[[0, 3]].mean()) for v in (*values, np.log(np.exp(values).mean(0)))]
    assert known == pytest.approx(expected)
    assert [row["known_sentences"] for row in found] == [0, 0, 0]


def test_plain_and_keyed_sentences(tmp_path):
    path = tmp_path / "text"
    path.write_text("u1 a b\n\nu3\n")
    assert read_sentences(path, keyed=False) == {"1": ("u1", "a", "b"), "2": (), "3": ("u3",)}
    with pytest.raises(InputError, match="text:2: an empty line"):
        read_sentences(path, keyed=True)
    path.write_text("u1 a b\nu3\n")
    assert read_sentences(path, keyed=True) == {"u1": ("a", "b"), "u3": ()}
    path.write_text("")
    with pytest.raises(InputError, match="text: no sentences"):
        read_sentences(path, keyed=False)
    with pytest.raises(InputError, match="nosuch: cannot be read"):
        read_sentences(tmp_path / "nosuch", keyed=False)


@pytest.mark.parametrize(
    "value, digits, text",
    [
        (1.5849, 2, "1.58"),
        (123.44, 1, "123.4"),
        (1e6, 2, "1000000.00"),
        (2_000_000.0, 1, "2.0e+06"),
        (1.34e70, 2, "1.3e+70"),
        (math.inf, 2, "∞"),
        (math.nan, 2, "nan"),
        (None, 2, "–"),
    ],
)
def test_perplexities_in_tables(value, digits, text):
    assert perplexity_text(value, digits) == text


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


# what sclite 2.4.10 prints of these words in a ctm, the sixth with each of the confidences
@pytest.mark.parametrize("sixth, expected", [(0.3, 0.399), (0.99999, -2.080), (1.0, -3.104)])
def test_normalized_cross_entropy_is_that_of_sclite(sixth, expected):
    confidences = np.array([0.9, 0.8, 0.6, 0.7, 0.95, sixth, 1.0, 0.5])
    correct = np.array([True, True, False, True, True, False, True, True])
    assert normalized_cross_entropy(confidences, correct) == pytest.approx(expected, abs=1e-3)


def test_normalized_cross_entropy_has_two_fixed_points():
    correct = np.array([True, True, False, True])
    assert normalized_cross_entropy(np.full(4, 0.75), correct) == pytest.approx(0, abs=1e-12)
    assert normalized_cross_entropy(correct.astype(float), correct) == pytest.approx(1, abs=1e-6)
    for same in (np.ones(3, dtype=bool), np.zeros(3, dtype=bool), np.zeros(0, dtype=bool)):
        assert normalized_cross_entropy(np.full(len(same), 0.5), same) is None


@given(st.lists(st.tuples(st.sampled_from([0.1, 0.5, 0.9]), st.booleans()), min_size=1, max_size=6))
def test_risk_coverage_is_the_mean_over_orders_of_equal_words(pairs):
    confidences, correct = map(np.array, zip(*pairs, strict=True))
    orders = [
        [not correct[n] for n in order]
        for order in itertools.permutations(range(len(pairs)))
        if all(confidences[a] >= confidences[b] for a, b in itertools.pairwise(order))
    ]
    risks = np.cumsum(orders, axis=1) / np.arange(1, len(pairs) + 1)
    assert risk_coverage(confidences, correct) == pytest.approx(risks.mean(axis=0))


def test_scaling_is_at_a_minimum():
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


def posterior(mean, std, *, location="ffn@1", start=0.1):
    return SimpleNamespace(location=location, mean=mean, std=std.expand_as(mean), start_std=start)


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


def test_summaries_of_weights():
    mean = torch.tensor([[-3.0, 0.0], [1.0, 0.5], [2.0, -8.0]], dtype=torch.float64)
    (summary,) = summarize_weights([posterior(mean, torch.tensor(0.5, dtype=torch.float64))])
    # |mean| / 0.5 sorted: 0, 1, 2, 4, 6, 16; percentiles lie at 0.25, 1.25, 2.5, 3.75, 4.75
    assert (summary.location, summary.count) == ("ffn@1", 6)
    assert summary.percentiles == pytest.approx((0.25, 1.25, 3.0, 5.5, 13.5))
    assert summary.median == pytest.approx(3.0)
    assert summary.median_std == pytest.approx(0.5)
    assert summary.median_std_ratio == pytest.approx(5.0)
    first, second, third = random_posteriors(0)
    pooled, alone = summarize_weights([first, second, third])
    ratio = torch.cat([(p.mean.abs() / p.std).flatten() for p in (first, third)]).double().numpy()
    assert (pooled.location, alone.location) == ("ffn@1", "ffn@2")
    assert (pooled.count, alone.count) == (15 + 11, 21)
    # float32 division against float64
    assert pooled.percentiles == pytest.approx(np.percentile(ratio, PERCENTILES), rel=1e-6)
    assert alone.median_std_ratio == pytest.approx(float(np.median(second.std)) / 0.2, rel=1e-6)
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


def test_pruning_by_hand():
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
    matrix = torch.arange(1.0, 13.0).reshape(4, 3)
    before = matrix.clone()
    rows = [posterior(matrix[1:3], torch.ones(2, 3)), posterior(matrix[:, :1], torch.ones(4, 1))]
    with pytest.raises(ZeroDivisionError):
        # of magnitudes 4 to 9 and 1, 4, 7, 10 the least are 1 and 4, in the first row and second
        prune_weights(rows, [0.2], lambda: 1 / int((matrix[:2, 0] != 0).sum()))
    assert torch.equal(matrix, before)
    zero_means(rows, np.array([1, 9]))
    assert matrix[1, 1] == 0 and matrix[3, 0] == 0 and int((matrix == 0).sum()) == 2


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
