"""MAPSSWE against cases by hand, a naive oracle, NIST's sctk, and the laws that it obeys."""

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles.mapsswe_regex import segments as oracle_segments
from oracles.mapsswe_regex import statistics
from oracles.sctk_reference import KINDS, pairs, random_set, run_sctk

from espnet_bayeslm.evaluation.comparison import (
    Mapsswe,
    Segment,
    align_all,
    compare_segments,
    find_segments,
    mapsswe,
    utterance_segments,
)
from espnet_bayeslm.evaluation.wer import align
from espnet_bayeslm.utils.errors import InputError

STORED = json.loads((Path(__file__).parent / "data" / "sctk_mapsswe.json").read_text())
WORDS = st.lists(st.sampled_from(["a", "b", "c", "be"]), max_size=8)
TEXTS = st.lists(st.tuples(WORDS, WORDS, WORDS), max_size=6)


def as_sets(texts):
    """Return three {utterance id: words}."""
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
    found = compare_segments([Segment(a, b)] * count)
    assert found == Mapsswe(count, a - b if count else 0.0, 0.0, 0.0, 1.0)
    assert not found.significant


def test_other_utterances_and_other_references_are_refused():
    ref = {"u1": ["a"], "u2": ["b"]}
    for hyps in (({"u1": ["a"]}, ref), (ref, {**ref, "u3": []})):
        with pytest.raises(InputError, match="utterances"):
            mapsswe(ref, *hyps)
    with pytest.raises(InputError, match="system B: 0 utterances, 1 in system A"):
        find_segments({"u1": []}, {})
    with pytest.raises(ValueError, match="different references: 'a' and 'a b'"):
        utterance_segments([("a", "a")], [("a", "a"), ("b", None)])


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
