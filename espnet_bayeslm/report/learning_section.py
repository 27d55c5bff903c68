"""The report's learning curves of experiments."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Dict, List, Mapping, NamedTuple, Sequence

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from espnet_bayeslm.report.inputs import expecting
from espnet_bayeslm.report.page import Section
from espnet_bayeslm.report.plots import log_scale, new_figure, plain_name, svg
from espnet_bayeslm.report.table import Table, fixed
from espnet_bayeslm.scoring.perplexity import perplexity_text
from espnet_bayeslm.utils.errors import InputError

CHECKPOINT = "checkpoint.pth"
REMEDY = "Give the experiment folder of an LM's training."
STATISTICS = ("nll", "kl", "ppl")
MAX_LEGEND = 3


class Epoch(NamedTuple):
    """The statistics of an epoch, as far as `STATISTICS` names them."""

    number: int
    train: Mapping[str, float]
    valid: Mapping[str, float]


def read_epochs(path: str) -> List[Epoch]:
    """Epochs of an experiment."""
    from espnet_bayeslm.loading.checkpoint import read_checkpoint  # imports torch

    file = Path(path) / CHECKPOINT if Path(path).is_dir() else Path(path)
    if not file.is_file():
        raise InputError(f"found no {CHECKPOINT}", path=path, remedy=REMEDY)
    content = read_checkpoint(file)
    epochs = []
    with expecting("the statistics of a training", path=file, remedy=REMEDY):
        for epoch, parts in sorted(content["reporter"]["stats"].items()):
            found = [
                {name: float(part[name]) for name in STATISTICS if name in part}
                for part in (parts.get("train", {}), parts.get("valid", {}))
            ]
            if "ppl" in found[1]:
                epochs.append(Epoch(int(epoch), *found))
    if not epochs:
        raise InputError("no epoch with `ppl` of the validation text", path=file, remedy=REMEDY)
    return epochs


def learning_section(experiments: Mapping[str, Sequence[Epoch]]) -> Section:
    """Curves and a table of experiments."""
    figure = svg(learning_figure(experiments), "Learning curves of the experiments")
    return Section(
        "learning", "Learning curves", {"figure": figure, "epochs": epoch_table(experiments)}
    )


def learning_figure(experiments: Mapping[str, Sequence[Epoch]]) -> Figure:
    """Perplexity and KL over the epochs, a colour for each experiment."""
    panels = [("ppl", "perplexity per token")]
    if any(epoch.valid.get("kl") for epochs in experiments.values() for epoch in epochs):
        panels.append(("kl", "KL, nats per token"))
    rows = -(-(len(experiments) + 2) // MAX_LEGEND)
    figure = new_figure((8.5, 3.4 + 0.22 * rows))
    every = figure.subplots(1, len(panels), squeeze=False)[0]
    for axes, (statistic, label) in zip(every, panels, strict=True):
        for number, epochs in enumerate(experiments.values()):
            for part, style in (("train", "--"), ("valid", "-")):
                values = [getattr(epoch, part).get(statistic, math.nan) for epoch in epochs]
                line: Dict[str, Any] = {"marker": "o", "markersize": 3, "color": f"C{number % 10}"}
                axes.plot([epoch.number for epoch in epochs], values, style, **line)
        axes.set(xlabel="epoch", ylabel=label)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(alpha=0.3)
    # first epochs are far above later ones
    log_scale(every[0])
    handles = [
        Line2D([], [], color=f"C{n % 10}", label=plain_name(name))
        for n, name in enumerate(experiments)
    ]
    handles.append(Line2D([], [], color="0.5", label="validation"))
    handles.append(Line2D([], [], color="0.5", linestyle="--", label="training"))
    figure.legend(handles=handles, loc="outside upper center", ncols=MAX_LEGEND, frameon=False)
    return figure


def epoch_table(experiments: Mapping[str, Sequence[Epoch]]) -> Table:
    """Rows of the experiments: the best epoch of each, and its bound at the end."""
    header = ["experiment", "epochs", "best epoch", "valid ppl"]
    header += ["train NLL", "train KL", "NLL + KL"]
    rows = []
    for name, epochs in experiments.items():
        best = min(epochs, key=lambda epoch: epoch.valid["ppl"])
        last = epochs[-1].train
        bound = last["nll"] + last["kl"] if {"nll", "kl"} <= last.keys() else None
        figures = (fixed(value, 4) for value in (last.get("nll"), last.get("kl"), bound))
        epoch = [f"{epochs[-1].number}", f"{best.number}", perplexity_text(best.valid["ppl"])]
        rows.append([name, *epoch, *figures])
    caption = "Best epoch, and the last epoch's training figures in nats per token"
    return Table(caption, header, rows)
