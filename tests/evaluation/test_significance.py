"""Significance of word errors: MAPSSWE, bootstrap intervals, several systems."""

import itertools
import json
import random
import shutil
from pathlib import Path

import kaldialign
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles.alignments import segments as oracle_segments
from oracles.alignments import statistics
from oracles.sctk_reference import KINDS, pairs, random_set, run_sctk

from espnet_bayeslm.evaluation import comparison
from espnet_bayeslm.evaluation.comparison import (
    Mapsswe,
    SegmentErrors,
    align_all,
    compare_segments,
    compare_systems,
    difference_of_totals,
    find_segments,
    mapsswe,
    replicate_totals,
    score_set,
    utterance_segments,
)
from espnet_bayeslm.evaluation.markup import parse_markup
from espnet_bayeslm.evaluation.wer import align, count_errors, word_errors
from espnet_bayeslm.utils.errors import InputError

STORED = json.loads((Path(__file__).parent / "data" / "sctk_mapsswe.json").read_text())
WORDS = st.lists(st.sampled_from(["a", "b", "c", "be"]), max_size=8)
TEXTS = st.lists(st.tuples(WORDS, WORDS, WORDS), max_size=6)


def as_sets(texts):
    return [{f"u{n}": words[k] for n, words in enumerate(texts)} for k in range(3)]


@pytest.mark.parametrize(
    "ref, a, b, expected",
    [
        ("a b c d", "a b c d", "a b c d", []),
        ("a b c d", "a x c d", "a b c d", [(1, 0)]),
        # two words that both have right close a segment, one word does not
        ("a b c d", "x b c y", "a b c d", [(1, 0), (1, 0)]),
        ("a b c", "x b y", "a b c", [(2, 0)]),
        ("a b c", "x b c", "a b y", [(1, 1)]),
        ("a b c d", "x b c d", "a b c y", [(1, 0), (0, 1)]),
        ("a b c d", "x b c d", "a b y d", [(1, 1)]),
        # an insertion between the two words keeps it open
        ("a b c d e", "x b z c d e", "a b c d e", [(2, 0)]),
        ("a b c d e", "x b z c d y", "a b c d e", [(2, 0), (1, 0)]),
        # insertions and deletions at the ends
        ("a b", "z a b", "a b", [(1, 0)]),
        ("a b", "a b z z", "a b", [(2, 0)]),
        ("a b", "a b", "a b z", [(0, 1)]),
        ("a b c d", "z a b c", "a b c d", [(1, 0), (1, 0)]),
        ("", "", "", []),
        ("", "z", "", [(1, 0)]),
        ("", "", "z z", [(0, 2)]),
        ("a b c", "", "", [(3, 3)]),
        ("a b c", "", "a b c", [(3, 0)]),
    ],
)
def test_segments_by_hand(ref, a, b, expected):
    alignments = [align(ref.split(), hyp.split()) for hyp in (a, b)]
    assert utterance_segments(*alignments) == expected
    assert utterance_segments(*alignments[::-1]) == [(y, x) for x, y in expected]


@settings(max_examples=100)
@given(TEXTS)
def test_a_naive_oracle(texts):
    ref, a, b = as_sets(texts)
    aligned = [align_all(ref, hyp) for hyp in (a, b)]
    expected = [pair for utt in ref for pair in oracle_segments(*(x[utt] for x in aligned))]
    assert find_segments(*aligned) == expected
    found = mapsswe(ref, a, b)
    assert (found.segments, found.mean, found.std, found.z, found.p) == pytest.approx(
        statistics(expected), abs=1e-12
    )


@given(texts=TEXTS, order=st.randoms(use_true_random=False), words=WORDS)
def test_neither_order_nor_what_both_have_right_matters(texts, order, words):
    sets = as_sets(texts)
    utts = [*sets[0], "new"]
    order.shuffle(utts)
    shuffled = [{utt: {**part, "new": words}[utt] for utt in utts} for part in sets]
    # the hypotheses' own order is another one
    shuffled[1] = dict(reversed(shuffled[1].items()))
    assert mapsswe(*shuffled) == mapsswe(*sets)


@pytest.mark.parametrize("count", [0, 1, 2, 7, 1000])
@pytest.mark.parametrize("a, b", [(1, 0), (0, 3), (2, 2)])
def test_equal_differences_decide_nothing(count, a, b):
    found = compare_segments([SegmentErrors(a, b)] * count)
    assert found == Mapsswe(count, a - b if count else 0.0, 0.0, 0.0, 1.0)
    assert not found.significant


