"""Random damage to valid files ends in the lists that are left in them, or in one clear error."""

import collections
import random

import pytest
from nbest_mutations import CONTENT, KINDS, mutate

from espnet_bayeslm.nbest.formats import read_nbest
from espnet_bayeslm.utils.errors import InputError

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
    try:
        found = read_content(folder, format)
    except InputError as error:
        message = str(error)
        assert message.startswith(str(folder)), "the error names no file"
        assert "\n" not in message, "the error has more than one line"
        assert len(message) < 1000, "the error is too long"
        return "error"
    check_equal(found, CONTENT[format](files))
    return "read"


def run_cases(folder, cases):
    """Read damaged files; return {(kind, outcome): number}.

    Args:
        folder: A new folder.
        cases: Seeds.
    """
    for kind, (_, files) in KINDS.items():
        for name, data in files.items():
            (folder / kind / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / kind / name).write_bytes(data)
    outcomes = collections.Counter()
    kinds = list(KINDS)
    for case in cases:
        rng = random.Random(case)
        kind = kinds[case % len(kinds)]
        format, files = KINDS[kind]
        done, changed = mutate(rng, files)
        damaged = {**files, **changed}
        write_changes(folder / kind, changed)
        try:
            there = {name: data for name, data in damaged.items() if data is not None}
            outcomes[kind, outcome_of(folder / kind, format, there)] += 1
        except Exception as error:
            raise AssertionError(f"case {case}: {kind}: {done}: {error!r}") from error
        write_changes(folder / kind, {name: files[name] for name in changed})
    return outcomes


def write_changes(folder, changed):
    """Write files, or remove those that are None."""
    for name, data in changed.items():
        # A new file: a file system may flush one that is emptied and written anew, which takes long
        (folder / name).unlink(missing_ok=True)
        if data is not None:
            (folder / name).write_bytes(data)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_damaged_is_read(kind, tmp_path):
    format, files = KINDS[kind]
    for name, data in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(data)
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
