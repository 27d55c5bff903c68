#!/usr/bin/env python3
"""Draws the figures of the pages, `images/{results,gain,speed,adapters,gallery}.svg`, from tables.

results.svg, from egs2/ami/lm/RESULTS_embedding.md: each bar is an LM beside the point-estimate one
+ 3-gram, against point + 3-gram of the same seed: relative change of the perplexity, and difference
of the pooled word error rate with its 95 % bootstrap interval.

gain.svg, from concepts/when_it_helps.md: relative change of the perplexity, against the words of
text for each parameter.

speed.svg, from speed.md: times the speed of ESPnet's LM.

adapters.svg, from egs2/ami/lm/adapters.json: relative change of the perplexity of a posterior over
an adapter against LoRA of the same rank and seed, against the sentences that train.

gallery.svg: change of the word error rate by adapting, from howto/adapt.md; rescoring and search,
from egs2/sotu/asr1/RESULTS.md; B-WER by the length of a bias list, from howto/names.md.
"""

from __future__ import annotations

import json
import re
import statistics
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

HERE = Path(__file__).parent
TABLES = HERE.parent / "egs2" / "ami" / "lm" / "RESULTS_embedding.md"
OUTPUT = HERE / "images" / "results.svg"
GAINS = HERE / "concepts" / "when_it_helps.md"
GAIN_OUTPUT = HERE / "images" / "gain.svg"
SPEEDS = HERE / "speed.md"
SPEED_OUTPUT = HERE / "images" / "speed.svg"
ADAPTERS = HERE.parent / "egs2" / "ami" / "lm" / "adapters.json"
ADAPTERS_OUTPUT = HERE / "images" / "adapters.svg"
ADAPTED = HERE / "howto" / "adapt.md"
SEARCHES = HERE.parent / "egs2" / "sotu" / "asr1" / "RESULTS.md"
NAMES = HERE / "howto" / "names.md"
GALLERY_OUTPUT = HERE / "images" / "gallery.svg"
# Label -> first cells of its row in the table
SEARCHED = {
    "no LM": ("none", ""),
    "SmolLM2, lists": ("SmolLM2-135M as it is", "rescoring of 20"),
    "adapted SmolLM2,\nlists": ("SmolLM2-135M, LoRA", "rescoring of 20"),
    "3-gram, search": ("word 3-gram", "fused"),
    "SmolLM2, search": ("SmolLM2-135M, `--interval 8`", "fused"),
}
# Curve -> its system in the file, colour and marker
CURVES = {
    "IVON": ("ivon_r64", "#b0b7bf", "v"),
    "IVON, two fifths of the rate": ("ivon_r64_slow", "#1f6fb5", "o"),
    "bayes_lora": ("bayes_lora_r64", "#d9822b", "s"),
    "bayes_lora, LoRA's rate": ("bayes_lora_r64_slow", "#a3430f", "D"),
    "LoRA, twice the rate": ("lora_r64_fast", "#8a5fb0", "^"),
}
RIGHT = {"ha": "right", "va": "center", "fontsize": 8}
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


class Gain(NamedTuple):
    """One row of the table "What to expect".

    Attributes:
        name: Text and LM.
        words: Words of text per parameter.
        alone: Change of the perplexity of the Bayesian LM alone, in %.
        mixture: Change of the perplexity of the mixture, in %; None: not measured.
    """

    name: str
    words: float
    alone: float
    mixture: Optional[float]


def read_gains(path: Path = GAINS) -> List[Gain]:
    """Rows of the table "What to expect"."""
    rows = re.findall(r"^\| \[(.*?)\]\(.*?\) \|(.*)\|$", path.read_text("utf-8"), re.MULTILINE)
    gains = []
    for name, cells in rows:
        words, _, alone, mixture = (cell.strip() for cell in cells.split("|")[:4])
        gains.append(Gain(name, float(words), float(alone), float(mixture) if mixture else None))
    return gains


def start_pyplot() -> Any:
    """Pyplot that writes the same svg file from the same numbers."""
    import matplotlib

    matplotlib.use("agg")
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "results", "font.size": 9})
    from matplotlib import pyplot

    return pyplot


