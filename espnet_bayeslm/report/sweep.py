"""A sweep of scales as JSON, as a table and as a heat map."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict, List, Mapping, Sequence, Tuple

import numpy as np

from espnet_bayeslm.evaluation.wer import ErrorCounts
from espnet_bayeslm.report.html_sweep import read_sweep, sweep_figure
from espnet_bayeslm.report.plots import save_figure
from espnet_bayeslm.rescoring.decision import Scales
from espnet_bayeslm.rescoring.sweep import Sweep
from espnet_bayeslm.utils.files import atomic_write

# (weights of the components, word error rate in percent at the best scales)
WeightRow = Tuple[Mapping[str, float], float]


def write_sweep(
    folder: Path,
    sweep: Sweep,
    best: Scales,
    errors: Mapping[str, ErrorCounts],
    weights: Sequence[WeightRow],
) -> None:
    """Write sweep.json, sweep.tsv and sweep.png.

    Args:
        folder: Where they go.
        sweep: The errors over the grid, at the best weights.
        best: The scales that were chosen.
        errors: Of the first pass, the new best and the oracle.
        weights: The best rate of each mixture that was tried.
    """
    words = errors["rescored"].words
    rates = (100 * sweep.errors / max(words, 1)).round(3)
    content: Dict[str, Any] = {
        "lmwt": sweep.lmwts.tolist(),
        "word_penalty": sweep.word_penalties.tolist(),
        "wer": rates.tolist(),
        "best": {"lmwt": best.lmwt, "word_penalty": best.word_penalty},
        "weights": [{"weights": dict(names), "wer": rate} for names, rate in weights],
        **{name.replace(" ", "_"): round(100 * counts.rate, 3) for name, counts in errors.items()},
    }
    with atomic_write(folder / "sweep.json") as f:
        json.dump(content, f)
    with atomic_write(folder / "sweep.tsv") as f:
        f.writelines(f"{line}\n" for line in _table(sweep, rates))
    table = read_sweep(folder)
    assert table is not None
    save_figure(sweep_figure(table), folder / "sweep.png")


def _table(sweep: Sweep, rates: np.ndarray) -> List[str]:
    """Return lines: LMWT, then the rate at each word penalty."""
    header = "\t".join(["LMWT", *(f"{penalty:g}" for penalty in sweep.word_penalties)])
    rows = [
        "\t".join([f"{lmwt:g}", *(f"{rate:.2f}" for rate in row)])
        for lmwt, row in zip(sweep.lmwts, rates, strict=True)
    ]
    return [header, *rows]
