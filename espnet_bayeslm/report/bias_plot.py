"""Error rates by the weight of bias lists: files of a rescoring, and the report's figure."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Dict, List, Mapping, Optional, Sequence

from matplotlib.figure import Figure

from espnet_bayeslm.evaluation.biased_words import BIASED
from espnet_bayeslm.report.inputs import json_content, typed
from espnet_bayeslm.report.page import Section
from espnet_bayeslm.report.plots import new_figure, save_figure, svg
from espnet_bayeslm.report.table import Cell, Row, Table
from espnet_bayeslm.rescoring.bias_sweep import BiasSweep
from espnet_bayeslm.utils.files import write_json

FILE, PICTURE = "bias.json", "bias.png"
REMEDY = "Tune again with `bayeslm rescore --tune_ref --bias`, or delete it."


@dataclasses.dataclass(frozen=True)
class BiasTable:
    """Error rates of a development set by the weight of its bias lists.

    Attributes:
        weights: The weights, as scales.yaml has them.
        chosen: The chosen one.
        rates: Name -> rate at each weight, in percent.
        phrases: Mean number of phrases of a list; None: not known.
    """

    weights: List[float]
    chosen: float
    rates: Dict[str, List[float]]
    phrases: Optional[float] = None

    def rate(self, name: str) -> float:
        """Rate at the chosen weight."""
        return self.rates[name][self.weights.index(self.chosen)]


def write_bias_sweep(folder: Path, sweep: BiasSweep) -> None:
    """Write bias.json and bias.png."""
    rates = {name: values.round(3).tolist() for name, values in sweep.rates.items()}
    table = BiasTable(sweep.weights.tolist(), sweep.chosen, rates, sweep.phrases)
    write_json(folder / FILE, dataclasses.asdict(table), indent=None)
    save_figure(bias_figure(table), folder / PICTURE)


def read_bias_sweep(folder: Path) -> Optional[BiasTable]:
    """Rates of a rescoring's folder; None where there are none."""
    if not (folder / FILE).exists():
        return None
    what = "error rates by the weight of bias lists"
    with json_content(folder / FILE, what, remedy=REMEDY) as content:
        table: BiasTable = typed(BiasTable, content)
        count = len(table.weights)
        if not table.rates or any(len(values) != count for values in table.rates.values()):
            raise ValueError(f"not {count} rates, as there are weights")
        if table.chosen not in table.weights:
            raise ValueError(f"{table.chosen}, the chosen weight, is none of the weights")
    return table


def bias_section(tables: Mapping[str, BiasTable]) -> Section:
    """Figure for each system, and one of all by the length of their lists."""
    lengths, parts = length_figure(tables), []
    for name, table in tables.items():
        label = f"Error rates of {name} by the weight of its bias lists"
        figure = svg(bias_figure(table), label)
        parts.append({"name": name, "figure": figure, "rates": rate_table(table, label)})
    drawn = lengths and svg(lengths, "Error rates by the number of phrases in a bias list")
    return Section("bias", "Bias lists", {"systems": parts, "lengths": drawn})


def bias_figure(table: BiasTable) -> Figure:
    """Curves of the rates by the weight, with a line at the chosen one."""
    figure = rate_figure(table.weights, table.rates, "weight of bias")
    for axes in figure.axes:
        axes.axvline(table.chosen, color="0.5", linestyle="--", linewidth=1)
    return figure


def length_figure(tables: Mapping[str, BiasTable]) -> Optional[Figure]:
    """Rates at the chosen weights by the phrases of a list; None where the lists are as long."""
    known = [(own.phrases, own) for own in tables.values() if own.phrases]
    known.sort(key=lambda pair: pair[0])
    if len({phrases for phrases, _ in known}) < 2:
        return None
    names = [name for name in known[0][1].rates if all(name in own.rates for _, own in known)]
    rates = {name: [own.rate(name) for _, own in known] for name in names}
    figure = rate_figure([phrases for phrases, _ in known], rates, "phrases of a list", ".-")
    for axes in figure.axes:
        axes.set_xscale("log")
    return figure


def rate_figure(
    places: Sequence[float], rates: Mapping[str, Sequence[float]], label: str, line: str = "-"
) -> Figure:
    """Curves of the rates; B-WER, which is far above all others, has axes of its own."""
    figure = new_figure((8.5, 3.2))
    every = figure.subplots(1, 1 + (BIASED in rates), squeeze=False)[0]
    for number, (name, values) in enumerate(rates.items()):
        axes = every[-1 if name == BIASED else 0]
        axes.plot(places, values, line, label=name, color=f"C{number}")
    for axes in every:
        axes.set(xlabel=label, ylabel="%")
        axes.grid(alpha=0.3)
        axes.legend(frameon=False)
    return figure


def rate_table(table: BiasTable, caption: str) -> Table:
    """Rates at each weight."""
    rows: List[Row] = [
        [Cell(f"{weight:.4g}", strong=weight == table.chosen), *(f"{v:.2f}" for v in values)]
        for weight, *values in zip(table.weights, *table.rates.values(), strict=True)
    ]
    return Table(caption, ["weight", *(f"{name} %" for name in table.rates)], rows)
