"""Random damage to valid files ends in what is left in them, or in one clear error."""

import collections
import json
import random

import pytest
from nbest_mutations import KINDS, LATTICE_KINDS, mutate, write_files
from oracles.lattice_paths import all_paths, write_htk

from espnet_bayeslm.nbest.formats import LATTICE_READERS, READERS, write_nbest
from espnet_bayeslm.nbest.lattice import best_paths
from espnet_bayeslm.utils.errors import InputError

GROUPS = {"lists": KINDS, "lattices": LATTICE_KINDS}


def lines_of(files, *ending):
    """Yield the fields of each line of the files that end in some way."""
    for name, data in files.items():
        if name.endswith(ending):
            for line in data.decode("utf-8-sig").split("\n"):
                if line:
                    yield line.split()


def kaldi_content(files):
    """Return {utterance-rank: (words, acoustic score)}, by a plain reader."""
    costs = {key: -float(cost) for key, cost in lines_of(files, "acwt")}
    return {key: (words, costs[key]) for key, *words in lines_of(files, "words_text")}


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


CHECKS = {"lists": (READERS, check_lists), "lattices": (LATTICE_READERS, check_lattices)}


def outcome_of(folder, group, kind, files, scratch):
    """Return how reading ends; anything but what is in the files or a clear error fails."""
    readers, check = CHECKS[group]
    try:
        found = list(readers[GROUPS[group][kind][0]](folder))
    except InputError as error:
        message = str(error)
        assert message.startswith(str(folder)), "the error names no file"
        assert "\n" not in message, "the error has more than one line"
        assert len(message) < 1000, "the error is too long"
        return "error"
    check(found, kind, files, scratch)
    return "read"


def run_cases(folder, group, cases):
    """Read damaged files of some seeds; return {(kind, outcome): number}."""
    outcomes, names = collections.Counter(), list(GROUPS[group])
    for kind, (_, files) in GROUPS[group].items():
        write_files(folder / kind, files)
    for case in cases:
        rng, kind = random.Random(case), names[case % len(names)]
        files = GROUPS[group][kind][1]
        done, changed = mutate(rng, files)
        left = {n: data for n, data in {**files, **changed}.items() if data is not None}
        write_files(folder / kind, changed)
        try:
            outcome = outcome_of(folder / kind, group, kind, left, folder / f"again {case}")
        except Exception as error:
            raise AssertionError(f"case {case}: {kind}: {done}: {error!r}") from error
        outcomes[kind, outcome] += 1
        write_files(folder / kind, {name: files[name] for name in changed})
    return outcomes


@pytest.mark.parametrize(
    "group, kind", [(group, kind) for group in GROUPS for kind in GROUPS[group]]
)
def test_what_is_not_damaged_is_read(group, kind, tmp_path):
    files = GROUPS[group][kind][1]
    write_files(tmp_path / "whole", files)
    assert outcome_of(tmp_path / "whole", group, kind, files, tmp_path) == "read"


@pytest.mark.parametrize("group", GROUPS)
def test_damaged_files(group, tmp_path):
    outcomes = run_cases(tmp_path, group, range(120 * len(GROUPS[group])))
    # Both ends must come up in each kind, or the damage is too small or too great
    ends = [(kind, end) for kind in GROUPS[group] for end in ("read", "error")]
    assert all(outcomes[end] > 10 for end in ends), outcomes


@pytest.mark.slow
@pytest.mark.parametrize("group", GROUPS)
def test_a_hundred_thousand_damaged_files(group, tmp_path):
    outcomes = run_cases(tmp_path, group, range(3000, 103_000))
    for kind in GROUPS[group]:
        print(kind, outcomes[kind, "read"], "read,", outcomes[kind, "error"], "errors")
