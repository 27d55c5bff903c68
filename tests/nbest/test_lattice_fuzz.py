"""Random damage to lattices ends in the paths that are left in them, or in one clear error."""

import fuzzing
import pytest
from lattice_mutations import CONTENT, KINDS
from nbest_mutations import mutate
from oracles.lattice_paths import arc_paths

from espnet_bayeslm.nbest.formats import LATTICE_READERS


def read_content(folder, format):
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


def check_equal(found, expected):
    """Check that a reader has all paths that a file holds."""
    assert found.keys() == expected.keys()
    for utt, paths in expected.items():
        assert [path[0] for path in found[utt]] == [path[0] for path in paths], utt
        for path, other in zip(found[utt], paths, strict=True):
            assert path[1:] == pytest.approx(other[1:], rel=1e-9, abs=1e-300), utt


def outcome_of(folder, format, files):
    """Return how reading ends; anything but the lattices or a clear error fails."""
    return fuzzing.outcome_of(
        folder,
        lambda: read_content(folder, format),
        lambda found: check_equal(found, CONTENT[format](files)),
    )


def run_cases(folder, cases):
    """Read damaged files; return {(kind, outcome): number}."""
    return fuzzing.run_cases(folder, cases, KINDS, mutate, outcome_of)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_damaged_is_read(kind, tmp_path):
    format, files = KINDS[kind]
    fuzzing.write_files(tmp_path, files)
    assert outcome_of(tmp_path, format, files) == "read"
    assert sum(map(len, CONTENT[format](files).values())) >= 5


def test_damaged_files(tmp_path):
    outcomes = run_cases(tmp_path, range(3000))
    # Both ends must come up in each kind, or the damage is too small or too great
    assert all(outcomes[kind, end] > 10 for kind in KINDS for end in ("read", "error")), outcomes


@pytest.mark.slow
def test_a_hundred_thousand_damaged_files(tmp_path):
    outcomes = run_cases(tmp_path, range(3000, 103_000))
    for kind in KINDS:
        print(kind, outcomes[kind, "read"], "read,", outcomes[kind, "error"], "errors")
