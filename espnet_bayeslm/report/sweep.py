"""Word errors around tuned weights as JSON, as a table and as a heat map."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, Sequence

import numpy as np

from espnet_bayeslm.report.html_sweep import read_sweep, sweep_figure, value_table
from espnet_bayeslm.report.plots import save_figure
from espnet_bayeslm.rescoring.tuning import Tuned
from espnet_bayeslm.utils.files import write_json, write_text


def write_sweep(folder: Path, tuned: Tuned, *, names: Sequence[str]) -> None:
    """Write sweep.json, sweep.tsv and sweep.png.

    Args:
        folder: Where they go.
        tuned: What was found on the tuning lists.
        names: The components' names.
    """
    sweep = tuned.sweep
    rates = _rates(sweep.errors, tuned)
    pairs = zip(sweep.names, sweep.weights, strict=True)
    errors = tuned.found.errors
    content: Dict[str, Any] = {
        "features": [{"name": name, "weights": values.tolist()} for name, values in pairs],
        "wer": rates.tolist(),
        # in the middle stands what was chosen
        "best": [size // 2 for size in rates.shape],
        "weights": [
            {
                "weights": dict(zip(names, weights.tolist(), strict=True)),
                "wer": float(_rates(np.array(count), tuned)),
            }
            for weights, count in tuned.tried
        ],
        "first_pass": float(_rates(np.array(errors["first pass"]), tuned)),
        "rescored": float(_rates(np.array(errors["tuned"]), tuned)),
        "oracle": float(_rates(np.array(errors["oracle"]), tuned)),
    }
    write_json(folder / "sweep.json", content, indent=None)
    table = read_sweep(folder)
    assert table is not None
    write_text(folder / "sweep.tsv", value_table(table, "").csv(delimiter="\t"))
    save_figure(sweep_figure(table), folder / "sweep.png")


def _rates(errors: np.ndarray, tuned: Tuned) -> np.ndarray:
    """Errors in percent of the words."""
    return (100 * errors / max(tuned.words, 1)).round(3)
