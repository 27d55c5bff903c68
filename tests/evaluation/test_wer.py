"""Word errors against naive alignments, and the laws of counts."""

import dataclasses
import gzip

import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracles.alignment_naive import best_splits, edit_distance

from espnet_bayeslm.evaluation.wer import (
    NO_WORDS,
    ErrorCounts,
    check_same_utterances,
    count_errors,
    oracle_errors,
    read_transcripts,
    word_errors,
)
from espnet_bayeslm.utils.errors import InputError

WORDS = st.lists(st.sampled_from(["a", "b", "B", "be"]), max_size=7)
COUNTS = st.builds(
    lambda s, d, i, correct: ErrorCounts(s, d, i, s + d + correct), *[st.integers(0, 50)] * 4
)


@given(ref=WORDS, hyp=WORDS)
def test_word_errors_are_a_best_alignment(ref, hyp):
    counts = word_errors(ref, hyp)
    assert counts.errors == edit_distance(ref, hyp)
    assert (counts.substitutions, counts.deletions, counts.insertions) in best_splits(
        tuple(ref), tuple(hyp)
    )
    assert counts.words == len(ref)


@given(a=COUNTS, b=COUNTS, c=COUNTS)
def test_counts_add(a, b, c):
    assert a + b == b + a and (a + b) + c == a + (b + c) and a + NO_WORDS == a
    assert (a + b).errors == a.errors + b.errors and (a + b).words == a.words + b.words
    # pooled, not averaged
    assert (a + b).rate * (a + b).words == pytest.approx(a.errors + b.errors) or not (a + b).words


def test_counts_check_themselves():
    for values in ((-1, 0, 0, 3), (0, -1, 0, 3), (0, 0, -1, 3), (0, 0, 0, -1)):
        with pytest.raises(ValueError, match="must not be negative"):
            ErrorCounts(*values)
    with pytest.raises(ValueError, match="more reference words are wrong"):
        ErrorCounts(2, 2, 0, 3)
    with pytest.raises(dataclasses.FrozenInstanceError):
        NO_WORDS.words = 1
    with pytest.raises(TypeError):
        NO_WORDS + 1


@given(lists=st.lists(st.tuples(WORDS, st.lists(WORDS, min_size=1, max_size=4)), max_size=4))
def test_oracle_is_the_brute_force_minimum(lists):
    refs = {f"u{n}": ref for n, (ref, _) in enumerate(lists)}
    nbests = {f"u{n}": hyps for n, (_, hyps) in enumerate(lists)}
    counts = oracle_errors(refs, nbests)
    fewest = [min(edit_distance(ref, hyp) for hyp in hyps) for ref, hyps in lists]
    assert counts.errors == sum(fewest)
    assert counts.words == sum(len(ref) for ref, _ in lists)
    first = count_errors(refs, {utt: hyps[0] for utt, hyps in nbests.items()})
    assert counts.errors <= first.errors


def test_utterances_must_be_the_same():
    check_same_utterances(["a", "b"], ["b", "a"])
    with pytest.raises(InputError) as error:
        check_same_utterances(["a", "b", "c"], ["c", "x"], ref_path="ref.txt", hyp_path="hyp.txt")
    message = str(error.value)
    assert message.startswith("hyp.txt: 2 utterances, 3 in ref.txt")
    assert "2 utterances have no hypothesis (first: 'a')" in message
    assert "1 utterances have no reference (first: 'x')" in message
    for function in (count_errors, oracle_errors):
        with pytest.raises(InputError, match="have no hypothesis"):
            function({"a": ["x"]}, {})


@pytest.mark.parametrize("name", ["text", "ref.txt", "x.trn", "trn", "x.trn.gz"])
def test_transcripts_of_both_formats(tmp_path, name):
    rows = {"spk-u_1": ("well", "(uh)", "yes"), "u-2": ()}
    with (gzip.open if name.endswith(".gz") else open)(tmp_path / name, "wt") as f:
        for utt, words in rows.items():
            line = (*words, f"({utt})") if "trn" in name else (utt, *words)
            f.write(" ".join(line) + "\n")
    assert read_transcripts(tmp_path / name) == rows


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("text", "", r"text: no utterances"),
        ("text", "a x\n\n", r"text:2: an empty line"),
        ("text", "a x\nb y\na z\n", r"text:3: the key 'a' stands already in line 1"),
        ("ref.trn", "", r"ref.trn: no utterances"),
        ("ref.trn", "x (a)\nx y\n", r"ref.trn:2: got 'x y' where"),
        ("ref.trn", "x (a)\n\n", r"ref.trn:2: got ''"),
        ("ref.trn", "x ()\n", r"ref.trn:1: got"),
        ("ref.trn", "x (a)\ny (a)\n", r"ref.trn:2: the utterance 'a' comes twice"),
    ],
)
def test_bad_transcripts_are_named_by_file_and_line(tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=message):
        read_transcripts(tmp_path / name)
