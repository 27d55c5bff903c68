"""Random damage to valid files ends in what is left in them, or in one clear error."""

import collections
import random

import lattice_mutations
import nbest_mutations
import pytest
from nbest_mutations import mutate, write_files
from oracles.lattice_paths import arc_paths

from espnet_bayeslm.nbest.formats import LATTICE_READERS, read_nbest
from espnet_bayeslm.utils.errors import InputError

MARKS = ("<s>", "</s>", "-pau-")


def read_lists(folder, format):
    """Return {(utterance, rank from 0): (words, acoustic score)} as the reader has it."""
    content, utts = {}, set()
    for nbest in read_nbest(folder, format):
        assert nbest.utt not in utts, nbest.utt
        utts.add(nbest.utt)
        for rank, hyp in enumerate(nbest.hypotheses):
            marked = format == "srilm"  # marks within a hypothesis stay; the oracle drops them
            words = [word for word in hyp.words if not marked or word not in MARKS]
            content[nbest.utt, rank] = words, hyp.am_score
    return content


def same_list(found, expected):
    (words, score), (expected_words, expected_score) = found, expected
    assert words == expected_words
    if expected_score is not None:
        expected_score = pytest.approx(expected_score, rel=1e-12, abs=1e-300)
    assert score == expected_score


def read_lattices(folder, format):
    """Return {utterance: sorted (words, acoustic score, LM score) of all paths}."""
    content = {}
    for lattice in LATTICE_READERS[format](folder):
        assert lattice.utt not in content
        content[lattice.utt] = sorted(
            (
                tuple(arc.word for arc in arcs if arc.word is not None),
                sum(arc.am_score for arc in arcs),
                sum(arc.lm_score for arc in arcs),
            )
            for arcs in arc_paths(lattice)
        )
    return content


def same_paths(found, expected):
    assert [path[0] for path in found] == [path[0] for path in expected]
    for path, other in zip(found, expected, strict=True):
        assert path[1:] == pytest.approx(other[1:], rel=1e-9, abs=1e-300)


# {kind: (format, {file: bytes})}, plain readers of what is in such files, ours, and what is equal
GROUPS = {
    "lists": (nbest_mutations.KINDS, nbest_mutations.CONTENT, read_lists, same_list),
    "lattices": (lattice_mutations.KINDS, lattice_mutations.CONTENT, read_lattices, same_paths),
}
KINDS = [(group, kind) for group, (kinds, *_) in GROUPS.items() for kind in kinds]


def outcome_of(folder, group, format, files):
    """Return how reading ends; anything but what is in the files or a clear error fails."""
    _, content, read, check = GROUPS[group]
    try:
        found = read(folder, format)
    except InputError as error:
        message = str(error)
        assert message.startswith(str(folder)), "the error names no file"
        assert "\n" not in message, "the error has more than one line"
        assert len(message) < 1000, "the error is too long"
        return "error"
    expected = content[format](files)
    assert found.keys() == expected.keys()
    for key in expected:
        check(found[key], expected[key])
    return "read"


def run_cases(folder, group, cases):
    """Read damaged files of some seeds; return {(kind, outcome): number}."""
    kinds = GROUPS[group][0]
    for kind, (_, files) in kinds.items():
        write_files(folder / kind, files)
    outcomes = collections.Counter()
    names = list(kinds)
    for case in cases:
        rng = random.Random(case)
        kind = names[case % len(names)]
        format, files = kinds[kind]
        done, changed = mutate(rng, files)
        left = {n: data for n, data in {**files, **changed}.items() if data is not None}
        write_files(folder / kind, changed)
        try:
            outcomes[kind, outcome_of(folder / kind, group, format, left)] += 1
        except Exception as error:
            raise AssertionError(f"case {case}: {kind}: {done}: {error!r}") from error
        write_files(folder / kind, {name: files[name] for name in changed})
    return outcomes


@pytest.mark.parametrize("group, kind", KINDS)
def test_what_is_not_damaged_is_read(group, kind, tmp_path):
    format, files = GROUPS[group][0][kind]
    write_files(tmp_path, files)
    assert outcome_of(tmp_path, group, format, files) == "read"
    assert sum(map(len, GROUPS[group][1][format](files).values())) >= 5


@pytest.mark.parametrize("group", GROUPS)
def test_damaged_files(group, tmp_path):
    outcomes = run_cases(tmp_path, group, range(120 * len(GROUPS[group][0])))
    # Both ends must come up in each kind, or the damage is too small or too great
    ends = [(kind, end) for kind in GROUPS[group][0] for end in ("read", "error")]
    assert all(outcomes[end] > 10 for end in ends), outcomes


@pytest.mark.slow
@pytest.mark.parametrize("group", GROUPS)
def test_a_hundred_thousand_damaged_files(group, tmp_path):
    outcomes = run_cases(tmp_path, group, range(3000, 103_000))
    for kind in GROUPS[group][0]:
        print(kind, outcomes[kind, "read"], "read,", outcomes[kind, "error"], "errors")
