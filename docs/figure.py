#!/usr/bin/env python3
"""Draws `images/results.svg` from the tables of egs2/ami/lm/RESULTS_embedding.md.

Each bar is an LM beside the point-estimate one + 3-gram, against point + 3-gram of the same seed:
relative change of the perplexity, and difference of the pooled word error rate with its 95 %
bootstrap interval.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import List, NamedTuple, Optional

HERE = Path(__file__).parent
TABLES = HERE.parent / "egs2" / "ami" / "lm" / "RESULTS_embedding.md"
OUTPUT = HERE / "images" / "results.svg"
SEEDS = (1, 2, 3)
EMBEDDING = "embedding, dropout_rate 0.0, prior_mean 0, prior_variance 0.01"
MAP = "Transformer, MAP, prior_mean 0, prior_variance 0.1"
# What is shown: its label and colour; the row of each seed.
SHOWN = (
    ("MAP, same start", "#b0b7bf", (MAP,) * 3),
    (
        "MAP, another start",
        "#7d8790",
        (f"{MAP} of seed 2 + Transformer", f"{MAP} of seed 1 + Transformer", ""),
    ),
    ("Bayesian, same start", "#7fb2e5", (f"Bayesian Transformer, {EMBEDDING}",) * 3),
    (
        "Bayesian, another start",
        "#1f6fb5",
        tuple(f"Bayesian Transformer, {EMBEDDING} of seed {n} + Transformer" for n in (2, 1, 1)),
    ),
)


class Bar(NamedTuple):
    """What a line changes at a seed.

    Attributes:
        perplexity: In %.
        wer: In points.
        low: End of its interval.
        high: The other end.
    """

    perplexity: float
    wer: float
    low: float
    high: float


def read_bars(path: Path = TABLES) -> List[List[Optional[Bar]]]:
    """Bars of each shown LM by seed; None where it was not run."""
    text = path.read_text(encoding="utf-8").split("\n## Against the point-estimate LM\n")[1]
    table = re.findall(r"^\|.*$", text.split("\n## ")[0], flags=re.MULTILINE)
    header, _, *rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table]
    cells = {}
    for row in rows:
        for column, value in zip(header[1:], row[1:], strict=True):
            if value:
                cells[re.sub(r"^\d+\. ", "", row[0]), column] = value

    def bar(name: str, seed: int) -> Optional[Bar]:
        if (name, f"WER, seed {seed}") not in cells:
            return None
        ppl, wer = cells[name, f"ppl, seed {seed}"], cells[name, f"WER, seed {seed}"]
        numbers = [float(number) for number in re.findall(r"[-+]\d+\.\d+", f"{ppl} {wer}")]
        return Bar(*numbers[:4])

    return [[bar(names[n - 1], n) for n in SEEDS] for _, _, names in SHOWN]


def draw(output: Path = OUTPUT) -> None:
    """Write the figure, the same file from the same tables."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "results", "font.size": 9})
    figure, axes = pyplot.subplots(1, 2, figsize=(8.4, 2.9), sharex=True)
    width = 0.2
    for k, ((label, colour, _), bars) in enumerate(zip(SHOWN, read_bars(), strict=True)):
        for seed, bar in zip(SEEDS, bars, strict=True):
            if bar is None:
                continue
            x = seed + (k - 1.5) * width
            name = label if bar is next(filter(None, bars)) else None
            axes[0].bar(x, bar.perplexity, 0.9 * width, color=colour, label=name)
            axes[1].bar(x, bar.wer, 0.9 * width, color=colour)
            axes[1].plot([x, x], [bar.low, bar.high], color="#222222", linewidth=1.2)
            for axis, value in zip(axes, (bar.perplexity, bar.wer), strict=True):
                edge = min(value, 0) if axis is axes[0] else min(bar.low, 0)
                axis.annotate(
                    f"{value:+.2f}",
                    (x, edge),
                    (0, -3),
                    textcoords="offset points",
                    ha="center",
                    va="top",
                    fontsize=6.2,
                )
    for axis, title in zip(
        axes, ("perplexity, change in %", "word error rate, change in points"), strict=True
    ):
        axis.axhline(0, color="#222222", linewidth=0.8)
        axis.set_title(title, fontsize=9)
        axis.set_xticks(SEEDS, [f"seed {n}" for n in SEEDS])
        axis.margins(y=0.12)
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(axis="x", length=0)
    figure.legend(loc="lower center", ncols=len(SHOWN), frameon=False, fontsize=8)
    figure.tight_layout(rect=(0, 0.08, 1, 1))
    figure.savefig(output, metadata={"Date": None})
    pyplot.close(figure)


if __name__ == "__main__":
    draw()
