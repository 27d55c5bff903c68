"""Figures, drawn without a display and without matplotlib's global state, as PNG and as SVG."""

from __future__ import annotations

import io
import re
from typing import Any, List, Sequence, Tuple

import matplotlib
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter

from espnet_bayeslm.utils.files import PathLike, atomic_write

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


def plain_name(name: str) -> str:
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
    every_axes = list(grid[: len(titles)])
    for axes, title in zip(every_axes, titles, strict=True):
        axes.set_title(plain_name(title), fontsize="medium")
    return figure, every_axes