def test_other_utterances_and_other_references_are_refused():
    ref = {"u1": ["a"], "u2": ["b"]}
    for hyps in (({"u1": ["a"]}, ref), (ref, {**ref, "u3": []})):
        with pytest.raises(InputError, match="utterances"):
            mapsswe(ref, *hyps)
    with pytest.raises(ValueError, match="different references: 'a' and 'a b'"):
        utterance_segments([("a", "a")], [("a", "a"), ("b", None)])
    with pytest.raises(InputError, match="good: 0 utterances, 1 in the reference"):
        score_set({"u": ("a",)}, {"good": {}})


# reference tool: numbers of sclite and sc_stats, see tests/oracles/sctk_reference.py


def check_against_sctk(texts, aligned_a, aligned_b, numbers):
    """Compare with sc_stats's numbers, given sclite's alignments and with our own."""
    refs, hyps_a, hyps_b = texts
    given = find_segments(
        {utt: pairs(aligned_a[utt], refs[utt], hyps_a[utt]) for utt in refs},
        {utt: pairs(aligned_b[utt], refs[utt], hyps_b[utt]) for utt in refs},
    )
    found = compare_segments(given)
    assert found.segments == numbers["segments"]
    assert [sum(segment[k] for segment in given) for k in (0, 1)] == numbers["errors"]
    # it prints three digits; a tie in the last one may be rounded either way
    rounded = pytest.approx((numbers["mean"], numbers["std"], numbers["z"]), abs=0.5001e-3)
    assert (found.mean, found.std, found.z) == rounded
    assert found.significant == numbers["significant"]

    # our alignments are sclite's
    assert find_segments(align_all(refs, hyps_a), align_all(refs, hyps_b)) == given
    assert mapsswe(refs, hyps_a, hyps_b) == found


@pytest.mark.parametrize("stored", STORED, ids=lambda stored: stored["kind"])
def test_stored_numbers_of_sctk(stored):
    texts = random_set(stored["kind"], stored["seed"])
    aligned = (dict(zip(texts[0], stored[x].split("/"), strict=True)) for x in "ab")
    check_against_sctk(texts, *aligned, stored)


@pytest.mark.skipif(not shutil.which("sctk"), reason="Debian's sctk is not installed")
@pytest.mark.parametrize("kind", KINDS)
def test_sctk_itself(kind):
    texts = random_set(kind, 101)
    check_against_sctk(texts, *run_sctk(*texts))


RATES = {"poor": 0.5, "good": 0.1, "same": 0.5}


def make_set(seed, num_utts=60, *, prefix="u", rates=RATES):
    """Return references and systems with some rates of wrong words; "same" is what "poor" is."""
    rng = random.Random(seed)
    sizes = {f"{prefix}{n}": rng.randint(0, 12) for n in range(num_utts)}
    refs = {utt: tuple(rng.choices("abcdef", k=size)) for utt, size in sizes.items()}
    hyps = {
        name: {
            utt: tuple("x" if rng.random() < rate else word for word in words)
            for utt, words in refs.items()
        }
        for name, rate in rates.items()
    }
    return refs, {name: hyps["poor" if name == "same" else name] for name in rates}


def make_texts(seed, num_utts):
    """Return the texts of references and two systems, the second one slightly better."""
    refs, hyps = make_set(seed, num_utts, rates={"a": 0.2, "b": 0.18})
    return [[*texts.values()] for texts in (refs, hyps["a"], hyps["b"])]


def counts(refs, *systems):
    pairs = [zip(refs, system, strict=True) for system in systems]
    errors = [np.array([word_errors(*pair).errors for pair in of_system]) for of_system in pairs]
    return [*errors, np.array([*map(len, refs)])]


def bootstrap(errors_a, errors_b, words, **draws):
    table = np.stack([errors_a, words, errors_b, words], axis=1)
    return difference_of_totals(table.sum(axis=0), replicate_totals(table, **draws))


