"""Figures of an architecture search: the shares of the kinds, and how they came about."""

from __future__ import annotations

from typing import Any, Dict, Iterable, List, Mapping, Sequence, Tuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from espnet_bayeslm.bayes.kinds import KINDS, Kind
from espnet_bayeslm.report.plots import new_figure, plain
from espnet_bayeslm.supernet.ranking import ArchitectureWeights, Record, shares
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
# Where all kinds have the same share
UNDECIDED = "0.4"
LINE_STYLES = ("-", "--", ":", "-.")
# Width of a location's bars, of the space from one layer to the next
BAR_SPACE = 0.8
# A panel is at least so many layers wide: its title needs the room
MIN_COLUMNS = 3
MAX_COLUMNS = 16
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
    rows = _rows(list(tables[0]))
    width = max(sum(map(_columns, row)) for row in rows)
    figure = new_figure((max(4.0, 0.9 + 0.5 * width), 0.5 + 2.1 * len(rows)))
    grid = figure.add_gridspec(len(rows), width)
    for number, row in enumerate(rows):
        column = 0
        for locations in row:
            end = column + _columns(locations)
            axes = figure.add_subplot(grid[number, column:end])
            _draw_position(axes, locations, tables, first=column == 0)
            column = end
    kinds = _kinds(tables[0].values())
    handles: List[Any] = [Patch(color=_colour(kind), label=plain(kind)) for kind in kinds]
    if len(runs) > 1:
        handles.append(Line2D([], [], **DOT, label=f"{len(runs)} runs, bars their mean"))
    _legend(figure, handles)
    return figure


def _draw_position(
    axes: Axes,
    locations: Sequence[str],
    tables: Sequence[Mapping[str, Mapping[str, float]]],
    *,
    first: bool,
) -> None:
    """Draw the shares at layers of one position."""
    for x, location in enumerate(locations):
        kinds = list(tables[0][location])
        width = BAR_SPACE / len(kinds)
        for place, kind in enumerate(kinds):
            values = [table[location][kind] for table in tables]
            at = x + (place + 0.5) * width - BAR_SPACE / 2
            axes.bar(at, float(np.mean(values)), 0.92 * width, color=_colour(kind))
            if len(values) > 1:
                axes.plot([at] * len(values), values, clip_on=False, **DOT)
        undecided = [1 / len(kinds)] * 2
        axes.plot([x - 0.5, x + 0.5], undecided, color=UNDECIDED, linewidth=0.8, linestyle=":")
    layers = [location.partition("@")[2] for location in locations]
    # as wide as the layers that the panel has room for, so that all bars are of one width
    spare = (_columns(locations) - len(locations)) / 2
    axes.set(xlim=(-0.5 - spare, len(locations) - 0.5 + spare), ylim=(0, 1))
    axes.set_title(plain(locations[0].partition("@")[0]), fontsize="medium")
    axes.set_xticks(range(len(locations)), layers, fontsize="small")
    axes.tick_params(axis="x", length=0)
    if any(layers):
        axes.set_xlabel("layer", fontsize="small")
    if first:
        axes.set_ylabel("share")
    else:
        axes.set_yticklabels([])


def history_figure(history: Mapping[str, Sequence[Record]]) -> Figure:
    """Shares of the kinds over the training, a panel for each location.

    Point estimates are left out: their share is what the others lack of 1.

    Args:
        history: Run (seed) -> its records, which are of the same locations and kinds.

    Raises:
        InputError: There is no record.
    """
    runs = {
        run: ([epoch for epoch, _ in records], [shares(weights) for _, weights in records])
        for run, records in history.items()
        if records
    }
    if not runs:
        raise InputError("no record of the architecture weights to draw")
    first = next(iter(runs.values()))[1][0]
    figure, panels = _small_multiples(list(first))
    for axes, (location, start) in zip(panels, first.items(), strict=True):
        for number, (epochs, tables) in enumerate(runs.values()):
            for kind in _uncertain([start]):
                values = [table[location][kind] for table in tables]
                marker = "." if len(values) == 1 else ""
                axes.plot(epochs, values, marker=marker, **_line(number, _colour(kind)))
        axes.axhline(1 / len(start), color=UNDECIDED, linewidth=0.8, linestyle=":")
    # of 0 to 1 the part that is used
    low, high = panels[0].get_ylim()
    spare = max(0.0, MIN_SPAN - (high - low)) / 2
    panels[0].set_ylim(max(0.0, low - spare), min(1.0, high + spare))
    lines = {kind: _line(0, _colour(kind)) for kind in _uncertain(first.values())}
    if len(runs) > 1:
        lines.update({run: _line(number, "0.3") for number, run in enumerate(runs)})
    _legend(figure, [Line2D([], [], label=plain(name), **style) for name, style in lines.items()])
    return figure


def _small_multiples(titles: Sequence[str]) -> Tuple[Figure, List[Axes]]:
    """Figure and as many small panels, with common axes."""
    num_columns = min(len(titles), 4)
    if len(titles) > 4:
        # of these the one that leaves the fewest places empty
        choice = (4, 3) if len(titles) <= 12 else (8, 7, 6)
        num_columns = min(choice, key=lambda columns: -len(titles) % columns)
    num_rows = -(-len(titles) // num_columns)
    figure = new_figure((max(4.0, 0.8 + 1.7 * num_columns), 1.0 + 1.4 * num_rows))
    grid = figure.subplots(num_rows, num_columns, squeeze=False, sharex=True, sharey=True)
    panels = list(grid.flat)
    for axes in panels[len(titles) :]:
        axes.remove()
    for axes, title in zip(panels, titles, strict=False):
        axes.set_title(plain(title), fontsize="small")
        axes.grid(alpha=0.3)
        axes.tick_params(labelsize="small")
    figure.supxlabel("epoch", fontsize="medium")
    figure.supylabel("share", fontsize="medium")
    for axes in panels[: len(titles)][-num_columns:]:
        # where the row below has no panel
        axes.tick_params(labelbottom=True)
    return figure, panels[: len(titles)]


def _line(number: int, colour: str) -> Dict[str, Any]:
    """Line style of run number `number`."""
    style = LINE_STYLES[number % len(LINE_STYLES)]
    return {"color": colour, "linestyle": style, "linewidth": 1.2}


def _columns(locations: Sequence[str]) -> int:
    """Number of layers that the panel of these locations has room for."""
    return max(MIN_COLUMNS, len(locations))


def _rows(locations: Sequence[str]) -> List[List[List[str]]]:
    """Rows of panels of the locations of a position, each of at most `MAX_COLUMNS`."""
    positions: Dict[str, List[str]] = {}
    for location in locations:
        positions.setdefault(location.partition("@")[0], []).append(location)
    rows: List[List[List[str]]] = []
    for every in positions.values():
        for start in range(0, len(every), MAX_COLUMNS):
            panel = every[start : start + MAX_COLUMNS]
            if not rows or sum(map(_columns, [*rows[-1], panel])) > MAX_COLUMNS:
                rows.append([])
            rows[-1].append(panel)
    return rows


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
    columns = min(MAX_LEGEND, len(handles))
    figure.legend(handles=handles, loc="outside upper center", ncols=columns, frameon=False)
