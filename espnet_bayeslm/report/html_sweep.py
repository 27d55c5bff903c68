"""The report's heat maps of word error rates over LM weight and word penalty."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from espnet_bayeslm.report.html_figure import svg
from espnet_bayeslm.report.html_input import expecting, mapping, number, numbers, read_json
from espnet_bayeslm.report.html_page import (
    Html,
    Section,
    details,
    element,
    markup,
    paragraph,
    table,
)
from espnet_bayeslm.report.plots import new_figure

SWEEP = "sweep.json"
REMEDY = "Tune again with `bayeslm rescore --tune_ref`, or delete it."
# Rates above this part of all have the same colour: what matters is near the best.
SHOWN = 0.75
MAX_TICKS = 16


@dataclasses.dataclass(frozen=True)
class SweepTable:
    """Word error rates of a development set over a grid of scales, in percent.

    Attributes:
        lmwts: The acoustic divisors, (A,).
        word_penalties: The word insertion penalties, (B,).
        wer: (A, B).
        best: LMWT and word penalty that were chosen.
        oracle: Rate of the hypotheses with the fewest errors, where it is known.
        first_pass: Rate of the recogniser's own best, where it is known.
        weights: (weights of the components, rate at their best scales) of each mixture tried.
    """

    lmwts: List[float]
    word_penalties: List[float]
    wer: np.ndarray
    best: Mapping[str, float]
    oracle: Optional[float]
    first_pass: Optional[float]
    weights: List[Tuple[Dict[str, float], float]]

    @property
    def best_index(self) -> Sequence[int]:
        """Return where the chosen scales stand in the grid."""
        return (
            self.lmwts.index(self.best["lmwt"]),
            self.word_penalties.index(self.best["word_penalty"]),
        )


def read_sweep(folder: Path) -> Optional[SweepTable]:
    """Return the sweep of a rescoring's folder; None where there is none.

    Raises:
        InputError: Its file is not usable.
    """
    path = folder / SWEEP
    if not path.exists():
        return None
    content = read_json(path, remedy=REMEDY)
    with expecting("word error rates over LMWT and word penalty", path=path, remedy=REMEDY):
        lmwts, penalties = numbers(content["lmwt"]), numbers(content["word_penalty"])
        wer = np.array([numbers(row) for row in content["wer"]])
        if wer.shape != (len(lmwts), len(penalties)) or not wer.size:
            raise ValueError(f"{len(lmwts)} x {len(penalties)} scales, and {wer.shape} rates")
        best = {key: number(mapping(content["best"])[key]) for key in ("lmwt", "word_penalty")}
        rates = [content.get(key) for key in ("oracle", "first_pass")]
        known = [None if rate is None else number(rate) for rate in rates]
        weights = [
            ({name: number(w) for name, w in mapping(row["weights"]).items()}, number(row["wer"]))
            for row in content.get("weights", [])
        ]
        sweep = SweepTable(lmwts, penalties, wer, best, known[0], known[1], weights)
        # a ValueError where they are not in the grid
        assert sweep.best_index
    return sweep


def sweep_section(sweeps: Mapping[str, SweepTable]) -> Optional[Section]:
    """Return a heat map for each system; None where there is none."""
    if not sweeps:
        return None
    parts: List[str] = [
        paragraph(
            "Word error rate on the development set, by the divisor of the acoustic score (LMWT)"
            " and the cost of a word. The ring is what was chosen; the line encloses what is at"
            " most one tenth of a percent worse."
        )
    ]
    for name, sweep in sweeps.items():
        parts.append(element("h3", name))
        parts.append(paragraph(_summary(sweep)))
        label = f"Word error rate of {name} by LMWT and word penalty"
        parts.append(svg(sweep_figure(sweep), label))
        parts.append(details("All values", _value_table(sweep, label)))
        if len(sweep.weights) > 1:
            parts.append(_weight_table(sweep, f"Weights of the mixture that were tried: {name}"))
    return Section("sweep", "Scales tuned on the development set", markup(*parts))


def _summary(sweep: SweepTable) -> str:
    best = sweep.wer[tuple(sweep.best_index)]
    parts = [
        f"LMWT {sweep.best['lmwt']:g}, word penalty {sweep.best['word_penalty']:g}: {best:.2f} %"
    ]
    if sweep.first_pass is not None:
        parts.append(f"first pass {sweep.first_pass:.2f} %")
    if sweep.oracle is not None:
        parts.append(f"oracle {sweep.oracle:.2f} %")
    return "; ".join(parts) + "."


def sweep_figure(sweep: SweepTable) -> Figure:
    """Return a heat map of the rates, LMWT from left to right."""
    figure = new_figure((8.5, 0.9 + 0.22 * max(6, len(sweep.word_penalties))))
    axes = figure.subplots()
    rates = sweep.wer.T
    top = max(float(np.quantile(rates, SHOWN)), float(rates.min()) + 0.1)
    mesh = axes.pcolormesh(rates, cmap="viridis_r", vmax=top, edgecolors="face", linewidth=0.8)
    cut = float(rates.max()) > top
    figure.colorbar(mesh, ax=axes, label="WER %", extend="max" if cut else "neither", pad=0.01)
    _draw_plateau(axes, rates)
    column, row = sweep.best_index
    axes.plot(column + 0.5, row + 0.5, "o", markersize=8, markerfacecolor="none", color="red")
    for axis, values in ((axes.xaxis, sweep.lmwts), (axes.yaxis, sweep.word_penalties)):
        step = -(-len(values) // MAX_TICKS)
        names = [f"{value:g}".replace("-", "−") for value in values]
        axis.set_ticks(np.arange(len(values))[::step] + 0.5, names[::step])
    axes.set(xlabel="LMWT", ylabel="word penalty")
    return figure


def _draw_plateau(axes: Axes, rates: np.ndarray) -> None:
    """Draw the border of the cells that are at most 0.1 above the lowest rate."""
    near = np.pad(rates <= rates.min() + 0.1, 1)
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
        axes.plot(xs, ys, color="0.1", linewidth=1.2, solid_capstyle="projecting")


def _value_table(sweep: SweepTable, caption: str) -> Html:
    header = ["LMWT", *(f"{penalty:g}" for penalty in sweep.word_penalties)]
    rows = []
    best = tuple(sweep.best_index)
    for n, (lmwt, row) in enumerate(zip(sweep.lmwts, sweep.wer, strict=True)):
        cells = [f"{value:.2f}" for value in row]
        if n == best[0]:
            cells[best[1]] = element("strong", cells[best[1]])
        rows.append([f"{lmwt:g}", *cells])
    return table(header, rows, caption=caption)


def _weight_table(sweep: SweepTable, caption: str) -> Html:
    """Return the rate at the best scales of each mixture that was tried."""
    rows = [
        [", ".join(f"{name} {weight:.3g}" for name, weight in weights.items()), f"{rate:.2f}"]
        for weights, rate in sweep.weights
    ]
    return table(["weights", "WER %"], rows, caption=caption)
