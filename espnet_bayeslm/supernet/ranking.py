"""The most probable architectures of a super-network, best first.

A super-network has at each location l a weight (logit) for each candidate kind; the kind's share
is the softmax of the weights, and an architecture's probability the product over the locations of
the shares of the kinds that it takes (Xue et al. 2022, IV-B).
"""

from __future__ import annotations

import dataclasses
import heapq
import itertools
import math
from fractions import Fraction
from typing import Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from espnet_bayeslm.utils.errors import InputError

# Location -> kind -> architecture weight, a logit.
ArchitectureWeights = Mapping[str, Mapping[str, float]]

# Where an architecture differs from the best one: (location, place of its candidate, and so on
# for the locations before it). Shared tails keep the search's memory small.
_Changes = Tuple


@dataclasses.dataclass(frozen=True)
class Architecture:
    """One kind for each location.

    Attributes:
        choices: Location -> kind, in the order of the weights.
        log_prob: ln of its probability; minus infinity where that is 0.
    """

    choices: Dict[str, str]
    log_prob: float


@dataclasses.dataclass(frozen=True)
class RankedArchitecture:
    """An architecture under one or more runs (seeds) of a search.

    Attributes:
        choices: Location -> kind, in the order of the weights.
        mean_log_prob: Mean over the runs of ln of its probability.
        log_probs: ln of its probability under each run.
        ranks: Its place under each run, from 1; None: beyond the limit.
        mean_rank: Their mean; None where one is None.
    """

    choices: Dict[str, str]
    mean_log_prob: float
    log_probs: Tuple[float, ...]
    ranks: Tuple[Optional[int], ...]
    mean_rank: Optional[float]


class _Location(NamedTuple):
    """What there is to choose at a location: candidates, the most probable first."""

    number: int
    candidates: Tuple[int, ...]
    log_probs: Tuple[float, ...]

    @property
    def gap(self) -> Tuple[bool, Fraction]:
        """What the second candidate costs, without rounding; first whether it has no end."""
        best, second = self.log_probs[:2]
        if second == -math.inf:
            return True, Fraction(0)
        return False, Fraction(best) - Fraction(second)


def shares(weights: ArchitectureWeights) -> Dict[str, Dict[str, float]]:
    """Softmax of each location's weights.

    Raises:
        InputError: There is no location, or weights have no softmax.
    """
    logs = _log_shares(weights)
    return {
        location: {kind: math.exp(value) for kind, value in values.items()}
        for location, values in logs.items()
    }


def num_architectures(weights: ArchitectureWeights) -> int:
    """Number of architectures to choose from."""
    return math.prod(map(len, weights.values()))


def architectures(weights: ArchitectureWeights) -> Iterator[Architecture]:
    """Yield all architectures in the order of falling probability, each when it is asked for.

    The first N cost O(N (locations + ln N)) time and O(N + locations) memory. The order is exact:
    by the sum over locations of ln of the shares, rounded once. Where sums are equal it is that
    of a counter: a location is a digit, its kinds by falling share (equal ones as listed) are
    the digit's values, and the locations whose second kind costs least turn fastest (of equal
    ones the last).

    Args:
        weights: Location -> kind -> weight; minus infinity is a share of 0.

    Raises:
        InputError: There is no location, a location has no candidate, or weights have no
            softmax (one is nan or plus infinity, or all are minus infinity).
    """
    # Here and not at the first architecture, where an error would come late.
    logs = _log_shares(weights)
    tables = [list(values.values()) for values in logs.values()]
    return (Architecture(_named(weights, taken), total) for total, taken in _best_first(tables))


def rank(
    runs: Sequence[ArchitectureWeights], top: int, *, limit: int = 20_000
) -> List[RankedArchitecture]:
    """Architectures that are the most probable over several runs (seeds), best first.

    Their order is that of `architectures`, with each share's mean of ln over the runs.

    Args:
        runs: The weights of each run.
        top: How many; all where there are fewer.
        limit: How far an architecture is looked for in the order of each run.

    Raises:
        InputError: `top` is below 1, there is no run, the runs have not the same locations and
            candidates, or weights are none (see `architectures`).
    """
    if top < 1:
        raise InputError(f"the best {top} architectures: expected 1 or more")
    logs = _check_same([_log_shares(weights) for weights in runs])
    tables = [[list(values.values()) for values in run.values()] for run in logs]
    means = [
        [math.fsum(values) / len(runs) for values in zip(*location, strict=True)]
        for location in zip(*tables, strict=True)
    ]
    best = list(itertools.islice(_best_first(means), top))
    places = _places(tables, [taken for _, taken in best], limit=limit)
    return [
        _ranked(_named(runs[0], taken), total, [_sum(table, taken) for table in tables], ranks)
        for (total, taken), ranks in zip(best, places, strict=True)
    ]


def _ranked(
    choices: Dict[str, str],
    mean_log_prob: float,
    log_probs: Sequence[float],
    ranks: Sequence[Optional[int]],
) -> RankedArchitecture:
    """Architecture with the mean of its ranks."""
    known = [value for value in ranks if value is not None]
    mean_rank = sum(known) / len(ranks) if len(known) == len(ranks) else None
    return RankedArchitecture(choices, mean_log_prob, tuple(log_probs), tuple(ranks), mean_rank)