def test_a_plain_loop_over_the_same_draws(monkeypatch):
    errors_a, errors_b, words = counts(*make_texts(1, 37))
    # several blocks, the last one not full
    monkeypatch.setattr(comparison, "_HELD", 37 * 60)
    found = bootstrap(errors_a, errors_b, words, num_replicates=200, seed=5)
    differences = []
    for row in np.random.default_rng(5).integers(37, size=(200, 37), dtype=np.int32):
        a, b, total = (sum(int(counts[n]) for n in row) for counts in (errors_a, errors_b, words))
        differences.append((a - b) / total)
    differences.sort()

    def quantile(q):
        # between the two nearest of the sorted values
        low, rest = divmod(q * 199, 1)
        below, above = differences[int(low)], differences[min(int(low) + 1, 199)]
        return below + rest * (above - below)

    assert found.low == pytest.approx(quantile(0.025), abs=1e-12)
    assert found.high == pytest.approx(quantile(0.975), abs=1e-12)
    assert found.improvement == sum(d > 0 for d in differences) / 200
    assert found.difference == (sum(errors_a) - sum(errors_b)) / sum(words)
    assert found.level == 0.95


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


def test_exchanged_systems_and_empty_replicates():
    errors_a, errors_b, words = counts(*make_texts(3, 60))
    there = bootstrap(errors_a, errors_b, words, num_replicates=999)
    back = bootstrap(errors_b, errors_a, words, num_replicates=999)
    assert (back.difference, back.low, back.high) == pytest.approx(
        (-there.difference, -there.high, -there.low)
    )
    assert there.improvement + back.improvement <= 1
    assert there == bootstrap(errors_a, errors_b, words, num_replicates=999)
    assert there != bootstrap(errors_a, errors_b, words, num_replicates=999, seed=1)
    # half of the utterances have no words, so that some draws have none
    found = bootstrap(np.array([0, 1]), np.array([0, 0]), np.array([0, 4]))
    assert (found.low, found.high, found.improvement) == (0.25, 0.25, 1.0)


@pytest.mark.parametrize("num_utts", [0, 3])
def test_references_without_words(num_utts):
    zeros = np.zeros(num_utts, dtype=int)
    with pytest.raises(InputError, match="the references have no words"):
        bootstrap(zeros + 1, zeros, zeros)


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
    expected = {("poor", "good"): (False, True), ("good", "same"): (True, False)}
    assert better == {**expected, ("poor", "same"): (False, False)}


def test_sets_pooled():
    (refs_a, hyps_a), (refs_b, hyps_b) = make_set(1), make_set(2, prefix="v")
    sets = [score_set(refs_a, hyps_a), score_set(refs_b, hyps_b)]
    whole = score_set(
        {**refs_a, **refs_b}, {name: {**hyps_a[name], **hyps_b[name]} for name in RATES}
    )
    options = {"num_replicates": 200, "seed": 3}
    assert compare_systems(sets, **options) == compare_systems([whole], **options)
    one, two = (compare_systems(sets[:1] * n, num_replicates=300) for n in (1, 2))
    for pair, doubled in zip(one.pairs, two.pairs, strict=True):
        # the same text twice says no more than once
        assert doubled.interval == pair.interval
        assert doubled.test.segments == 2 * pair.test.segments
    assert all(two.errors[name] == one.errors[name] + one.errors[name] for name in RATES)


def test_identical_outputs_are_known_as_such():
    refs, hyps = make_set(1)
    nearly = {**hyps["poor"], "u0": (*hyps["poor"]["u0"], "more")}
    one, other = score_set(refs, hyps), score_set(refs, {**hyps, "same": nearly})
    for sets, expected in (([one] * 2, {("poor", "same")}), ([one, other], set())):
        pairs = compare_systems(sets, num_replicates=100).pairs
        assert {(p.a, p.b) for p in pairs if p.identical} == expected
    (pair,) = (p for p in compare_systems([one]).pairs if p.identical)
    assert (pair.test.segments > 0, pair.test.p, pair.interval.difference) == (True, 1.0, 0.0)


def test_each_system_has_the_words_of_its_readings():
    refs = {f"u{n}": parse_markup("a { b c d / e }") for n in range(20)}
    long, short = ({utt: tuple(text.split()) for utt in refs} for text in ("a b c x", "x e"))
    found = compare_systems([score_set(refs, {"long": long, "short": short})], num_replicates=50)
    rates = {name: counts.rate for name, counts in found.errors.items()}
    assert rates == {"long": 0.25, "short": 0.5}
    interval = found.pairs[0].interval
    assert (interval.difference, interval.low, interval.high) == (-0.25, -0.25, -0.25)
