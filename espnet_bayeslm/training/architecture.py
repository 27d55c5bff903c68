"""Architecture weights in a training: how they are kept, written and shown while it runs."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any, Dict, List, Tuple

import torch

from espnet_bayeslm.lm import UncertainLM
from espnet_bayeslm.supernet import choices
from espnet_bayeslm.supernet.history import HISTORY
from espnet_bayeslm.utils.files import atomic_write, read_lines

# At most so many records an epoch.
RECORDS = 50

Weights = Dict[str, Dict[str, float]]


class ArchitectureLog:
    """The architecture weights after each training step since the last `take`.

    Args:
        lm: The LM; without a search nothing is kept.
    """

    def __init__(self, lm: UncertainLM):
        self.lm = lm
        self.steps: List[torch.Tensor] = []

    def add(self) -> None:
        """Keep the weights as they are now."""
        weights = [choice.weights.detach() for _, choice in choices(self.lm)]
        if weights:
            self.steps.append(torch.cat(weights))

    def take(self) -> List[Tuple[float, Weights]]:
        """Pairs (share of the steps done, weights), evenly thinned out; the steps are forgotten."""
        self.add()
        steps, self.steps = self.steps, []
        if not steps:
            return []
        last = max(len(steps) - 1, 1)
        chosen = sorted({round(k * last / RECORDS) for k in range(1, RECORDS + 1)} - {0})
        return [(n / last, self._named(steps[min(n, len(steps) - 1)].tolist())) for n in chosen]

    def _named(self, values: List[float]) -> Weights:
        """{location: {kind: weight}}."""
        left = iter(values)
        return {
            location: {kind: next(left) for kind in choice.kinds}
            for location, choice in choices(self.lm)
        }


def write_history(folder: Path, epoch: int, records: List[Tuple[float, Weights]]) -> None:
    """Add an epoch to `architecture.jsonl`; an epoch that a kill undid is replaced."""
    path = folder / HISTORY
    before = [line for _, line in read_lines(path)] if path.exists() and epoch > 1 else []
    kept = [line for line in before if json.loads(line)["epoch"] <= epoch - 1]
    new = [
        json.dumps({"epoch": round(epoch - 1 + share, 4), "weights": weights})
        for share, weights in records
    ]
    with atomic_write(path) as f:
        f.writelines(f"{line}\n" for line in (*kept, *new))


def show(
    records: List[Tuple[float, Weights]], summary_writer: Any, *, epoch: int, first: int, last: int
) -> None:
    """Write an epoch's architecture weights to TensorBoard and the last ones to the log.

    Args:
        records: As `ArchitectureLog.take` returns them.
        summary_writer: TensorBoard's, or None.
        epoch: The epoch, from 1.
        first: Training steps before it.
        last: Training steps after it.
    """
    for share, weights in records if summary_writer is not None else ():
        step = first + round(share * (last - first))
        for location, of_location in weights.items():
            for kind, value in of_location.items():
                summary_writer.add_scalar(f"architecture/{location}/{kind}", value, step)
    for location, of_location in records[-1][1].items() if records else ():
        shares = torch.tensor(list(of_location.values())).softmax(0).tolist()
        paths = [f"{kind} {share:.3f}" for kind, share in zip(of_location, shares, strict=True)]
        logging.info(f"Epoch {epoch}: {location}: {', '.join(paths)}")