def _places(
    tables: Sequence[Sequence[Sequence[float]]], wanted: Sequence[Tuple[int, ...]], *, limit: int
) -> List[List[Optional[int]]]:
    """Place of each wanted architecture in the order of each run."""
    if len(tables) == 1:
        return [[place] for place in range(1, len(wanted) + 1)]
    places: Dict[Tuple[int, ...], List[Optional[int]]] = {taken: [] for taken in wanted}
    for table in tables:
        missing = set(wanted)
        for place, (_, taken) in enumerate(itertools.islice(_best_first(table), limit), 1):
            if taken in missing:
                missing.remove(taken)
                places[taken].append(place)
                if not missing:
                    break
        for taken in missing:
            places[taken].append(None)
    return [places[taken] for taken in wanted]


def _named(weights: ArchitectureWeights, taken: Sequence[int]) -> Dict[str, str]:
    """{location: kind} of the candidates that are taken."""
    return {
        location: list(candidates)[index]
        for (location, candidates), index in zip(weights.items(), taken, strict=True)
    }


def _log_shares(weights: ArchitectureWeights) -> Dict[str, Dict[str, float]]:
    """Ln of the softmax of each location's weights."""
    if not weights:
        raise InputError(
            "empty search space: there is no location to search",
            remedy="Give `uncertainty` a location of kind search.",
        )
    return {location: _log_softmax(location, values) for location, values in weights.items()}


def _log_softmax(location: str, weights: Mapping[str, float]) -> Dict[str, float]:
    """Ln of the softmax of a location's weights."""
    if not weights:
        raise InputError(f"empty search space: {location} has no candidates")
    values = list(weights.values())
    highest = max(values)
    if any(map(math.isnan, values)) or math.isinf(highest):
        raise InputError(f"the weights of {location} have no softmax: {dict(weights)}")
    # The highest apart: ln(1 + x) keeps what a share next to 1 lacks.
    first = values.index(highest)
    rest = math.fsum(math.exp(v - highest) for i, v in enumerate(values) if i != first)
    return {kind: (value - highest) - math.log1p(rest) for kind, value in weights.items()}


def _check_same(runs: List[Dict[str, Dict[str, float]]]) -> List[Dict[str, Dict[str, float]]]:
    """Runs, each in the order of the first."""
    if not runs:
        raise InputError("no run of the search to rank")
    first = runs[0]
    for number, run in enumerate(runs[1:], 2):
        for location in [*first, *run]:
            kinds, others = (sorted(r.get(location, ())) for r in (first, run))
            if kinds != others:
                raise InputError(
                    f"run {number} has the candidates {others} at {location}, run 1 {kinds}",
                    remedy="Rank runs of one search space together.",
                )
    return [
        {name: {k: run[name][k] for k in kinds} for name, kinds in first.items()} for run in runs
    ]


def _sum(table: Sequence[Sequence[float]], taken: Sequence[int]) -> float:
    """Sum of the values that are taken, rounded once."""
    return math.fsum(values[index] for values, index in zip(table, taken, strict=True))


def _best_first(table: Sequence[Sequence[float]]) -> Iterator[Tuple[float, Tuple[int, ...]]]:
    """Yield (sum, index of the value taken in each row) of all choices, by falling sum.

    Each choice but the first has one parent, which is at least as good: of the last row r where
    it differs from the best, either the value before it there (if that is not the best), or the
    best there, or row r - 1 in its place (where only r - 1 has its best again). So every choice
    is met once, from its parent. Rows are sorted by what their second value costs; that makes the
    step from row r - 1 to r one down. Equal sums are in the order of the changes, which no step
    down turns around either.

    Args:
        table: Values, rows of any lengths of at least 1; none is nan.
    """
    order = [_sorted_row(number, row) for number, row in enumerate(table)]
    rows = sorted(
        (row for row in reversed(order) if len(row.candidates) > 1), key=lambda row: row.gap
    )
    best = [row.log_probs[0] for row in order]
    heap: List[Tuple[float, _Changes]] = [(-math.fsum(best), ())]
    while heap:
        cost, changes = heapq.heappop(heap)
        yield -cost, _taken(order, rows, changes)
        for successor in _successors(rows, changes):
            heapq.heappush(heap, (-_changed_sum(best, rows, successor), successor))


def _sorted_row(number: int, values: Sequence[float]) -> _Location:
    """A row's values by falling size, equal ones as they stand."""
    candidates = sorted(range(len(values)), key=lambda k: -values[k])
    return _Location(number, tuple(candidates), tuple(values[k] for k in candidates))


def _successors(rows: Sequence[_Location], changes: _Changes) -> Iterator[_Changes]:
    """Yield the choices whose parent this is."""
    last, place, before = changes or (-1, 0, ())
    if changes and place + 1 < len(rows[last].candidates):
        yield last, place + 1, before
    if last + 1 < len(rows):
        yield last + 1, 1, changes
        if place == 1:
            yield last + 1, 1, before


def _changed_sum(best: Sequence[float], rows: Sequence[_Location], changes: _Changes) -> float:
    """Sum of the best values with the changes made."""
    values = list(best)
    while changes:
        row, place, changes = changes
        values[rows[row].number] = rows[row].log_probs[place]
    return math.fsum(values)


def _taken(
    order: Sequence[_Location], rows: Sequence[_Location], changes: _Changes
) -> Tuple[int, ...]:
    """Index of the value taken in each row of the table."""
    taken = [row.candidates[0] for row in order]
    while changes:
        row, place, changes = changes
        taken[rows[row].number] = rows[row].candidates[place]
    return tuple(taken)
