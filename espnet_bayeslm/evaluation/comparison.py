"""Several systems on one or many test sets: word errors, and tests between every pair."""

from __future__ import annotations

import dataclasses
import itertools
from collections import defaultdict
from typing import Dict, FrozenSet, List, Mapping, Sequence, Tuple

import numpy as np

from espnet_bayeslm.evaluation.alignment import align_all
from espnet_bayeslm.evaluation.bootstrap import (
    NUM_REPLICATES,
    WerDifference,
    difference_of_totals,
    replicate_totals,
)
from espnet_bayeslm.evaluation.mapsswe import Mapsswe, Segment, compare_segments, find_segments
from espnet_bayeslm.evaluation.wer import (
    NO_WORDS,
    ErrorCounts,
    Words,
    check_same_utterances,
    word_errors,
)


@dataclasses.dataclass(frozen=True)
class SystemPair:
    """Two systems compared."""

    a: str
    b: str
    test: Mapsswe
    interval: WerDifference
    identical: bool = False


@dataclasses.dataclass(frozen=True)
class Scores:
    """The results of all systems on a set, or on several sets pooled.

    Attributes:
        errors: Name -> word errors; more than the systems may be in it, such as an oracle.
        pairs: Every two systems, in the order in which they were given.
    """

    errors: Dict[str, ErrorCounts]
    pairs: List[SystemPair]


@dataclasses.dataclass(frozen=True)
class ScoredSet:
    """A test set with the errors of all systems, kept by utterance; sets can be pooled.

    Attributes:
        errors: System -> utterance id -> word errors.
        segments: (system, system) -> their segments, for every two systems.
        identical: Every two systems whose words are the same.
    """

    errors: Dict[str, Dict[str, ErrorCounts]]
    segments: Dict[Tuple[str, str], List[Segment]]
    identical: FrozenSet[Tuple[str, str]] = frozenset()


def score_set(refs: Mapping[str, Words], hyps: Mapping[str, Mapping[str, Words]]) -> ScoredSet:
    """Word errors of all systems and the segments of every two."""
    errors = {}
    for name, texts in hyps.items():
        check_same_utterances(refs, texts, hyp_path=name)
        errors[name] = {utt: word_errors(words, texts[utt]) for utt, words in refs.items()}
    pairs = list(itertools.combinations(hyps, 2))
    aligned = {name: align_all(refs, texts) for name, texts in hyps.items()} if pairs else {}
    segments = {(a, b): find_segments(aligned[a], aligned[b]) for a, b in pairs}
    same = frozenset((a, b) for a, b in pairs if hyps[a] == hyps[b])
    return ScoredSet(errors, segments, same)


def compare_systems(
    sets: Sequence[ScoredSet], *, num_replicates: int = NUM_REPLICATES, seed: int = 0
) -> Scores:
    """Results on one set, or on several pooled: errors add, segments are put together.

    An utterance id that is in several sets, as recorded by several microphones, is drawn as one
    by the bootstrap: its errors there do not come about independently. MAPSSWE takes its segments
    to be independent all the same.
    """
    names = list(sets[0].errors)
    by_utt: Dict[str, Dict[str, ErrorCounts]] = {n: defaultdict(lambda: NO_WORDS) for n in names}
    for name, part in itertools.product(names, sets):
        for utt, counts in part.errors[name].items():
            by_utt[name][utt] += counts
    totals = {name: sum(by_utt[name].values(), NO_WORDS) for name in names}
    if len(names) < 2:
        return Scores(totals, [])
    # sorted, so that the replicates do not depend on the order of a file
    utts = sorted(by_utt[names[0]])
    table = np.array(
        [[(by_utt[name][utt].errors, by_utt[name][utt].words) for name in names] for utt in utts]
    )
    # (utterances, systems, 2) -> (replicates, systems, 2)
    drawn = replicate_totals(
        table.reshape(len(utts), -1), num_replicates=num_replicates, seed=seed
    ).reshape(-1, len(names), 2)
    pairs = []
    for (i, a), (j, b) in itertools.combinations(enumerate(names), 2):
        both = table[:, [i, j]].sum(axis=0).ravel()
        interval = difference_of_totals(both, drawn[:, [i, j]].reshape(-1, 4))
        segments = itertools.chain.from_iterable(part.segments[a, b] for part in sets)
        identical = all((a, b) in part.identical for part in sets)
        pairs.append(SystemPair(a, b, compare_segments(segments), interval, identical))
    return Scores(totals, pairs)
