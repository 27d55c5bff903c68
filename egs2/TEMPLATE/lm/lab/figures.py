"""The figures of a results file: the studies and signal-to-noise ratios."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, Sequence, Tuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, LogLocator, NullLocator

from espnet_bayeslm.report.plots import new_figure, save_figure
from lab import studies
from lab.cells import Values, mean
from lab.paper import NAMES, paper_content
from lab.plan import POINT, TRAIN, Entry
from lab.results import Results
from lab.studies import UNITS, Curve, Study

# Okabe and Ito's colours, which colour-blind readers tell apart; one for each kind.
COLOURS = {
    "point": "#000000",
    "l1": "#999999",
    "l2": "#56B4E9",
    "map": "#0072B2",
    "bayes": "#D55E00",
    "gp": "#009E73",
    "variational": "#CC79A7",
    "ivon": "#E69F00",
}
PAPER_COLOUR = "#999999"
MARKERS = "osD^vP*X"
STYLES = ("-", "--", ":", "-.")
WIDTH, HEIGHT = 5.2, 3.4


def write_figures(results: Results, folder: Path) -> Dict[str, Path]:
    """Write the figures for which there is something, and return {name: file}.

    Args:
        results: The results.
        folder: Where they go.
    """
    written = {}
    for name, figure in all_figures(results):
        written[name] = folder / f"{name}_{results.table}.png"
        save_figure(figure, written[name])
    return written


def all_figures(results: Results) -> Iterator[Tuple[str, Figure]]:
    """(name, figure)."""
    found = studies.studies(results, results.study) if results.study else {}
    if found:
        yield results.table, study_figure(found)
    ratios = {lm: s for lm, s in found.items() if s.snr()}
    if ratios:
        yield f"snr_{results.table}", snr_figure(ratios)


def panels(rows: int, columns: int, **options: Any) -> Tuple[Figure, List[List[Axes]]]:
    """Figure with panels, (rows, columns)."""
    figure = new_figure((WIDTH * columns, HEIGHT * rows))
    return figure, figure.subplots(rows, columns, squeeze=False, **options).tolist()


def add_legend(figure: Figure, columns: int, note: str = "") -> None:
    """Put one legend below all panels, each label once, and make room for it."""
    found: Dict[str, Any] = {}
    for axes in figure.axes:
        handles, labels = axes.get_legend_handles_labels()
        found.update(zip(labels, handles, strict=True))
    figure.set_figheight(figure.get_figheight() + 0.5 + 0.17 * math.ceil(len(found) / columns))
    options: Dict[str, Any] = {"ncols": columns, "frameon": False, "title": note}
    options |= dict.fromkeys(("fontsize", "title_fontsize"), "x-small")
    figure.legend([*found.values()], [*found], loc="outside lower center", **options)


def line_styles(entries: Sequence[Entry]) -> Iterator[Dict[str, Any]]:
    """Style of each line: a colour for its kind, a line style within the kind."""
    seen: Dict[str, int] = {}
    for entry in entries:
        number = seen.get(entry.line.kind, 0)
        seen[entry.line.kind] = number + 1
        yield {
            "color": COLOURS[entry.line.kind],
            "linestyle": STYLES[number % len(STYLES)],
            "marker": MARKERS[list(COLOURS).index(entry.line.kind)],
            "markersize": 4,
            "linewidth": 1.3,
        }


def study_figure(found: Mapping[str, Study]) -> Figure:
    """Perplexity, its change and word error rate, a column for each backbone."""
    with_errors = any(s.wer(c.name) for s in found.values() for c in s.curves)
    figure, rows = panels(2 + with_errors, len(found), sharex="col")
    for column, study in enumerate(found.values()):
        values = {
            "perplexity": [study.ppl(curve.name) for curve in study.curves],
            "change of perplexity, %": [study.change(curve) for curve in study.curves],
            "pooled WER, %": [study.wer(curve.name) for curve in study.curves],
        }
        for (label, each), cells in zip(values.items(), rows, strict=False):
            draw_curves(cells[column], study, each, label)
        if with_errors:
            fill_significant(rows[-1][column], study)
        rows[0][column].set_title(NAMES[study.lm])
        rows[-1][column].set_xlabel(axis_label(study))
    note = "bars: lowest to highest seed"
    if with_errors:
        note += "; filled: significantly fewer errors at each seed (MAPSSWE, p < 0.05)"
    add_legend(figure, len(found), note)
    return figure


def draw_curves(axes: Axes, study: Study, values: Sequence[Dict[int, Values]], label: str) -> None:
    """Draw the values of all systems over the places of a study."""
    for n, (curve, each) in enumerate(zip(study.curves, values, strict=True)):
        style = curve_style(study, curve)
        draw_values(axes, each, shift=n, label=curve.label, **style)
    axes.set_ylabel(f"{label}, {study.results.test}")
    place_axis(axes, study.places)
    axes.grid(alpha=0.3)


def fill_significant(axes: Axes, study: Study) -> None:
    """Fill the markers of word error rates that are significantly lower."""
    for n, curve in enumerate(study.curves):
        rates = study.wer(curve.name).items()
        better = {place: mean(each) for place, each in rates if study.significant(curve, place)}
        if better:
            places = [shifted(place, n) for place in better]
            filled = {key: curve_style(study, curve)[key] for key in ("color", "marker")}
            axes.plot(places, [*better.values()], markersize=6, linestyle="", **filled)


def axis_label(study: Study) -> str:
    """Label of the axis of a study."""
    return "share of the training text, %" if study.study == TRAIN else f"width: {UNITS[study.lm]}"


def curve_style(study: Study, curve: Curve) -> Dict[str, Any]:
    """Style of a system: a colour for its kind, solid with the point-estimate LM."""
    same = [c.name for c in study.curves if (c.kind, c.role) == (curve.kind, curve.role)]
    number = same.index(curve.name)
    styles = ("-", "-.") if curve.role == POINT or curve.kind == "point" else ("--", ":")
    first = list(COLOURS).index(curve.kind)
    return {
        "color": COLOURS[curve.kind],
        "linestyle": styles[number % 2],
        "marker": MARKERS[(first + 3 * number) % len(MARKERS)],
        "fillstyle": "none",
    }


def shifted(place: float, number: int) -> float:
    """Place, a little moved for each curve so that their bars do not hide each other."""
    return place * 1.015**number


def draw_values(axes: Axes, values: Mapping[int, Values], *, shift: int = 0, **style: Any) -> None:
    """Draw means over the seeds, with a bar from the lowest to the highest."""
    numbers = sorted(values)
    places = [shifted(n, shift) for n in numbers]
    means = [mean(values[n]) for n in numbers]
    axes.plot(places, means, **{"markersize": 6, "linewidth": 1.3, **style})
    lowest, highest = ([end(values[n].values()) for n in numbers] for end in (min, max))
    axes.vlines(places, lowest, highest, color=style["color"], linewidth=1, alpha=0.6)


def place_axis(axes: Axes, places: Sequence[int]) -> None:
    """Put the places of a study on a logarithmic axis."""
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator(places))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticklabels([str(place) for place in places])


def snr_figure(found: Mapping[str, Study]) -> Figure:
    """Median signal-to-noise ratios over a study, the paper's beside them."""
    figure, ((*all_axes,),) = panels(1, len(found))
    for axes, (lm, study) in zip(all_axes, found.items(), strict=True):
        paper = paper_content()["snr"][study.study][lm]
        places = [*paper]
        label = "paper (Table VII; other text and widths)"
        axes.plot(places, [*paper.values()], "--x", color=PAPER_COLOUR, label=label)
        ratios = study.snr()
        styles = line_styles([entry for entry, _ in ratios])
        for n, ((entry, values), style) in enumerate(zip(ratios, styles, strict=True)):
            draw_values(axes, values, shift=n, label=study.results.label(entry), **style)
        place_axis(axes, sorted({*places, *study.places}))
        axes.set(yscale="log", title=NAMES[lm], xlabel=axis_label(study))
        axes.set_ylabel("median |mean| / std of the random weights")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_minor_locator(NullLocator())
        # 0.5, where matplotlib's own is 5 x 10^-1
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.tick_params(axis="x", labelrotation=45)
        axes.grid(alpha=0.3)
    add_legend(figure, len(found))
    return figure
