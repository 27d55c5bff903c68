"""Architectures of a super-network: their ranking, configurations, and weights over a training.

A super-network has at each location an architecture weight (a logit) for each candidate kind. The
share of a kind is the softmax of the weights. The probability of an architecture is the product of
the shares of its kinds over the locations (Xue et al. 2022, IV-B). `architecture.jsonl` has the
weights in lines `{"epoch": 1.25, "weights": {"cell_input@1": {"point": 0.1, ...}}}`.
"""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np
from espnet2.utils.yaml_no_alias_safe_dump import yaml_no_alias_safe_dump
from torch import nn

from espnet_bayeslm.bayes.base_kinds import KINDS
from espnet_bayeslm.kinds.search import Search, architecture_weights
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike, atomic_write, read_lines
from espnet_bayeslm.utils.log import LOG

HISTORY = "architecture.jsonl"
# At most so many records an epoch.
RECORDS = 50
# Location -> kind -> architecture weight, a logit.
ArchitectureWeights = Mapping[str, Mapping[str, float]]
# Training epochs done, not whole within one, and the architecture weights then.
Record = Tuple[float, ArchitectureWeights]
# Location -> kind -> the options that the search gave this candidate.
CandidateOptions = Mapping[str, Mapping[str, Mapping[str, Any]]]


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
    found = {}
    for location, by_kind in weights.items():
        values = np.array(list(by_kind.values()), dtype=float)
        if not np.isfinite(values.max()):
            raise InputError(f"the weights of {location} have no softmax: {dict(by_kind)}")
        values -= values.max()
        # its log1p keeps how far a share next to 1 is from it
        values -= np.logaddexp.reduce(values)
        found[location] = dict(zip(by_kind, values.tolist(), strict=True))
    return found


def is_search(value: Any) -> bool:
    """True if a value of `uncertainty:` is a search."""
    return (value.get("kind") if isinstance(value, Mapping) else value) == Search.name


def check_searched(uncertainty: Any, *, path: Optional[PathLike] = None) -> Mapping[str, Any]:
    """Check that a configuration's `uncertainty:` has a search, and return it."""
    if not isinstance(uncertainty, Mapping) or not any(map(is_search, uncertainty.values())):
        raise InputError(
            "empty search space: no location of lm_conf's `uncertainty` is of kind search",
            path=path,
            remedy="Give one, as `cell_input@1-2: {kind: search, candidates: [point, bayes]}`.",
        )
    return uncertainty


def uncertainty_of(
    choices: Mapping[str, str], options: Optional[CandidateOptions] = None
) -> Dict[str, Any]:
    """`uncertainty:` of an ordinary configuration, {POSITION@LAYERS: kind}, from {location: kind}.

    Positions stand as they come first in `choices`; layers of one position with one kind and the
    same options stand together; point estimates are left out.
    """
    positions = [location.partition("@")[0] for location in choices]
    groups: Dict[Tuple[str, str], Tuple[Any, List[str]]] = {}
    for location in sorted(choices, key=lambda name: positions.index(name.partition("@")[0])):
        kind = choices[location]
        if kind in KINDS and not KINDS[kind].is_uncertain:
            continue
        given = (options or {}).get(location, {}).get(kind, {})
        value = {"kind": kind, **given} if given else kind
        position, _, layer = location.partition("@")
        # repr: options may be lists, which no dictionary takes as its keys
        _, layers = groups.setdefault((position, repr(value)), (value, []))
        layers.append(layer)
    return {_entry(position, layers): value for (position, _), (value, layers) in groups.items()}


def _entry(position: str, layers: Sequence[str]) -> str:
    """POSITION@LAYERS with the layers as `1-2,6`, or the position where it has no layers."""
    spans: List[List[int]] = []
    for number in sorted(int(layer) for layer in layers if layer):
        if spans and spans[-1][1] + 1 == number:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    text = ",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in spans)
    return f"{position}@{text}" if text else position


def derived_config(
    search_config: Mapping[str, Any],
    choices: Mapping[str, str],
    options: Optional[CandidateOptions] = None,
) -> Dict[str, Any]:
    """Training configuration of one architecture of a search, {location: kind}.

    The choice replaces the search in `uncertainty`. The prior is always given: `bayeslm train
    --from` would take the super-network as the prior where the configuration has none.
    """
    config = dict(search_config)
    lm_conf = config.get("lm_conf") or {}
    uncertainty: Dict[str, Any] = {}
    for entry, value in check_searched(lm_conf.get("uncertainty")).items():
        # the choice comes where the first search stood
        uncertainty.update(uncertainty_of(choices, options) if is_search(value) else {entry: value})
    config["lm_conf"] = {**lm_conf, "uncertainty": uncertainty}
    model_conf = {"prior": None, **(config.get("model_conf") or {})}
    model_conf.pop("architecture_lr", None)
    config["model_conf"] = model_conf
    return config


def architecture_yaml(config: Mapping[str, Any], header: Sequence[str]) -> str:
    """Training configuration as yaml."""
    comment = "".join(f"# {line}".rstrip() + "\n" for line in header)
    body = yaml_no_alias_safe_dump(config, sort_keys=False, indent=4)
    return comment + body


class ArchitectureLog:
    """The architecture weights of an LM after each training step since the last `take`."""

    def __init__(self, lm: nn.Module):
        self.lm = lm
        self.steps: List[ArchitectureWeights] = []

    def add(self) -> None:
        """Keep the weights as they are now."""
        weights = architecture_weights(self.lm)
        if weights:
            self.steps.append(weights)

    def take(self) -> List[Record]:
        """Pairs (share of the steps done, weights), evenly thinned out; the steps are forgotten."""
        self.add()
        steps, self.steps = self.steps, []
        if not steps:
            return []
        last = max(len(steps) - 1, 1)
        chosen = sorted({round(k * last / RECORDS) for k in range(1, RECORDS + 1)} - {0})
        return [(n / last, steps[min(n, len(steps) - 1)]) for n in chosen]


def write_history(folder: Path, epoch: int, records: List[Record]) -> None:
    """Add an epoch to the history in a folder, and log its last weights.

    An epoch that a kill undid is replaced.
    """
    for location, by_kind in shares(records[-1][1]).items():
        paths = [f"{kind} {share:.3f}" for kind, share in by_kind.items()]
        LOG.info(f"Epoch {epoch}: {location}: {', '.join(paths)}")
    path = folder / HISTORY
    before = [line for _, line in read_lines(path)] if path.exists() and epoch > 1 else []
    kept = [line for line in before if json.loads(line)["epoch"] <= epoch - 1]
    new = [
        json.dumps({"epoch": round(epoch - 1 + share, 4), "weights": weights})
        for share, weights in records
    ]
    with atomic_write(path) as f:
        f.writelines(f"{line}\n" for line in (*kept, *new))


def read_history(path: PathLike) -> List[Record]:
    """Architecture weights that a training run wrote down, in the order of time."""
    records: List[Record] = []
    first: List[Any] = []
    for number, line in read_lines(path):
        try:
            content = json.loads(line)
            records.append((float(content["epoch"]), content["weights"]))
            shares(content["weights"])
            names = sorted((location, *kinds) for location, kinds in content["weights"].items())
            first = first or names
            if names != first:
                raise ValueError("other locations or kinds than in line 1")
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise InputError(
                'expected {"epoch": NUMBER, "weights": {LOCATION: {KIND: NUMBER}}},'
                f" got {line[:80]!r} ({error})",
                path=path,
                line=number,
                remedy="Delete the line.",
            ) from error
    return records
