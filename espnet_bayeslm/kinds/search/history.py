"""Architecture weights over a training: kept while it runs, written to and read from a file.

`architecture.jsonl` has lines `{"epoch": 1.25, "weights": {"cell_input@1": {"point": 0.1, ...}}}`.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Dict, List

import torch
from torch import nn

from espnet_bayeslm.kinds.search.kind import choices
from espnet_bayeslm.kinds.search.ranking import ArchitectureWeights, Record, shares
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike, atomic_write, read_lines

HISTORY = "architecture.jsonl"
# At most so many records an epoch.
RECORDS = 50


class ArchitectureLog:
    """The architecture weights of an LM after each training step since the last `take`."""

    def __init__(self, lm: nn.Module):
        self.lm = lm
        self.steps: List[torch.Tensor] = []

    def add(self) -> None:
        """Keep the weights as they are now."""
        weights = [choice.weights.detach() for _, choice in choices(self.lm)]
        if weights:
            self.steps.append(torch.cat(weights))

    def take(self) -> List[Record]:
        """Pairs (share of the steps done, weights), evenly thinned out; the steps are forgotten."""
        self.add()
        steps, self.steps = self.steps, []
        if not steps:
            return []
        last = max(len(steps) - 1, 1)
        chosen = sorted({round(k * last / RECORDS) for k in range(1, RECORDS + 1)} - {0})
        return [(n / last, self._named(steps[min(n, len(steps) - 1)].tolist())) for n in chosen]

    def _named(self, values: List[float]) -> Dict[str, Dict[str, float]]:
        """{location: {kind: weight}}."""
        left = iter(values)
        return {
            location: {kind: next(left) for kind in choice.kinds}
            for location, choice in choices(self.lm)
        }


def write_history(folder: Path, epoch: int, records: List[Record]) -> None:
    """Add an epoch to the history in a folder, and log its last weights.

    An epoch that a kill undid is replaced.
    """
    for location, by_kind in shares(records[-1][1]).items():
        paths = [f"{kind} {share:.3f}" for kind, share in by_kind.items()]
        logging.info(f"Epoch {epoch}: {location}: {', '.join(paths)}")
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
    for number, line in read_lines(path):
        try:
            content = json.loads(line)
            records.append((float(content["epoch"]), content["weights"]))
            shares(content["weights"])
            if _names(content["weights"]) != _names(records[0][1]):
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


def _names(weights: ArchitectureWeights) -> Dict[str, List[str]]:
    """{location: its kinds}."""
    return {location: list(kinds) for location, kinds in weights.items()}
