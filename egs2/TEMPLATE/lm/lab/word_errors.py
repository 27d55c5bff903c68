"""Word errors of rescored N-best lists, pooled over conditions, and tests between systems."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Dict, List, Mapping, Optional, Sequence, Tuple

from espnet_bayeslm.evaluation.comparison import ScoredSet, compare_systems, score_set
from espnet_bayeslm.evaluation.wer import (
    NO_WORDS,
    ErrorCounts,
    Words,
    check_same_utterances,
    count_errors,
    oracle_errors,
    read_transcripts,
)
from espnet_bayeslm.nbest.kaldi import read_kaldi
from espnet_bayeslm.utils.errors import InputError
from lab.results import POOLED, Errors, Test
from lab.texts import read_conditions

LISTS_STAGE = 3
# Enough for the interval's ends to two digits; there are many pairs.
NUM_REPLICATES = 2000
Texts = Dict[str, Words]


@dataclasses.dataclass(frozen=True)
class Lists:
    """The N-best lists' references.

    Attributes:
        conditions: Names of the conditions, the same in all sets.
        refs: (set, condition) -> utterance id -> words.
        folder: Where the lists are.
    """

    conditions: List[str]
    refs: Dict[Tuple[str, str], Texts]
    folder: Path


def read_lists(folder: Path, sets: Sequence[str]) -> Optional[Lists]:
    """References of the lists; None where there are no lists at all."""
    if not folder.is_dir() or not any(folder.iterdir()):
        return None
    names = folder / "conditions"
    remedy = f"Run stage {LISTS_STAGE} again."
    if not names.exists():
        raise InputError(
            "names the conditions of the lists, and is missing", path=names, remedy=remedy
        )
    conditions = read_conditions(folder)
    if not conditions:
        raise InputError("names no condition", path=names, remedy=remedy)
    places = {(s, c): folder / f"{s}_{c}" / "text" for s in sets for c in conditions}
    missing = [str(path) for path in places.values() if not path.exists()]
    if missing:
        raise InputError(
            f"names {', '.join(conditions)}, but there is no {', '.join(missing)}",
            path=names,
            remedy=f"Each of {', '.join(sets)} needs lists of each condition. {remedy}",
        )
    refs = {key: read_transcripts(path) for key, path in places.items()}
    return Lists(conditions, refs, folder)


def pooled(counts: Mapping[str, ErrorCounts]) -> Errors:
    """Errors of each condition, and of all of them together."""
    return {**counts, POOLED: sum(counts.values(), NO_WORDS)}


def list_errors(lists: Lists, name: str) -> Dict[str, Errors]:
    """Errors of a set's first pass, and the fewest that its lists allow (`oracle`)."""
    first, oracle = {}, {}
    for condition in lists.conditions:
        refs = lists.refs[name, condition]
        folder = lists.folder / f"{name}_{condition}"
        found = {item.utt: [h.words for h in item.hypotheses] for item in read_kaldi(folder)}
        check_same_utterances(refs, found, ref_path=folder / "text", hyp_path=folder)
        first[condition] = count_errors(refs, {utt: words[0] for utt, words in found.items()})
        oracle[condition] = oracle_errors(refs, found)
    return {"first_pass": pooled(first), "oracle": pooled(oracle)}


class Rescored:
    """The 1-best texts of the systems of one folder of experiments.

    Args:
        folder: The folder.
        lists: The references.
        sets: Names of the sets, that of the test set last.
    """

    def __init__(self, folder: Path, lists: Lists, sets: Sequence[str]):
        self.folder, self.lists, self.sets = folder, lists, list(sets)
        self._texts: Dict[Tuple[str, str], Dict[str, Texts]] = {}

    def is_complete(self, system: str) -> bool:
        """True if all texts of a system are there."""
        conditions = self.lists.conditions
        return all(self._path(system, s, c).exists() for s in self.sets for c in conditions)

    def errors(self, system: str) -> Dict[str, Errors]:
        """{set: errors} of a system."""
        found = {}
        for name in self.sets:
            texts = self._read(system, name)
            refs = self.lists.refs
            counts = {c: count_errors(refs[name, c], text) for c, text in texts.items()}
            found[name] = pooled(counts)
        return found

    def scored(self, systems: Sequence[str]) -> Dict[str, ScoredSet]:
        """{condition: systems scored on its test list}."""
        name = self.sets[-1]
        texts = {system: self._read(system, name) for system in systems}
        return {
            c: score_set(self.lists.refs[name, c], {key: text[c] for key, text in texts.items()})
            for c in self.lists.conditions
        }

    def test(self, system: str, other: str) -> Test:
        """MAPSSWE and a bootstrap interval of two systems on the pooled test lists."""
        scored = self.scored([other, system]).values()
        (pair,) = compare_systems(list(scored), num_replicates=NUM_REPLICATES).pairs
        test, interval = pair.test, pair.interval
        return Test(
            test.p,
            test.z,
            test.segments,
            better=test.b_is_better,
            worse=test.a_is_better,
            difference=100 * interval.difference,
            low=100 * interval.low,
            high=100 * interval.high,
        )

    def _path(self, system: str, name: str, condition: str) -> Path:
        return self.folder / "rescore" / system / f"{name}_{condition}" / "text"

    def _read(self, system: str, name: str) -> Dict[str, Texts]:
        """{condition: texts}; each file is read once."""
        if (system, name) not in self._texts:
            texts = {}
            for condition in self.lists.conditions:
                path = self._path(system, name, condition)
                texts[condition] = read_transcripts(path)
                refs = self.lists.refs[name, condition]
                ref_path = self.lists.folder / f"{name}_{condition}" / "text"
                check_same_utterances(refs, texts[condition], ref_path=ref_path, hyp_path=path)
            self._texts[system, name] = texts
        return self._texts[system, name]
