"""Figures of an architecture search: the shares of the kinds, and how they came about."""

from __future__ import annotations

from typing import Any, Dict, Iterable, List, Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from espnet_bayeslm.bayes.kinds import KINDS, Kind
from espnet_bayeslm.kinds.architectures import ArchitectureWeights, Record, shares
from espnet_bayeslm.report.plots import new_figure, panels, plain
from espnet_bayeslm.utils.errors import InputError

# A run's share in the middle of a bar
DOT: Dict[str, Any] = {
    "linestyle": "",
    "marker": "o",
    "markersize": 3.5,
    "markerfacecolor": "white",
    "markeredgecolor": "black",
    "markeredgewidth": 0.7,
}
# The line where all kinds have the same share
UNDECIDED: Dict[str, Any] = {"color": "0.4", "linewidth": 0.8, "linestyle": ":"}
LINE_STYLES = ("-", "--", ":", "-.")
# Width of a location's bars; the distance to the next location is 1
BAR_SPACE = 0.8
# Panels side by side in the figure of the training
MAX_COLUMNS = 6
MAX_LEGEND = 6
# The axis of a share over the training is at least so long
MIN_SPAN = 0.05


def weights_figure(runs: Mapping[str, ArchitectureWeights]) -> Figure:
    """Bars of the share of each kind, by location, as the paper's Fig. 3 has them.

    Args:
        runs: Run (seed) -> its architecture weights. The bars are means over runs; where there
            are several, each is a dot too.
    """
    tables = [shares(weights) for weights in runs.values()]
    figure = new_figure((max(4.0, 1.0 + 0.45 * len(tables[0])), 3.2))
    axes = figure.add_subplot()
    for x, (location, kinds) in enumerate(tables[0].items()):
        width = BAR_SPACE / len(kinds)
        for place, kind in enumerate(kinds):
            values = [table[location][kind] for table in tables]
            at = x + (place + 0.5) * width - BAR_SPACE / 2
            axes.bar(at, float(np.mean(values)), 0.92 * width, color=_colour(kind))
            if len(values) > 1:
                axes.plot([at] * len(values), values, clip_on=False, **DOT)
        axes.plot([x - 0.5, x + 0.5], [1 / len(kinds)] * 2, **UNDECIDED)
    axes.set(xlim=(-0.5, len(tables[0]) - 0.5), ylim=(0, 1), ylabel="share")
    names = list(map(plain, tables[0]))
    axes.set_xticks(range(len(names)), names, rotation=90, fontsize="small")
    axes.tick_params(axis="x", length=0)
    handles: List[Any] = [
        Patch(color=_colour(kind), label=plain(kind)) for kind in _kinds(tables[0].values())
    ]
    if len(runs) > 1:
        handles.append(Line2D([], [], **DOT, label=f"{len(runs)} runs, bars their mean"))
    _legend(figure, handles)
    return figure


def history_figure(history: Mapping[str, Sequence[Record]]) -> Figure:
    """Shares of the kinds over the training, a panel for each location.

    Point estimates are left out: their share is 1 less all other shares.
    """
    runs = {
        run: ([epoch for epoch, _ in records], [shares(weights) for _, weights in records])
        for run, records in history.items()
        if records
    }
    if not runs:
        raise InputError("no record of the architecture weights to draw")
    first = next(iter(runs.values()))[1][0]
    columns = min(len(first), MAX_COLUMNS)
    size = max(4.0, 0.8 + 1.7 * columns), 1.0 + 1.4 * -(-len(first) // columns)
    figure, every = panels(list(first), size, columns=columns, sharex=True, sharey=True)
    for axes, (location, start) in zip(every, first.items(), strict=True):
        for number, (epochs, tables) in enumerate(runs.values()):
            for kind in _uncertain([start]):
                values = [table[location][kind] for table in tables]
                marker = "." if len(values) == 1 else ""
                axes.plot(epochs, values, marker=marker, **_line(number, _colour(kind)))
        axes.axhline(1 / len(start), **UNDECIDED)
        axes.title.set_fontsize("small")
        axes.grid(alpha=0.3)
        axes.tick_params(labelsize="small")
    for axes in every[-columns:]:
        # the row below may have no panel
        axes.tick_params(labelbottom=True)
    figure.supxlabel("epoch", fontsize="medium")
    figure.supylabel("share", fontsize="medium")
    # of 0 to 1 the part that is used
    low, high = every[0].get_ylim()
    spare = max(0.0, MIN_SPAN - (high - low)) / 2
    every[0].set_ylim(max(0.0, low - spare), min(1.0, high + spare))
    lines = {kind: _line(0, _colour(kind)) for kind in _uncertain(first.values())}
    if len(runs) > 1:
        lines.update({run: _line(number, "0.3") for number, run in enumerate(runs)})
    _legend(figure, [Line2D([], [], label=plain(name), **style) for name, style in lines.items()])
    return figure


def _line(number: int, colour: str) -> Dict[str, Any]:
    """Line style of run number `number`."""
    style = LINE_STYLES[number % len(LINE_STYLES)]
    return {"color": colour, "linestyle": style, "linewidth": 1.2}


def _colour(kind: str) -> str:
    """Colour of a kind: point estimates red, Bayesian weights blue, as in the paper's Fig. 3."""
    return KINDS.get(kind, Kind).colour


def _kinds(table: Iterable[Mapping[str, float]]) -> List[str]:
    """Kinds that some location has, in the order of `KINDS`."""
    kinds = {kind: None for values in table for kind in values}
    return sorted(kinds, key=lambda kind: [*KINDS, kind].index(kind))


def _uncertain(table: Iterable[Mapping[str, float]]) -> List[str]:
    """Kinds less point estimates."""
    return [kind for kind in _kinds(table) if KINDS.get(kind, Kind).is_uncertain]


def _legend(figure: Figure, handles: Sequence[Any]) -> None:
    """Put a legend above the panels."""
    columns = min(MAX_LEGEND, len(handles))
    figure.legend(handles=handles, loc="outside upper center", ncols=columns, frameon=False)
