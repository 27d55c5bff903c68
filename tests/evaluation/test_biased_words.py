"""U-WER and B-WER: by hand, by trying every alignment, and as the script of others counts them."""

import gzip
import importlib.util
import json
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles.alignments import sclite_alignment, segments

from espnet_bayeslm.evaluation.bias_lists import BiasList, BiasLists
from espnet_bayeslm.evaluation.biased_words import (
    BIASED,
    UNBIASED,
    part_errors,
    part_errors_of_list,
    score_parts,
)
from espnet_bayeslm.evaluation.comparison import compare_systems, score_set
from espnet_bayeslm.evaluation.markup import parse_markup
from espnet_bayeslm.evaluation.wer import ErrorCounts, align
from espnet_bayeslm.utils.errors import InputError


def bias_of(words):
    return BiasLists(shared=BiasList((word, None) for word in words))


@pytest.mark.parametrize(
    "ref, hyp, unbiased, biased",
    [
        # S, D, I and words; "kite" and "york" are biased
        ("the kite flies", "the kite flies", (0, 0, 0, 2), (0, 0, 0, 1)),
        ("the kite flies", "the sky flies", (0, 0, 0, 2), (1, 0, 0, 1)),
        ("the sky flies", "the kite flies", (1, 0, 0, 3), (0, 0, 0, 0)),
        ("the kite", "the", (0, 0, 0, 1), (0, 1, 0, 1)),
        ("the", "the kite", (0, 0, 0, 1), (0, 0, 1, 0)),
        ("kite", "the kite", (0, 0, 1, 0), (0, 0, 0, 1)),
        ("kite", "york", (0, 0, 0, 0), (1, 0, 0, 1)),
        ("", "york x", (0, 0, 1, 0), (0, 0, 1, 0)),
        ("york x", "", (0, 1, 0, 1), (0, 1, 0, 1)),
    ],
)
def test_errors_by_hand(ref, hyp, unbiased, biased):
    found = part_errors(ref.split(), hyp.split(), {"kite", "york"})
    assert found == (ErrorCounts(*unbiased), ErrorCounts(*biased))


def test_words_with_markup():
    ref = parse_markup("{ kite / a kites } (uh) fl- york")
    found = part_errors_of_list(ref, [["kite", "flew", "york"], ["a"]], {"kites", "uh"})
    assert found[0] == (ErrorCounts(0, 0, 0, 3), ErrorCounts(0, 0, 0, 1))
    assert found[1] == (ErrorCounts(0, 2, 0, 3), ErrorCounts(0, 1, 0, 2))


TEXT = st.lists(st.sampled_from("abc"), max_size=5)


@settings(max_examples=60)
@given(
    texts=st.lists(st.tuples(TEXT, TEXT, TEXT), max_size=3), biased=st.sets(st.sampled_from("abc"))
)
def test_every_alignment_is_tried(texts, biased):
    refs, *both = ({f"u{n}": tuple(row[k]) for n, row in enumerate(texts)} for k in range(3))
    hyps = dict(zip("xy", both, strict=True))
    bias = BiasLists({utt: BiasList((word, None) for word in biased) for utt in refs})
    whole = score_set(refs, hyps)
    parts = score_parts(whole, refs, hyps, bias)
    aligned = [[sclite_alignment(refs[utt], hyps[name][utt]) for utt in refs] for name in "xy"]
    for rate, inside in ((UNBIASED, False), (BIASED, True)):
        for name, alignments in zip("xy", aligned, strict=True):
            for counts, pairs in zip(parts[rate].errors[name].values(), alignments, strict=True):
                own = [(a, b) for a, b in pairs if ((a or b) in biased) == inside]
                assert counts.words == sum(a is not None for a, _ in own)
                assert counts.insertions == sum(a is None for a, _ in own)
                assert counts.deletions == sum(b is None for _, b in own)
                assert counts.errors == sum(a != b for a, b in own)
        assert parts[rate].segments["x", "y"] == [
            pair
            for a, b in zip(*aligned, strict=True)
            for pair in segments(a, b, lambda word, inside=inside: (word in biased) == inside)
        ]


def test_segments_are_those_of_all_words():
    """Borders are not moved, and a segment without errors of a part is none of that part."""
    refs = {"u": tuple("abcdefgh")}
    # of x: two segments, the first with two errors; of y: one of them
    hyps = {
        "x": {"u": tuple("xbydefgz")},
        "y": {"u": tuple("xbcdefgh")},
    }
    whole = score_set(refs, hyps)
    assert whole.segments["x", "y"] == [(2, 1), (1, 0)]
    for words, unbiased, biased in (
        ("", [(2, 1), (1, 0)], []),
        ("a", [(1, 0), (1, 0)], [(1, 1)]),
        ("c h", [(1, 1)], [(1, 0), (1, 0)]),
        ("a b c d e f g h", [], [(2, 1), (1, 0)]),
    ):
        parts = score_parts(whole, refs, hyps, bias_of(words.split()))
        assert parts[UNBIASED].segments["x", "y"] == unbiased
        assert parts[BIASED].segments["x", "y"] == biased


def test_references_without_biased_words():
    """Their insertions are errors all the same, and no systems can be compared."""
    refs, hyps = {"u": ("a",)}, {"x": {"u": ("a", "k")}, "y": {"u": ("a",)}}
    whole = score_set(refs, hyps)
    parts = score_parts(whole, refs, hyps, bias_of(["k"]))
    with pytest.raises(InputError, match="the references have no words"):
        compare_systems([parts[BIASED]])
    found = compare_systems([parts[BIASED]], needs_words=False)
    assert found.pairs == [] and found.errors["x"] == ErrorCounts(0, 0, 1, 0)
    assert len(compare_systems([parts[UNBIASED]], needs_words=False).pairs) == 1


# A folder with real lists, bias lists and the script `bwer.py`, which counts as Le et al. do
REAL = Path(os.environ.get("BIASED_SPEECH", "none"))


@pytest.mark.skipif(not REAL.is_dir(), reason="$BIASED_SPEECH names no folder of real lists")
@pytest.mark.parametrize("name", ["dev_clean", "dev_other"])
def test_real_lists_are_counted_as_by_another_script(name):
    spec = importlib.util.spec_from_file_location("bwer", REAL / "oracles/bwer.py")
    bwer = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(bwer)

    def rows(path):
        with gzip.open(REAL / "data" / path, "rt", encoding="utf-8") as f:
            return {row["utt"]: row for row in map(json.loads, f)}

    lists = rows(f"librispeech_nbest/{name}.jsonl.gz")
    for utt, row in rows(f"librispeech_bias/{name}.rare.jsonl.gz").items():
        ref, biased = lists[utt]["ref"].split(), {word.upper() for word in row["rare"]}
        for hyp in (item["text"].split() for item in lists[utt]["hypotheses"][:3]):
            found = part_errors(ref, hyp, biased)
            expected = bwer.count(ref, hyp, biased)
            assert [list(vars(counts).values()) for counts in found] == expected
            assert align(ref, hyp) == [
                tuple(None if word == bwer.EPS else word for word in pair)
                for pair in bwer.align(ref, hyp)
            ]
