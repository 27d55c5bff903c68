"""Architecture weights over a training, as `architecture.jsonl` has them."""

from __future__ import annotations

import json
import math
from typing import Any, Dict, List, Tuple

from espnet_bayeslm.supernet.ranking import ArchitectureWeights, shares
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike, read_lines

HISTORY = "architecture.jsonl"
# Training epochs done, not whole within one, and the architecture weights then.
Record = Tuple[float, ArchitectureWeights]


def read_history(path: PathLike) -> List[Record]:
    """Architecture weights that a training run wrote down, in the order of time.

    Args:
        path: Lines `{"epoch": 1.25, "weights": {"cell_input@1": {"point": 0.1, "bayes": 0}}}`.
            A run that went on after a stop may have repeated some: the later ones hold.

    Raises:
        InputError: A line of another form, or other locations or kinds than in the first.
    """
    records: List[Record] = []
    for number, line in read_lines(path):
        epoch, weights = record = _parse_record(line, path=path, number=number)
        if records and _names(weights) != _names(records[0][1]):
            raise InputError("other locations or kinds than in line 1", path=path, line=number)
        while records and records[-1][0] >= epoch:
            records.pop()
        records.append(record)
    return records


def _parse_record(line: str, *, path: PathLike, number: int) -> Record:
    """Line of a history."""
    try:
        content = json.loads(line)
        epoch, given = content["epoch"], content["weights"]
        weights = {
            location: {kind: _number(value) for kind, value in kinds.items()}
            for location, kinds in given.items()
        }
        shares(weights)
        return _number(epoch), weights
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InputError(
            'expected {"epoch": NUMBER, "weights": {LOCATION: {KIND: NUMBER}}},'
            f" got {line[:80]!r} ({error})",
            path=path,
            line=number,
            remedy="Delete the line.",
        ) from error


def _number(value: Any) -> float:
    """JSON number; a ValueError for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or math.isnan(value):
        raise ValueError(f"{value!r} is no number")
    return float(value)


def _names(weights: ArchitectureWeights) -> Dict[str, List[str]]:
    """{location: its kinds}."""
    return {location: list(kinds) for location, kinds in weights.items()}
