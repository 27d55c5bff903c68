"""The most probable architectures of a super-network, best first.

A super-network has at each location an architecture weight (a logit) for each candidate kind. The
share of a kind is the softmax of the weights. The probability of an architecture is the product of
the shares of its kinds over the locations (Xue et al. 2022, IV-B).
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from espnet_bayeslm.utils.errors import InputError

# Location -> kind -> architecture weight, a logit.
ArchitectureWeights = Mapping[str, Mapping[str, float]]
# Training epochs done, not whole within one, and the architecture weights then.
Record = Tuple[float, ArchitectureWeights]


@dataclasses.dataclass(frozen=True)
class Run:
    """A super-network that was trained: one run (seed) of a search.

    Attributes:
        name: Name in tables and figures.
        path: Experiment folder.
        seed: ESPnet's seed of the training.
        weights: Architecture weights after the last epoch.
        history: The weights over the training; empty where they were not written down.
        config: Training configuration, as a file of conf/ has it.
        options: Location -> kind -> the options of this candidate.
    """

    name: str
    path: str
    seed: int
    weights: ArchitectureWeights
    history: Sequence[Record] = ()
    config: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class RankedArchitecture:
    """An architecture, one kind for each location, under one or more runs of a search.

    Attributes:
        choices: Location -> kind, in the order of the weights.
        mean_log_prob: Mean over the runs of ln of its probability; minus infinity where that is 0.
        log_probs: Ln of its probability under each run.
        ranks: Rank under each run, from 1; None beyond the limit.
    """

    choices: Dict[str, str]
    mean_log_prob: float
    log_probs: Tuple[float, ...]
    ranks: Tuple[Optional[int], ...]

    @property
    def mean_rank(self) -> Optional[float]:
        """Mean of the ranks, or None if a rank is None."""
        known = [rank for rank in self.ranks if rank is not None]
        return sum(known) / len(known) if len(known) == len(self.ranks) else None

    @property
    def best_run(self) -> int:
        """Number of the run, from 0, in which the architecture is the most probable."""
        return self.log_probs.index(max(self.log_probs))


def _check_same(runs: Sequence[ArchitectureWeights]) -> None:
    """Check that there are runs, all of one search space."""
    if not runs:
        raise InputError("no run of the search to rank")
    for number, run in enumerate(runs[1:], 2):
        for location in [*runs[0], *run]:
            kinds, others = (sorted(r.get(location, ())) for r in (runs[0], run))
            if kinds != others:
                raise InputError(
                    f"run {number} has the candidates {others} at {location}, run 1 {kinds}",
                    remedy="Rank runs of one search space together.",
                )


def num_architectures(weights: ArchitectureWeights) -> int:
    """Number of architectures to choose from."""
    return math.prod(map(len, weights.values()))


def shares(weights: ArchitectureWeights) -> Dict[str, Dict[str, float]]:
    """Softmax of each location's weights."""
    return {
        location: {kind: math.exp(value) for kind, value in values.items()}
        for location, values in _log_shares(weights).items()
    }


def rank(
    runs: Sequence[ArchitectureWeights], top: int, *, limit: int = 20_000
) -> List[RankedArchitecture]:
    """Architectures with the highest mean log-probability over runs of one search space.

    The list is exact up to float64 rounding. Equally probable architectures stand in the order of
    the locations and of their kinds. A weight of minus infinity is a share of 0. A rank is looked
    for among the best `limit` architectures of each run.
    """
    if top < 1:
        raise InputError(f"the best {top} architectures: expected 1 or more")
    _check_same(runs)
    first, *_ = logs = [_log_shares(weights) for weights in runs]
    tables = [
        [np.array([run[location][kind] for kind in kinds]) for location, kinds in first.items()]
        for run in logs
    ]
    totals, taken = _best([np.mean(rows, axis=0) for rows in zip(*tables, strict=True)], top)
    orders = [_best(table, limit)[1] for table in tables] if len(runs) > 1 else [taken]
    log_probs = [
        sum(row[places] for row, places in zip(table, taken.T, strict=True)) for table in tables
    ]
    kinds = [list(row) for row in first.values()]
    chosen = [
        [row[place] for row, place in zip(kinds, places, strict=True)] for places in taken.tolist()
    ]
    return [
        RankedArchitecture(
            dict(zip(first, chosen[n], strict=True)),
            total,
            tuple(float(values[n]) for values in log_probs),
            tuple(_place(order, taken[n]) for order in orders),
        )
        for n, total in enumerate(totals.tolist())
    ]


def _best(table: Sequence[np.ndarray], count: int) -> Tuple[np.ndarray, np.ndarray]:
    """The N = `count` greatest sums of one value of each of R rows, best first; fewer if there are.

    After each row only the `count` best beginnings are kept: a better beginning has the better sum
    with every continuation.

    Returns:
        The sums (N,), and the place in each row of the value taken (N, R).
    """
    totals, taken = np.zeros(1), np.zeros((1, 0), dtype=int)
    for row in table:
        sums = np.add.outer(totals, row).ravel()
        order = np.argsort(-sums, kind="stable")[:count]
        totals = sums[order]
        taken = np.column_stack([taken[order // len(row)], order % len(row)])
    return totals, taken


def _place(order: np.ndarray, wanted: np.ndarray) -> Optional[int]:
    """Place, from 1, of an architecture (R,) in an order of architectures (N, R), if any."""
    found = np.flatnonzero((order == wanted).all(axis=1))
    return int(found[0]) + 1 if len(found) else None


def _log_shares(weights: ArchitectureWeights) -> Dict[str, Dict[str, float]]:
    """Ln of the softmax of each location's weights."""
    return {location: _log_softmax(location, values) for location, values in weights.items()}


def _log_softmax(location: str, weights: Mapping[str, float]) -> Dict[str, float]:
    """Ln of the softmax of a location's weights."""
    values = list(weights.values())
    highest = max(values)
    if any(map(math.isnan, values)) or math.isinf(highest):
        raise InputError(f"the weights of {location} have no softmax: {dict(weights)}")
    # The highest apart: ln(1 + x) keeps how far a share next to 1 is from it.
    first = values.index(highest)
    rest = math.fsum(math.exp(v - highest) for i, v in enumerate(values) if i != first)
    return {kind: (value - highest) - math.log1p(rest) for kind, value in weights.items()}
