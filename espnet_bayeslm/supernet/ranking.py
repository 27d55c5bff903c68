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
from typing import Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from espnet_bayeslm.utils.errors import InputError

# Location -> kind -> architecture weight, a logit.
ArchitectureWeights = Mapping[str, Mapping[str, float]]
# Ln of the shares, a row for each location.
Table = Sequence[Sequence[float]]
# In each row of a table the number of the value that is taken.
Taken = Tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class RankedArchitecture:
    """An architecture, one kind for each location, under one or more runs (seeds) of a search.

    Attributes:
        choices: Location -> kind, in the order of the weights.
        mean_log_prob: Mean over the runs of ln of its probability; minus infinity where that is 0.
        log_probs: ln of its probability under each run.
        ranks: Its place under each run, from 1; None: beyond the limit.
    """

    choices: Dict[str, str]
    mean_log_prob: float
    log_probs: Tuple[float, ...]
    ranks: Tuple[Optional[int], ...]

    @property
    def mean_rank(self) -> Optional[float]:
        """The mean of its ranks; None where one is None."""
        known = [rank for rank in self.ranks if rank is not None]
        return sum(known) / len(known) if len(known) == len(self.ranks) else None


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


def rank(
    runs: Sequence[ArchitectureWeights], top: int, *, limit: int = 20_000
) -> List[RankedArchitecture]:
    """Architectures that are the most probable over several runs (seeds), best first.

    The order is exact: by the sum over locations of the mean over runs of ln of the shares, rounded
    once. Where sums are equal it is that of a counter: a location is a digit, its kinds by falling
    share (equal ones as listed) are the digit's values, and the locations whose second kind costs
    least turn fastest (of equal ones the last). A minus infinity as a weight is a share of 0.

    Args:
        runs: The weights of each run.
        top: How many; all where there are fewer.
        limit: How far an architecture is looked for in the order of each run, of several.

    Raises:
        InputError: `top` is below 1, there is no run, the runs have not the same locations and
            candidates, there is no location, a location has no candidate, or weights have no
            softmax (one is nan or plus infinity, or all are minus infinity).
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
    taken = [choice for _, choice in best]
    several = len(tables) > 1
    places = [_places(t, taken, limit) if several else range(1, len(best) + 1) for t in tables]
    return [
        RankedArchitecture(
            {
                location: list(candidates)[index]
                for (location, candidates), index in zip(runs[0].items(), choice, strict=True)
            },
            total,
            tuple(_sum(table, choice) for table in tables),
            ranks,
        )
        for (total, choice), ranks in zip(best, zip(*places, strict=True), strict=True)
    ]


def _places(table: Table, wanted: Sequence[Taken], limit: int) -> List[Optional[int]]:
    """Place of each wanted architecture in the order of a run."""
    known: Dict[Taken, int] = {}
    missing = set(wanted)
    for place, (_, taken) in enumerate(itertools.islice(_best_first(table), limit), 1):
        if taken in missing:
            known[taken] = place
            missing.remove(taken)
            if not missing:
                break
    return [known.get(taken) for taken in wanted]


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


def _sum(table: Table, taken: Taken) -> float:
    """Sum of the values that are taken, rounded once."""
    return math.fsum(values[index] for values, index in zip(table, taken, strict=True))


def _best_first(table: Table) -> Iterator[Tuple[float, Taken]]:
    """Yield (sum, the values taken) of all choices, by falling sum, each when it is asked for.

    A choice is kept as the places of its values in its rows, each row by falling value and the rows
    by what their second value costs, the dearest first. Each choice but the first has one parent,
    which is at least as good: of the first row r that has not its best value, either the value
    before it there (if that is not the best), or the best there, or row r + 1 in its place (where
    only r + 1 has its best again: that makes the step from row r + 1 to r one down). So every
    choice is met once, from its parent. Places of equal sums compare as numbers do, which no step
    down turns around either.

    Args:
        table: Values, rows of any lengths of at least 1; none is nan.
    """
    order = [sorted(range(len(row)), key=row.__getitem__, reverse=True) for row in table]
    several = [number for number, row in enumerate(table) if len(row) > 1]
    rows = sorted(several, key=lambda number: _gap(table[number]), reverse=True)

    def entry(places: Tuple[int, ...]) -> Tuple[float, Tuple[int, ...], Taken]:
        taken = [candidates[0] for candidates in order]
        for number, place in zip(rows, places, strict=True):
            taken[number] = order[number][place]
        return -_sum(table, tuple(taken)), places, tuple(taken)

    heap = [entry((0,) * len(rows))]
    while heap:
        cost, places, taken = heapq.heappop(heap)
        yield -cost, taken
        r = next((k for k, place in enumerate(places) if place), len(places))
        if r < len(places) and places[r] + 1 < len(table[rows[r]]):
            heapq.heappush(heap, entry((*places[:r], places[r] + 1, *places[r + 1 :])))
        if r > 0:
            heapq.heappush(heap, entry((*places[: r - 1], 1, *places[r:])))
            if r < len(places) and places[r] == 1:
                heapq.heappush(heap, entry((*places[: r - 1], 1, 0, *places[r + 1 :])))


def _gap(row: Sequence[float]) -> Tuple[bool, Fraction]:
    """What the second value costs, without rounding; first whether it has no end."""
    second, best = sorted(row)[-2:]
    if second == -math.inf:
        return True, Fraction(0)
    return False, Fraction(best) - Fraction(second)
