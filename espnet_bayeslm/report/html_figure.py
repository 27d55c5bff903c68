"""Matplotlib's figures as SVG within a page, in the page's colours."""

from __future__ import annotations

import io
import re

import matplotlib
from markupsafe import Markup, escape
from matplotlib.figure import Figure

# What matplotlib writes before and beside the drawing; its <style> would hold for the whole page.
_PREAMBLE = re.compile(
    r"^.*?(?=<svg)|<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", re.DOTALL
)
# Names of groups: nothing refers to them, and several figures have the same ones.
_GROUP_ID = re.compile(r'<g id="[^"]*"')
_SIZE = re.compile(r'<svg [^>]*?(viewBox="0 0 ([0-9.]+) [^"]*")[^>]*>')
_SPACE = re.compile(r">\s+<")


def plain(name: str) -> str:
    """Name as matplotlib shows it: no formula in it, and not left out of legends."""
    name = name.replace("$", r"\$")
    return f" {name}" if name.startswith("_") else name


def svg(figure: Figure, label: str) -> Markup:
    """SVG element of a figure: black is the page's text, white is its paper.

    Args:
        figure: The figure.
        label: What it shows, for those who do not see it; unlike those of the other figures.
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
