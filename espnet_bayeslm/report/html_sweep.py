"""Word error rates around tuned weights: files of a rescoring, and the report's heat maps."""

from __future__ import annotations

import csv
import dataclasses
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from espnet_bayeslm.report.html_input import expecting, mapping, number, numbers, read_json
from espnet_bayeslm.report.page import Section
from espnet_bayeslm.report.plots import new_figure, save_figure, svg
from espnet_bayeslm.report.table import Cell, Row, Table
from espnet_bayeslm.rescoring.tuning import Tuned
from espnet_bayeslm.utils.files import atomic_write, write_json

SWEEP = "sweep.json"
REMEDY = "Tune again with `bayeslm rescore --tune_ref`, or delete it."
# Rates above this part of all have the same colour: what matters is near the best.
SHOWN = 0.75
MAX_TICKS = 16


@dataclasses.dataclass(frozen=True)
class SweepTable:
    """Word error rates of a development set where two weights are multiplied, in percent.

    Attributes:
        names: The two features; "" where there is none.
        values: Their weights, (A,) and (B,).
        wer: (A, B).
        best: Place of the weights that were chosen.
        oracle: Rate of the hypotheses with the fewest errors, where it is known.
        first_pass: Rate of the recogniser's own best, where it is known.
        weights: (weights of the components, rate with few features) of each mixture tried.
        without_lm: Rate of weights that were tuned without the new LMs' scores, where it is known.
    """

    names: Sequence[str]
    values: Sequence[List[float]]
    wer: np.ndarray
    best: Tuple[int, int]
    oracle: Optional[float]
    first_pass: Optional[float]
    weights: List[Tuple[Dict[str, float], float]]
    without_lm: Optional[float] = None


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
    if tuned.control is not None:
        content["without_lm"] = float(_rates(np.array(tuned.control.errors["tuned"]), tuned))
    write_json(folder / SWEEP, content, indent=None)
    table = read_sweep(folder)
    assert table is not None
    content = value_table(table, "").data()
    with atomic_write(folder / "sweep.tsv") as f:
        lines = csv.writer(f, delimiter="\t", lineterminator="\n")
        lines.writerows([content["columns"], *content["rows"]])
    save_figure(sweep_figure(table), folder / "sweep.png")


def _rates(errors: np.ndarray, tuned: Tuned) -> np.ndarray:
    """Errors in percent of the words."""
    return (100 * errors / max(tuned.words, 1)).round(3)


def read_sweep(folder: Path) -> Optional[SweepTable]:
    """Sweep of a rescoring's folder; None where there is none.

    Raises:
        InputError: Its file is not usable.
    """
    path = folder / SWEEP
    if not path.exists():
        return None
    content = read_json(path, remedy=REMEDY)
    with expecting("word error rates over the weights of two features", path=path, remedy=REMEDY):
        first, second = content["features"]
        values = [numbers(mapping(feature)["weights"]) for feature in (first, second)]
        wer = np.array([numbers(row) for row in content["wer"]])
        if wer.shape != (len(values[0]), len(values[1])) or not wer.size:
            raise ValueError(f"{len(values[0])} x {len(values[1])} weights, and {wer.shape} rates")
        row, column = (int(number(place)) for place in content["best"])
        if not (0 <= row < wer.shape[0] and 0 <= column < wer.shape[1]):
            raise ValueError(f"{row}, {column} is no place in {wer.shape}")
        rates = [content.get(key) for key in ("oracle", "first_pass", "without_lm")]
        known = [None if rate is None else number(rate) for rate in rates]
        weights = [
            ({name: number(w) for name, w in mapping(item["weights"]).items()}, number(item["wer"]))
            for item in content.get("weights", [])
        ]
        names = [str(first["name"]), str(second["name"])]
        oracle, first_pass, without_lm = known
        return SweepTable(
            names, values, wer, (row, column), oracle, first_pass, weights, without_lm
        )


def sweep_section(sweeps: Mapping[str, SweepTable]) -> Optional[Section]:
    """Heat map for each system; None where there is none."""
    if not sweeps:
        return None
    parts = []
    for name, sweep in sweeps.items():
        features = " and ".join(filter(None, sweep.names)) or "nothing (as it came)"
        label = f"Word error rate of {name} by the weights of {features}"
        parts.append(
            {
                "name": name,
                "summary": _summary(sweep),
                "figure": svg(sweep_figure(sweep), label),
                "rates": value_table(sweep, label),
                "weights": _weight_table(sweep, name) if len(sweep.weights) > 1 else None,
            }
        )
    return Section("sweep", "Scales tuned on the development set", {"sweeps": parts})