def draw_gains(output: Path = GAIN_OUTPUT) -> None:
    """Write the figure of the gains against words of text per parameter."""
    pyplot = start_pyplot()
    figure, axes = pyplot.subplots(1, 2, figsize=(8.4, 3.2), sharex=True)
    for axis, column in zip(axes, ("alone", "mixture"), strict=True):
        for backbone, colour, marker in (("Transformer", "#1f6fb5", "o"), ("LSTM", "#d9822b", "s")):
            gains = [gain for gain in read_gains() if backbone in gain.name]
            points = [(gain, getattr(gain, column)) for gain in gains]
            points = [(gain, value) for gain, value in points if value is not None]
            axis.scatter(
                [gain.words for gain, _ in points],
                [value for _, value in points],
                color=colour,
                marker=marker,
                label=backbone if axis is axes[0] else None,
            )
            for gain, value in points:
                sentences = re.search(r"\(([\d,]+)\)", gain.name)
                size = "\nlarge" if "paper" in gain.name else ""
                above = backbone == "LSTM"
                axis.annotate(
                    f"{sentences[1] if sentences else ''}{size}",
                    (gain.words, value),
                    (0, 6 if above else -6),
                    textcoords="offset points",
                    ha="center",
                    va="bottom" if above else "top",
                    fontsize=7,
                )
        axis.axhline(0, color="#222222", linewidth=0.8)
        axis.set_xscale("log")
        axis.xaxis.set_major_formatter("{x:g}")
        axis.set_xlabel("words of text per parameter")
        axis.set_title(f"perplexity, {column}: change in %", fontsize=9)
        axis.margins(x=0.14, y=0.14)
        axis.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="lower center", ncols=2, frameon=False, fontsize=8)
    figure.tight_layout(rect=(0, 0.07, 1, 1))
    figure.savefig(output, metadata={"Date": None})
    pyplot.close(figure)


def read_speeds(path: Path = SPEEDS) -> Tuple[List[str], Dict[str, List[Optional[float]]]]:
    """LMs, and for each piece of work its speed with each of them."""
    header, _, *rows = re.findall(r"^\|(.*)\|$", path.read_text("utf-8"), re.MULTILINE)[:7]
    cells = [[cell.strip() for cell in row.split("|")] for row in rows]
    names = [cell.strip() for cell in header.split("|")][1:]
    return names, {name: [float(v) if v else None for v in values] for name, *values in cells}


def draw_speeds(output: Path = SPEED_OUTPUT) -> None:
    """Write the figure of speeds against ESPnet's."""
    pyplot = start_pyplot()
    names, speeds = read_speeds()
    figure, axis = pyplot.subplots(figsize=(8.4, 3.0))
    colours = ("#f0c39b", "#b9d5ef", "#d9822b", "#1f6fb5")
    for k, (name, colour) in enumerate(zip(names, colours, strict=True)):
        values = [(y, speed[k]) for y, speed in enumerate(speeds.values()) if speed[k] is not None]
        heights = [y + (k - 1.5) * 0.2 for y, _ in values]
        axis.barh(heights, [value for _, value in values], 0.18, color=colour, label=name)
    axis.axvline(1, color="#222222", linewidth=0.8)
    axis.set_xscale("log")
    axis.set_xticks([0.5, 1, 2, 5, 10])
    axis.xaxis.set_major_formatter("{x:g}")
    axis.minorticks_off()
    axis.set_yticks(range(len(speeds)), list(speeds))
    axis.invert_yaxis()
    axis.set_xlim(0.5, 14)
    axis.set_xlabel("times the speed of ESPnet's point-estimate LM")
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(loc="upper right", frameon=False, fontsize=8)
    figure.tight_layout()
    figure.savefig(output, metadata={"Date": None})
    pyplot.close(figure)


def read_changes(path: Path = ADAPTERS) -> Dict[str, Dict[str, Dict[int, List[float]]]]:
    """Text -> curve -> sentences -> change of each seed against LoRA, in %."""
    found: Dict[str, Dict[str, Dict[int, List[float]]]] = {}
    for text, content in json.loads(path.read_text("utf-8")).items():
        systems = content["systems"]
        for label, (name, _, _) in CURVES.items():
            found.setdefault(text, {})[label] = {
                int(size): [
                    # of the seeds that both have
                    100 * (a / b - 1)
                    for a, b in zip(row["test"], systems["lora_r64"][size]["test"], strict=False)
                ]
                for size, row in systems[name].items()
            }
    return found


def draw_adapters(output: Path = ADAPTERS_OUTPUT) -> None:
    """Write the figure of the gains of a posterior over an adapter."""
    pyplot = start_pyplot()
    changes = read_changes()
    figure, axes = pyplot.subplots(1, len(changes), figsize=(8.4, 2.9), sharey=True)
    for axis, (text, by_label) in zip(axes, changes.items(), strict=True):
        for label, by_size in by_label.items():
            _, colour, marker = CURVES[label]
            points = [(size, value) for size, values in by_size.items() for value in values]
            axis.scatter(*zip(*points, strict=True), color=colour, marker=marker, s=14)
            means = [statistics.mean(values) for values in by_size.values()]
            axis.plot(list(by_size), means, color=colour, label=label if axis is axes[0] else None)
        axis.axhline(0, color="#222222", linewidth=0.8)
        axis.set_xscale("log")
        sizes = sorted({size for by_size in by_label.values() for size in by_size})
        axis.set_xticks(sizes, list(map(str, sizes)))
        axis.minorticks_off()
        axis.set_xlabel("sentences that train")
        axis.set_title(f"{text}: perplexity against LoRA, change in %", fontsize=9)
        axis.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="lower center", ncols=len(CURVES), frameon=False, fontsize=8)
    figure.tight_layout(rect=(0, 0.07, 1, 1))
    figure.savefig(output, metadata={"Date": None})
    pyplot.close(figure)


