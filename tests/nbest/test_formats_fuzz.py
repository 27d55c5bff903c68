"""Random damage to valid files ends in the lists that are left in them, or in one clear error."""

import fuzzing
import pytest
from nbest_mutations import CONTENT, KINDS, mutate

from espnet_bayeslm.nbest.formats import read_nbest

MARKS = ("<s>", "</s>", "-pau-")


def read_content(folder, format):
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


def check_equal(found, expected):
    """Check that a reader has all that a file holds, under the same ids and ranks."""
    assert found.keys() == expected.keys()
    for key, (words, score) in expected.items():
        assert found[key][0] == words, key
        if score is not None:
            score = pytest.approx(score, rel=1e-12, abs=1e-300)
        assert found[key][1] == score, key


def outcome_of(folder, format, files):
    """Return how reading ends; anything but the lists or a clear error fails."""
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


def test_damaged_files(tmp_path):
    outcomes = run_cases(tmp_path, range(3000))
    # Both ends must come up in each kind, or the damage is too small or too great
    assert all(outcomes[kind, end] > 10 for kind in KINDS for end in ("read", "error")), outcomes


@pytest.mark.slow
def test_a_hundred_thousand_damaged_files(tmp_path):
    outcomes = run_cases(tmp_path, range(3000, 103_000))
    for kind in KINDS:
        print(kind, outcomes[kind, "read"], "read,", outcomes[kind, "error"], "errors")