def _summary(sweep: SweepTable) -> str:
    best = sweep.wer[sweep.best]
    chosen = [
        f"{name} {values[place]:.4g}"
        for name, values, place in zip(sweep.names, sweep.values, sweep.best, strict=True)
        if name
    ]
    parts = [f"{', '.join(chosen) or 'as it came'}: {best:.2f} %"]
    if sweep.first_pass is not None:
        parts.append(f"first pass {sweep.first_pass:.2f} %")
    if sweep.without_lm is not None:
        parts.append(f"tuned without the LM {sweep.without_lm:.2f} %")
    if sweep.oracle is not None:
        parts.append(f"oracle {sweep.oracle:.2f} %")
    return "; ".join(parts) + "."


def sweep_figure(sweep: SweepTable) -> Figure:
    """Heat map of the rates, both weights in a log scale."""
    figure = new_figure((8.5, 0.9 + 0.22 * max(6, len(sweep.values[1]))))
    axes = figure.subplots()
    rates = sweep.wer.T
    top = max(float(np.quantile(rates, SHOWN)), float(rates.min()) + 0.1)
    mesh = axes.pcolormesh(rates, cmap="viridis_r", vmax=top, edgecolors="face", linewidth=0.8)
    cut = float(rates.max()) > top
    figure.colorbar(mesh, ax=axes, label="WER %", extend="max" if cut else "neither", pad=0.01)
    # the cells that are at most 0.1 above the lowest rate
    _draw_border(axes, rates <= rates.min() + 0.1, color="0.1", linestyle="-")
    if sweep.first_pass is not None:
        _draw_border(axes, rates <= sweep.first_pass, color="white", linestyle="--")
    column, row = sweep.best
    axes.plot(column + 0.5, row + 0.5, "o", markersize=8, markerfacecolor="none", color="red")
    for axis, values in ((axes.xaxis, sweep.values[0]), (axes.yaxis, sweep.values[1])):
        step = -(-len(values) // MAX_TICKS)
        names = [f"{value:.3g}".replace("-", "−") for value in values]
        axis.set_ticks(np.arange(len(values))[::step] + 0.5, names[::step])
    axes.set(xlabel=f"weight of {sweep.names[0]}", ylabel=f"weight of {sweep.names[1]}")
    return figure


def _draw_border(axes: Axes, inside: np.ndarray, *, color: str, linestyle: str) -> None:
    """Draw the border between the cells that are inside and the others of the picture."""
    near = np.pad(inside, 1)
    lines = []
    for row, column in np.argwhere(near):
        x, y = column - 1, row - 1
        sides = (
            (near[row - 1, column], (x, x + 1), (y, y)),
            (near[row + 1, column], (x, x + 1), (y + 1, y + 1)),
            (near[row, column - 1], (x, x), (y, y + 1)),
            (near[row, column + 1], (x + 1, x + 1), (y, y + 1)),
        )
        lines += [ends for inside, *ends in sides if not inside]
    for xs, ys in lines:
        axes.plot(xs, ys, color=color, linestyle=linestyle, linewidth=1.2)


def value_table(sweep: SweepTable, caption: str) -> Table:
    """Rates by the first feature's weight and, in columns, by the second's."""
    header = [" \\ ".join(sweep.names), *(f"{value:.4g}" for value in sweep.values[1])]
    rows: List[Row] = [
        [
            f"{weight:.4g}",
            *(Cell(f"{v:.2f}", strong=(n, k) == sweep.best) for k, v in enumerate(row)),
        ]
        for n, (weight, row) in enumerate(zip(sweep.values[0], sweep.wer, strict=True))
    ]
    return Table(caption, header, rows)


def _weight_table(sweep: SweepTable, name: str) -> Table:
    """Rate at the best scales of each mixture that was tried."""
    rows = [
        [", ".join(f"{name} {weight:.3g}" for name, weight in weights.items()), f"{rate:.2f}"]
        for weights, rate in sweep.weights
    ]
    return Table(f"Weights of the mixture that were tried: {name}", ["weights", "WER %"], rows)