def table_rows(path: Path) -> List[List[str]]:
    """Cells of all tables of a page."""
    lines = re.findall(r"^\|(.*)\|$", path.read_text("utf-8"), re.MULTILINE)
    return [[cell.strip() for cell in line.split("|")] for line in lines]


def read_adapted() -> Dict[str, Tuple[float, float, float]]:
    """Lists -> change of the word error rate by adapting, and its interval."""
    rows = table_rows(ADAPTED)
    header = next(row for row in rows if row[0] == "held-out lists, WER in %")
    changes = next(row for row in rows if row[0] == "change by adapting, 95 % interval")
    numbers = [tuple(map(float, re.findall(r"-?\d+\.\d+", cell))) for cell in changes[1:]]
    return dict(zip(header[1:], numbers, strict=True))


def read_searches() -> Dict[str, float]:
    """System -> its word error rate, of the first table."""
    rates: Dict[Tuple[str, ...], str] = {}
    for row in table_rows(SEARCHES):
        if len(row) == 6:
            rates.setdefault(tuple(cell.replace("*", "") for cell in row[:2]), row[3].strip("*"))
    return {label: float(rates[cells]) for label, cells in SEARCHED.items()}


def read_names() -> Dict[str, Dict[int, float]]:
    """System -> phrases of a list -> B-WER on dev-other; the first rows are those of near words."""
    found: Dict[str, Dict[int, float]] = {}
    for name, *cells in table_rows(NAMES):
        size = re.fullmatch(r"dev-other, N = ([\d,]+)", name)
        for label, cell in zip(("first pass", "with the list", "with decoys"), cells, strict=False):
            if size:
                by_size, rate = found.setdefault(label, {}), cell.split("/")[2]
                by_size.setdefault(int(size[1].replace(",", "")), float(rate))
    return found


def draw_gallery(output: Path = GALLERY_OUTPUT) -> None:
    """Write the figure of what adapting, searching and names gain."""
    pyplot = start_pyplot()
    figure, axes = pyplot.subplots(1, 3, figsize=(9.6, 2.9))
    changes = read_adapted()
    for y, (change, low, high) in enumerate(changes.values()):
        axes[0].plot([low, high], [y, y], color="#1f6fb5")
        axes[0].plot([change], [y], "o", color="#1f6fb5")
    axes[0].axvline(0, color="#222222", linewidth=0.8)
    axes[0].margins(y=0.15)
    axes[0].set_yticks(range(len(changes)), list(changes))
    axes[0].set_title("SmolLM2 adapted, not as it is:\nchange of WER in points", fontsize=9)
    rates = read_searches()
    axes[1].barh(list(rates), list(rates.values()), color="#7fb2e5")
    for y, rate in enumerate(rates.values()):
        axes[1].annotate(f"{rate:.1f}", (rate, y), (-3, 0), textcoords="offset points", **RIGHT)
    axes[1].set_title("an LM in ESPnet's search:\nWER in %", fontsize=9)
    for (name, by_size), colour in zip(
        read_names().items(), ("#7d8790", "#1f6fb5", "#d9822b"), strict=True
    ):
        style = "--" if name == "with decoys" else "-"
        axes[2].plot(*zip(*by_size.items(), strict=True), style, color=colour, label=name)
    axes[2].set_xscale("log")
    axes[2].set_xticks(list(by_size), [f"{size:,}" for size in by_size])
    axes[2].minorticks_off()
    axes[2].set_ylim(bottom=0)
    axes[2].legend(frameon=False, fontsize=8, loc="lower right")
    axes[2].set_title("names in lists: B-WER in %\nby the words of a bias list", fontsize=9)
    for axis in axes[:2]:
        axis.invert_yaxis()
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(labelsize=8)
    figure.tight_layout()
    figure.savefig(output, metadata={"Date": None})
    pyplot.close(figure)


def draw(output: Path = OUTPUT) -> None:
    """Write the figure, the same file from the same tables."""
    pyplot = start_pyplot()
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
    draw_gains()
    draw_speeds()
    draw_adapters()
    draw_gallery()
