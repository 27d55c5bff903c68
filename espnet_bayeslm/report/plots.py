"""Figures, drawn without a display and without matplotlib's global state, as PNG and as SVG."""

from __future__ import annotations

import io
import math
import re
from typing import Any, List, Mapping, Sequence, Tuple

import matplotlib
import numpy as np
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter

from espnet_bayeslm.evaluation.signal_to_noise import BIN_EDGES, PruningStep, SnrSummary
from espnet_bayeslm.utils.files import PathLike, atomic_write

# the worst that is drawn, as a multiple of the best: a pruned LM's perplexity has no bound
MAX_RISE = 1000.0
# the curves often lie upon each other
STYLES = {"snr": ("by |mean| / std", "-"), "magnitude": ("by |mean|", "--")}
# share of the ratios that their figure leaves out at either side
TAIL = 0.001
# What matplotlib writes before and beside the drawing; its <style> would hold for the whole page.
_PREAMBLE = re.compile(
    r"^.*?(?=<svg)|<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", re.DOTALL
)
# Names of groups: nothing refers to them, and several figures have the same ones.
_GROUP_ID = re.compile(r'<g id="[^"]*"')
_SIZE = re.compile(r'<svg [^>]*?(viewBox="0 0 ([0-9.]+) [^"]*")[^>]*>')
_SPACE = re.compile(r">\s+<")


def new_figure(size: Tuple[float, float]) -> Figure:
    """Empty figure of a size in inches."""
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save_figure(figure: Figure, path: PathLike) -> None:
    """Write a figure as PNG."""
    with atomic_write(path, "wb") as f:
        figure.savefig(f, format="png", dpi=150)


def plain(name: str) -> str:
    """Name as matplotlib shows it: no formula in it, and not left out of legends."""
    name = name.replace("$", r"\$")
    return f" {name}" if name.startswith("_") else name


def svg(figure: Figure, label: str) -> Markup:
    """SVG element of a figure, for a page: black is the page's text, white is its paper.

    The label is for readers who cannot see the figure; no two figures share one.
    """
    buffer = io.StringIO()
    # text remains text: it can be searched, and has the reader's fonts
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": label}):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    drawing = _PREAMBLE.sub("", buffer.getvalue())
    drawing = _GROUP_ID.sub("<g", drawing)
    drawing = drawing.replace("#000000", "currentColor").replace("#ffffff", "var(--paper)")
    size = _SIZE.match(drawing)
    assert size is not None
    start = f'<svg {size[1]} style="--width: {size[2]}" role="img" aria-label="{escape(label)}">'
    drawing = _SPACE.sub(">\n<", drawing[size.end() :].strip())
    return Markup(f"<figure>{start}{drawing}</figure>")


def snr_figure(lms: Mapping[str, Sequence[SnrSummary]]) -> Figure:
    """Histograms of the signal-to-noise ratio, a panel for each LM."""
    figure, every = panels(list(lms), (7.0, 3.0 * len(lms) + 0.5), sharex=True)
    for axes, summaries in zip(every, lms.values(), strict=True):
        colours: List[Any] = [f"C{n}" for n in range(10)]
        if len(summaries) > 10:  # a scale
            colours = [*matplotlib.colormaps["viridis"](np.linspace(0, 0.95, len(summaries)))]
        for summary, colour in zip(summaries, colours, strict=False):
            label = f"{plain(summary.location)} (median {summary.median:.3g})"
            shares = np.array(summary.histogram) / summary.count
            axes.stairs(shares, BIN_EDGES, color=colour, label=label)
        axes.set(xscale="log", xlim=_occupied(lms), ylabel="share per bin")
        axes.legend(fontsize="x-small", ncols=1 + len(summaries) // 13)
    every[-1].set_xlabel("signal-to-noise ratio |mean| / std")
    return figure


def pruning_figure(lms: Mapping[str, Sequence[PruningStep]]) -> Figure:
    """Perplexity against sparsity, a panel for each LM, a curve for each criterion."""
    figure, every = panels(list(lms), (7.0, 3.5 * len(lms) + 0.5), sharex=True)
    for axes, steps in zip(every, lms.values(), strict=True):
        for criterion, (label, line) in STYLES.items():
            points = [(100 * s.share, s.perplexity) for s in steps if s.criterion == criterion]
            if points:
                axes.plot(*zip(*points, strict=True), line, marker="o", markersize=3, label=label)
        best = min(step.perplexity for step in steps)
        axes.set_ylabel("perplexity per word")
        log_scale(axes)
        axes.set_ylim(top=min(axes.get_ylim()[1], MAX_RISE * best))
        axes.grid(alpha=0.3, which="both")
        axes.legend(fontsize="small")
    every[-1].set_xlabel("random weights set to zero, %")
    return figure


def log_scale(axes: Axes) -> None:
    """Make the y axis logarithmic, with 600 where matplotlib's own labels are 6 x 10^2."""
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(LogFormatter())
    axes.yaxis.set_minor_formatter(LogFormatter(minor_thresholds=(1.5, 0.5)))


def panels(
    titles: Sequence[str], size: Tuple[float, float], *, columns: int = 1, **shared: Any
) -> Tuple[Figure, List[Axes]]:
    """Figure of a size in inches, with a panel for each title; axes may be shared."""
    figure = new_figure(size)
    grid = figure.subplots(-(-len(titles) // columns), columns, squeeze=False, **shared).ravel()
    for axes in grid[len(titles) :]:
        axes.remove()
    found = list(grid[: len(titles)])
    for axes, title in zip(found, titles, strict=True):
        axes.set_title(plain(title), fontsize="medium")
    return figure, found


def _occupied(lms: Mapping[str, Sequence[SnrSummary]]) -> Tuple[float, float]:
    """Ratios between which nearly all histograms lie, in whole decades."""
    total = np.sum([s.histogram for summaries in lms.values() for s in summaries], axis=0)
    below = np.cumsum(total) / total.sum()
    first, last = np.searchsorted(below, (TAIL, 1 - TAIL))
    # 1e-9: an edge at a decade is one, whatever its last digit
    low, high = np.log10(BIN_EDGES[first]) + 1e-9, np.log10(BIN_EDGES[last + 1]) - 1e-9
    return 10.0 ** math.floor(low), 10.0 ** math.ceil(high)
