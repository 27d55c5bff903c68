"""Error rates by the weight of bias lists: files of a rescoring, and the report's figure."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Dict, List, Mapping, Optional

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
    """

    weights: List[float]
    chosen: float
    rates: Dict[str, List[float]]


def write_bias_sweep(folder: Path, sweep: BiasSweep) -> None:
    """Write bias.json and bias.png."""
    rates = {name: values.round(3).tolist() for name, values in sweep.rates.items()}
    table = BiasTable(sweep.weights.tolist(), sweep.chosen, rates)
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
    return table


def bias_section(tables: Mapping[str, BiasTable]) -> Section:
    """Figure for each system."""
    parts = []
    for name, table in tables.items():
        label = f"Error rates of {name} by the weight of its bias lists"
        figure = svg(bias_figure(table), label)
        parts.append({"name": name, "figure": figure, "rates": rate_table(table, label)})
    return Section("bias", "Weight of the bias lists", {"systems": parts})


def bias_figure(table: BiasTable) -> Figure:
    """Curves of the rates; B-WER, which is far above all others, has axes of its own."""
    figure = new_figure((8.5, 3.2))
    every = figure.subplots(1, 1 + (BIASED in table.rates), squeeze=False)[0]
    for number, (name, values) in enumerate(table.rates.items()):
        axes = every[-1 if name == BIASED else 0]
        axes.plot(table.weights, values, label=name, color=f"C{number}")
    for axes in every:
        axes.axvline(table.chosen, color="0.5", linestyle="--", linewidth=1)
        axes.set(xlabel="weight of bias", ylabel="%")
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
