"""Several systems, on one set and on several that are pooled."""

import itertools
import random

import pytest

from espnet_bayeslm.evaluation.comparison import compare_systems, mapsswe, score_set
from espnet_bayeslm.evaluation.markup import parse_markup
from espnet_bayeslm.evaluation.wer import count_errors
from espnet_bayeslm.utils.errors import InputError

RATES = {"poor": 0.5, "good": 0.1, "same": 0.5}


def make_set(seed, num_utts=60, prefix="u"):
    """Return references and the systems of `RATES`; "same" is what "poor" is."""
    rng = random.Random(seed)
    refs = {f"{prefix}{n}": tuple(rng.choices("abcdef", k=8)) for n in range(num_utts)}
    hyps = {
        name: {
            utt: tuple("x" if rng.random() < rate else word for word in words)
            for utt, words in refs.items()
        }
        for name, rate in RATES.items()
    }
    return refs, {**hyps, "same": hyps["poor"]}


def test_one_set():
    refs, hyps = make_set(1)
    found = compare_systems([score_set(refs, hyps)], num_replicates=200)
    assert found.errors == {name: count_errors(refs, texts) for name, texts in hyps.items()}
    assert [(p.a, p.b) for p in found.pairs] == list(itertools.combinations(RATES, 2))
    for pair in found.pairs:
        assert pair.test == mapsswe(refs, hyps[pair.a], hyps[pair.b])
        errors = found.errors[pair.a].rate - found.errors[pair.b].rate
        assert pair.interval.difference == pytest.approx(errors)
        assert pair.interval.low <= errors <= pair.interval.high
    better = {(p.a, p.b): (p.test.a_is_better, p.test.b_is_better) for p in found.pairs}
    same = (False, False)
    assert better == {
        (a, b): same if "good" not in (a, b) else (a == "good", b == "good") for a, b in better
    }


def test_sets_of_other_utterances_are_one_larger_set():
    (refs_a, hyps_a), (refs_b, hyps_b) = make_set(1), make_set(2, prefix="v")
    sets = [score_set(refs_a, hyps_a), score_set(refs_b, hyps_b)]
    whole = score_set(
        {**refs_a, **refs_b}, {name: {**hyps_a[name], **hyps_b[name]} for name in RATES}
    )
    options = {"num_replicates": 200, "seed": 3}
    assert compare_systems(sets, **options) == compare_systems([whole], **options)


def test_an_utterance_in_two_conditions_is_drawn_as_one():
    refs, hyps = make_set(1)
    one = compare_systems([score_set(refs, hyps)], num_replicates=300)
    two = compare_systems([score_set(refs, hyps)] * 2, num_replicates=300)
    for pair, doubled in zip(one.pairs, two.pairs, strict=True):
        # the same text twice says no more than once
        assert doubled.interval == pair.interval
        assert doubled.test.segments == 2 * pair.test.segments
    assert all(two.errors[name] == one.errors[name] + one.errors[name] for name in RATES)


def test_bad_sets():
    with pytest.raises(InputError, match="good: 0 utterances, 1 in the reference"):
        score_set({"u": ("a",)}, {"good": {}})
    with pytest.raises(InputError, match="the references have no words"):
        compare_systems([score_set({"u": ()}, {"a": {"u": ()}, "b": {"u": ("x",)}})])


def test_identical_outputs_are_known_as_such():
    refs, hyps = make_set(1)
    nearly = {**hyps["poor"], "u0": (*hyps["poor"]["u0"], "more")}
    other = score_set(refs, {**hyps, "same": nearly})
    for sets, expected in (
        ([score_set(refs, hyps)] * 2, True),
        ([score_set(refs, hyps), other], False),
    ):
        pairs = compare_systems(sets, num_replicates=100).pairs
        assert {(p.a, p.b) for p in pairs if p.identical} == (
            {("poor", "same")} if expected else set()
        )
    (pair,) = (p for p in compare_systems([score_set(refs, hyps)]).pairs if p.identical)
    assert (pair.test.segments > 0, pair.test.p, pair.interval.difference) == (True, 1.0, 0.0)


def test_each_system_has_the_words_of_its_readings():
    refs = {f"u{n}": parse_markup("a { b c d / e }") for n in range(20)}
    long, short = ({utt: tuple(text.split()) for utt in refs} for text in ("a b c x", "x e"))
    found = compare_systems([score_set(refs, {"long": long, "short": short})], num_replicates=50)
    rates = {name: counts.rate for name, counts in found.errors.items()}
    assert rates == {"long": 0.25, "short": 0.5}
    interval = found.pairs[0].interval
    assert (interval.difference, interval.low, interval.high) == (-0.25, -0.25, -0.25)
