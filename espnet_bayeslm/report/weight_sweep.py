"""Word error rates around tuned weights: files of a rescoring, and the report's heat maps."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import List, Mapping, Optional, Tuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from espnet_bayeslm.evaluation.wer import FIRST_PASS, ORACLE
from espnet_bayeslm.report.inputs import json_content, typed
from espnet_bayeslm.report.page import Section
from espnet_bayeslm.report.plots import new_figure, save_figure, svg
from espnet_bayeslm.report.table import Cell, Row, Table
from espnet_bayeslm.rescoring.tuning import Tuned
from espnet_bayeslm.utils.files import write_json

SWEEP = "sweep.json"
REMEDY = "Tune again with `bayeslm rescore --tune_ref`, or delete it."
# Rates above this part of all have the same colour: only rates near the best matter.
SHOWN = 0.75
MAX_TICKS = 16
# Points along the side of a cell when borders are drawn
FINE = 20


@dataclasses.dataclass(frozen=True)
class Scaled:
    """A feature whose weight is multiplied."""

    name: str
    weights: List[float]


@dataclasses.dataclass(frozen=True)
class SweepTable:
    """Word error rates of a development set where two weights are multiplied, in percent.

    Attributes:
        features: The two features, of A and of B weights.
        wer: (A, B) rates.
        best: Place of the weights that were chosen.
        first_pass: Rate of the recogniser's own best, where it is known.
        rescored: Rate of the chosen weights.
        oracle: Rate of the hypotheses with the fewest errors.
        without_lm: Rate of weights that were tuned without the new LMs' scores.
    """

    features: Tuple[Scaled, ...]
    wer: List[List[float]]
    best: Tuple[int, ...]
    first_pass: Optional[float] = None
    rescored: Optional[float] = None
    oracle: Optional[float] = None
    without_lm: Optional[float] = None


def write_sweep(folder: Path, tuned: Tuned) -> None:
    """Write sweep.json and sweep.png."""
    sweep, errors = tuned.sweep, tuned.chosen.errors
    pairs = zip(sweep.names, sweep.weights, strict=True)
    shown = [errors[FIRST_PASS], errors["tuned"], errors[ORACLE], tuned.control.errors["tuned"]]
    *grid, rates = [
        [round(100 * count / max(tuned.words, 1), 3) for count in row]
        for row in (*sweep.errors.tolist(), shown)
    ]
    table = SweepTable(
        tuple(Scaled(name, values.tolist()) for name, values in pairs),
        grid,
        # in the middle stand the chosen weights
        tuple(size // 2 for size in sweep.errors.shape),
        *rates,
    )
    write_json(folder / SWEEP, dataclasses.asdict(table), indent=None)
    save_figure(sweep_figure(table), folder / "sweep.png")


def read_sweep(folder: Path) -> Optional[SweepTable]:
    """Sweep of a rescoring's folder; None where there is none."""
    path, what = folder / SWEEP, "word error rates over the weights of two features"
    if not path.exists():
        return None
    with json_content(path, what, remedy=REMEDY) as content:
        sweep: SweepTable = typed(SweepTable, content)
        first, second = (len(feature.weights) for feature in sweep.features)
        if len(sweep.wer) != first or any(len(rates) != second for rates in sweep.wer):
            raise ValueError(f"not {first} x {second} rates, as there are weights")
        row, column = sweep.best
        if not (0 <= row < first and 0 <= column < second):
            raise ValueError(f"{row}, {column} is no place in {first} x {second} rates")
    return sweep


def sweep_section(sweeps: Mapping[str, SweepTable]) -> Section:
    """Heat map for each system."""
    parts = []
    for name, sweep in sweeps.items():
        features = " and ".join(f.name for f in sweep.features if f.name) or "nothing (as it came)"
        label = f"Word error rate of {name} by the weights of {features}"
        parts.append(
            {
                "name": name,
                "summary": _summary(sweep),
                "figure": svg(sweep_figure(sweep), label),
                "rates": value_table(sweep, label),
            }
        )
    return Section("sweep", "Scales tuned on the development set", {"sweeps": parts})


def _summary(sweep: SweepTable) -> str:
    row, column = sweep.best
    chosen = [
        f"{feature.name} {feature.weights[place]:.4g}"
        for feature, place in zip(sweep.features, sweep.best, strict=True)
        if feature.name
    ]
    others = {
        FIRST_PASS: sweep.first_pass,
        "tuned without the LM": sweep.without_lm,
        ORACLE: sweep.oracle,
    }
    parts = [f"{', '.join(chosen) or 'as it came'}: {sweep.wer[row][column]:.2f} %"]
    parts += [f"{name} {rate:.2f} %" for name, rate in others.items() if rate is not None]
    return "; ".join(parts) + "."


def sweep_figure(sweep: SweepTable) -> Figure:
    """Heat map of the rates, both weights in a log scale."""
    first, second = sweep.features
    figure = new_figure((8.5, 0.9 + 0.22 * max(6, len(second.weights))))
    axes = figure.subplots()
    rates = np.array(sweep.wer).T
    top = max(float(np.quantile(rates, SHOWN)), float(rates.min()) + 0.1)
    mesh = axes.pcolormesh(rates, cmap="viridis_r", vmax=top, edgecolors="face", linewidth=0.8)
    cut = float(rates.max()) > top
    figure.colorbar(mesh, ax=axes, label="WER %", extend="max" if cut else "neither", pad=0.01)
    # the cells that are at most 0.1 above the lowest rate
    _draw_border(axes, rates <= rates.min() + 0.1, color="0.1", linestyle="-")
    if sweep.first_pass is not None and (rates <= sweep.first_pass).any():
        _draw_border(axes, rates <= sweep.first_pass, color="white", linestyle="--")
    column, row = sweep.best
    axes.plot(column + 0.5, row + 0.5, "o", markersize=8, markerfacecolor="none", color="red")
    for axis, values in ((axes.xaxis, first.weights), (axes.yaxis, second.weights)):
        step = -(-len(values) // MAX_TICKS)
        names = [f"{value:.3g}".replace("-", "−") for value in values]
        axis.set_ticks(np.arange(len(values))[::step] + 0.5, names[::step])
    axes.set(xlabel=f"weight of {first.name}", ylabel=f"weight of {second.name}")
    return figure


def _draw_border(axes: Axes, inside: np.ndarray, *, color: str, linestyle: str) -> None:
    """Draw the border between the cells that are inside and the cells outside."""
    # each cell as many points, so that the contour of the points is nearly that of the cells
    fine = np.pad(np.kron(inside, np.ones((FINE, FINE))), 1)
    x, y = ((np.arange(size) - 0.5) / FINE for size in fine.shape[::-1])
    axes.contour(x, y, fine, levels=[0.5], colors=color, linestyles=linestyle, linewidths=1.2)


def value_table(sweep: SweepTable, caption: str) -> Table:
    """Rates by the first feature's weight and, in columns, by the second's."""
    first, second = sweep.features
    header = [f"{first.name} \\ {second.name}", *(f"{value:.4g}" for value in second.weights)]
    rows: List[Row] = [
        [
            f"{weight:.4g}",
            *(Cell(f"{v:.2f}", strong=(n, k) == sweep.best) for k, v in enumerate(row)),
        ]
        for n, (weight, row) in enumerate(zip(first.weights, sweep.wer, strict=True))
    ]
    return Table(caption, header, rows)
