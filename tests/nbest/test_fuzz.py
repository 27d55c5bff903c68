"""Random damage to valid files ends in what is left in them, or in one clear error."""

import collections
import json
import random

import pytest
from nbest_mutations import KINDS, mutate, write_files
from oracles.lattice_paths import all_paths, write_htk

from espnet_bayeslm.nbest.formats import LATTICE_READERS, READERS, write_nbest
from espnet_bayeslm.nbest.lattice import best_paths
from espnet_bayeslm.utils.errors import InputError


def entries(data):
    """Return {key: fields} of the lines of a file."""
    lines = (line.split() for line in data.decode("utf-8-sig").split("\n") if line)
    return {key: fields for key, *fields in lines}


def kaldi_content(files):
    """Return {utterance-rank: (words, acoustic score)}, by a plain reader."""
    text, costs = (entries(files[name]) for name in ("words_text", "acwt"))
    return {key: (words, -float(*costs[key])) for key, words in text.items()}


def jsonl_content(files):
    """Return {utterance-rank: (words, acoustic score)}, by a plain reader."""
    content = {}
    for line in files["nbest.jsonl"].decode("utf-8-sig").splitlines():
        item = json.loads(line)
        for rank, hyp in enumerate(item["hypotheses"], 1):
            content[f"{item['utt']}-{rank}"] = hyp["text"].split(), hyp.get("am_score")
    return content


CONTENT = {"kaldi": kaldi_content, "jsonl": jsonl_content}


def check_lists(lists, kind, files, folder):
    """Nothing is there twice; what is written is read again; a plain reader has the same."""
    assert len({nbest.utt for nbest in lists}) == len(lists)
    write_nbest(lists, folder / "again", format="jsonl")
    assert list(READERS["jsonl"](folder / "again")) == lists
    if kind in CONTENT:
        found = {
            f"{nbest.utt}-{rank}": (list(hyp.words), hyp.am_score)
            for nbest in lists
            for rank, hyp in enumerate(nbest.hypotheses, 1)
        }
        assert found == CONTENT[kind](files)


def check_lattices(lattices, kind, files, folder):
    """Nothing is there twice; all paths of what is written are found again."""
    assert len({lattice.utt for lattice in lattices}) == len(lattices)
    write_htk(lattices, folder / "again")
    again = {lattice.utt: lattice for lattice in LATTICE_READERS["htk"](folder / "again")}
    for lattice in lattices:
        paths = best_paths(lattice, lattice.scales, 10**6)
        assert best_paths(again.pop(lattice.utt), lattice.scales, 10**6) == paths
        assert {path.words for path in paths} == set(all_paths(lattice))
    assert not again


def outcome_of(folder, kind, files, scratch):
    """Return how reading ends; anything but what is in the files or a clear error fails."""
    format, _ = KINDS[kind]
    try:
        found = list({**READERS, **LATTICE_READERS}[format](folder))
    except InputError as error:
        message = str(error)
        assert message.startswith(str(folder)), "the error names no file"
        assert "\n" not in message, "the error has more than one line"
        assert len(message) < 1000, "the error is too long"
        return "error"
    check = check_lattices if format in LATTICE_READERS else check_lists
    check(found, kind, files, scratch)
    return "read"


def run_cases(folder, kind, cases):
    """Read damaged files of some seeds; return {outcome: number}."""
    outcomes, files, damaged = collections.Counter(), KINDS[kind][1], folder / "damaged"
    write_files(damaged, files)
    for case in cases:
        done, changed = mutate(random.Random(case), files)
        left = {n: data for n, data in {**files, **changed}.items() if data is not None}
        write_files(damaged, changed)
        try:
            outcomes[outcome_of(damaged, kind, left, folder / f"again {case}")] += 1
        except Exception as error:
            raise AssertionError(f"case {case}: {done}: {error!r}") from error
        write_files(damaged, {name: files[name] for name in changed})
    return outcomes


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_damaged_is_read(kind, tmp_path):
    files = KINDS[kind][1]
    write_files(tmp_path / "whole", files)
    assert outcome_of(tmp_path / "whole", kind, files, tmp_path) == "read"


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_files(kind, tmp_path):
    outcomes = run_cases(tmp_path, kind, range(120))
    # Both ends must come up, or the damage is too small or too great
    assert min(outcomes["read"], outcomes["error"]) > 10, outcomes


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_ten_thousand_damaged_files(kind, tmp_path):
    print(kind, run_cases(tmp_path, kind, range(3000, 13_000)))
