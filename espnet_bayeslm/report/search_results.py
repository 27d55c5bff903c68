"""Results of `bayeslm search`: tables, figures, files, and the report's section of them."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from espnet_bayeslm.bayes.base_kinds import KINDS, Kind
from espnet_bayeslm.kinds.architectures import (
    HISTORY,
    ArchitectureWeights,
    RankedArchitecture,
    Record,
    Run,
    architecture_yaml,
    num_architectures,
    rank,
    read_history,
    shares,
    uncertainty_of,
)
from espnet_bayeslm.report.inputs import json_content, typed
from espnet_bayeslm.report.page import Section
from espnet_bayeslm.report.plots import new_figure, panels, plain_name, save_figure, svg
from espnet_bayeslm.report.table import MISSING, Table
from espnet_bayeslm.scoring.perplexity import perplexity_text
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import write_json, write_text

SEARCH, RETRAINED = "search.json", "retrain.json"
REMEDY = "Make it with `bayeslm search --exp DIR`."
LABELS = {"architecture": "Share of each kind by location", "history": "Shares over the training"}
# A run's share in the middle of a bar
DOT: Dict[str, Any] = {
    "linestyle": "",
    "marker": "o",
    "markersize": 3.5,
    "markerfacecolor": "white",
    "markeredgecolor": "black",
    "markeredgewidth": 0.7,
}
# The line where all kinds have the same share
UNDECIDED: Dict[str, Any] = {"color": "0.4", "linewidth": 0.8, "linestyle": ":"}
LINE_STYLES = ("-", "--", ":", "-.")
# Width of a location's bars; the distance to the next location is 1
BAR_SPACE = 0.8
# Panels side by side in the figure of the training
MAX_COLUMNS = 6
MAX_LEGEND = 6
# The axis of a share over the training is at least so long
MIN_SPAN = 0.05


@dataclasses.dataclass(frozen=True)
class Retrained:
    """An architecture that was trained by itself."""

    rank: int
    path: str
    start: Sequence[str]
    valid_ppl: float
    epoch: int
    num_epochs: int


def describe_choices(choices: Mapping[str, str]) -> str:
    """Architecture in a few words."""
    entries = uncertainty_of(choices).items()
    return ", ".join(f"{entry} {kind}" for entry, kind in entries) or "point at all locations"


def weight_table(runs: Sequence[Run]) -> Table:
    """Share of each kind at each location, and each run's architecture weights."""
    tables = [shares(run.weights) for run in runs]
    rows = []
    for location, kinds in tables[0].items():
        for kind in kinds:
            share = sum(table[location][kind] for table in tables) / len(tables)
            weights = [f"{run.weights[location][kind]:+.4f}" for run in runs]
            rows.append([location, kind, f"{share:.3f}", *weights])
    header = ["location", "kind", "share", *(f"weight, {run.name}" for run in runs)]
    return Table("", header, rows, words=(1,))


def ranking_table(
    ranking: Sequence[RankedArchitecture], runs: Sequence[Run], retrained: Sequence[Retrained] = ()
) -> Table:
    """One row for each architecture, the best first; perplexities of those trained by themselves.

    The probability is the geometric mean over the runs.
    """
    several = len(runs) > 1
    header = ["rank", "architecture", "probability"]
    header += ["mean rank", *(f"rank, {run.name}" for run in runs)] if several else []
    header += ["valid ppl, trained by itself", "epoch"] if retrained else []
    result_of = {result.rank: result for result in retrained}
    rows = []
    for number, item in enumerate(ranking, 1):
        ranks = [_text(rank) for rank in (item.mean_rank, *item.ranks)] if several else []
        figures = [MISSING] * 2 if retrained else []
        if number in result_of:
            result = result_of[number]
            figures = [perplexity_text(result.valid_ppl), f"{result.epoch} of {result.num_epochs}"]
        rows.append(
            [f"{number}", describe_choices(item.choices), _probability(item), *ranks, *figures]
        )
    mean = f", by the mean over {len(runs)} runs of ln p" if several else ""
    caption = f"The best of {num_architectures(runs[0].weights)} architectures{mean}"
    return Table(caption, header, rows, words=(1,))


def _probability(item: RankedArchitecture) -> str:
    return f"{math.exp(item.mean_log_prob):.4g}"


def _text(rank: Optional[float]) -> str:
    """Rank or a mean of ranks; a dash where it is beyond the limit of the ranking."""
    return MISSING if rank is None else f"{rank:g}"


def write_search(
    folder: Path,
    runs: Sequence[Run],
    ranking: Sequence[RankedArchitecture],
    configs: Sequence[Mapping[str, Any]],
) -> None:
    """Write search.json, top1.yaml and so on, architecture.png and history.png."""
    rows = []
    for number, (item, config) in enumerate(zip(ranking, configs, strict=True), 1):
        path = folder / f"top{number}.yaml"
        write_text(path, architecture_yaml(config, _header(number, item, runs, path)))
        rows.append(
            {
                "rank": number,
                "config": f"top{number}.yaml",
                "uncertainty": config["lm_conf"]["uncertainty"],
                "choices": item.choices,
                "probability": math.exp(item.mean_log_prob),
                "probabilities": [math.exp(value) for value in item.log_probs],
                "ranks": item.ranks,
                "mean_rank": item.mean_rank,
            }
        )
    for name, figure in _figures(runs).items():
        save_figure(figure, folder / f"{name}.png")
    names = []
    for run in runs:
        place = {"name": run.name, "path": run.path, "seed": run.seed}
        # a weight of minus infinity, which JSON has not, becomes null
        names.append({**place, "weights": run.weights, "shares": shares(run.weights)})
    total = num_architectures(runs[0].weights)
    write_json(folder / SEARCH, {"runs": names, "num_architectures": total, "ranking": rows})


def _header(number: int, item: RankedArchitecture, runs: Sequence[Run], path: Path) -> List[str]:
    """Head of a configuration: the architecture, and how to train it."""
    total = num_architectures(runs[0].weights)
    probability = [f"Probability {_probability(item)} in the super-network {runs[0].path}."]
    if len(runs) > 1:
        ranks = f"{', '.join(map(_text, item.ranks))} (mean {_text(item.mean_rank)})"
        probability = [
            f"Probability {_probability(item)}, the mean over {len(runs)} super-networks of ln p;",
            f"rank in each: {ranks}.",
        ]
    return [
        f"Rank {number} of {total} in an architecture search: {describe_choices(item.choices)}.",
        *probability,
        "Train it, from the super-network and with the tokens of the super-network, by",
        f"  bayeslm train --config {path} --train_text F --valid_text F --exp NEW_EXP \\",
        f"      --from {runs[item.best_run].path}",
    ]


def write_retrained(
    path: Path, results: Sequence[Retrained], ranking: Sequence[RankedArchitecture]
) -> None:
    """Write how good the architectures are, trained by themselves, as JSON."""
    rows = []
    for result in results:
        item = ranking[result.rank - 1]
        more = {"choices": item.choices, "probability": math.exp(item.mean_log_prob)}
        rows.append({**dataclasses.asdict(result), **more})
    write_json(path, rows, allow_nan=False)


class SearchResults(NamedTuple):
    """Results of a search."""

    runs: List[Run]
    ranking: List[RankedArchitecture]
    retrained: List[Retrained]


def read_search(folder: str) -> SearchResults:
    """Results of a search, from its folder of a folder."""
    path = Path(folder) / SEARCH
    with json_content(path, "architecture weights and a ranking", remedy=REMEDY) as content:
        runs = [_run(item, Path(folder)) for item in typed(List[Dict[str, Any]], content["runs"])]
        try:
            ranking = rank([run.weights for run in runs], len(content["ranking"]))
        except InputError as error:
            raise ValueError(str(error)) from error
    path = Path(folder) / RETRAINED
    if not path.exists():
        return SearchResults(runs, ranking, [])
    with json_content(path, "trained architectures", remedy=REMEDY) as rows:
        return SearchResults(runs, ranking, typed(List[Retrained], rows))


def _run(content: Dict[str, Any], folder: Path) -> Run:
    """Run of JSON, where null is a weight of minus infinity, with its history."""
    weights = {
        location: {kind: -math.inf if value is None else value for kind, value in kinds.items()}
        for location, kinds in typed(
            Dict[str, Dict[str, Optional[float]]], content["weights"]
        ).items()
    }
    run: Run = typed(Run, {**content, "weights": weights})
    # the folder may have been moved
    places = (folder / Path(run.path).name / HISTORY, Path(run.path) / HISTORY)
    history = next((read_history(place) for place in places if place.is_file()), [])
    return dataclasses.replace(run, history=history)


def search_section(searches: Mapping[str, SearchResults]) -> Section:
    """Figures and tables of searches."""
    parts = []
    for name, search in searches.items():
        figures = [
            svg(figure, f"{LABELS[what]}: {name}") for what, figure in _figures(search.runs).items()
        ]
        ranked = ranking_table(search.ranking, search.runs, search.retrained)
        parts.append({"name": name, "figures": figures, "ranking": ranked})
    return Section("search", "Architecture weights", {"searches": parts})


def _figures(runs: Sequence[Run]) -> Dict[str, Figure]:
    """Figures of a search by the names of their files."""
    figures = {"architecture": weights_figure({run.name: run.weights for run in runs})}
    history = {run.name: run.history for run in runs if run.history}
    return {**figures, "history": history_figure(history)} if history else figures


def weights_figure(runs: Mapping[str, ArchitectureWeights]) -> Figure:
    """Bars of the share of each kind, by location, as the paper's Fig. 3 has them.

    The bars are means over runs; where there are several, each is a dot too.
    """
    tables = [shares(weights) for weights in runs.values()]
    figure = new_figure((max(4.0, 1.0 + 0.45 * len(tables[0])), 3.2))
    axes = figure.add_subplot()
    for x, (location, kinds) in enumerate(tables[0].items()):
        width = BAR_SPACE / len(kinds)
        for place, kind in enumerate(kinds):
            values = [table[location][kind] for table in tables]
            at = x + (place + 0.5) * width - BAR_SPACE / 2
            axes.bar(at, float(np.mean(values)), 0.92 * width, color=_colour(kind))
            if len(values) > 1:
                axes.plot([at] * len(values), values, clip_on=False, **DOT)
        axes.plot([x - 0.5, x + 0.5], [1 / len(kinds)] * 2, **UNDECIDED)
    axes.set(xlim=(-0.5, len(tables[0]) - 0.5), ylim=(0, 1), ylabel="share")
    names = list(map(plain_name, tables[0]))
    axes.set_xticks(range(len(names)), names, rotation=90, fontsize="small")
    axes.tick_params(axis="x", length=0)
    handles: List[Any] = [
        Patch(color=_colour(kind), label=plain_name(kind)) for kind in _kinds(tables[0].values())
    ]
    if len(runs) > 1:
        handles.append(Line2D([], [], **DOT, label=f"{len(runs)} runs, bars their mean"))
    _legend(figure, handles)
    return figure


def history_figure(history: Mapping[str, Sequence[Record]]) -> Figure:
    """Shares of the kinds over the training, a panel for each location.

    Point estimates are left out: their share is 1 less all other shares.
    """
    runs = {
        run: ([epoch for epoch, _ in records], [shares(weights) for _, weights in records])
        for run, records in history.items()
        if records
    }
    if not runs:
        raise InputError("no record of the architecture weights to draw")
    first = next(iter(runs.values()))[1][0]
    columns = min(len(first), MAX_COLUMNS)
    size = max(4.0, 0.8 + 1.7 * columns), 1.0 + 1.4 * -(-len(first) // columns)
    figure, every = panels(list(first), size, columns=columns, sharex=True, sharey=True)
    for axes, (location, start) in zip(every, first.items(), strict=True):
        for number, (epochs, tables) in enumerate(runs.values()):
            for kind in _uncertain([start]):
                values = [table[location][kind] for table in tables]
                marker = "." if len(values) == 1 else ""
                axes.plot(epochs, values, marker=marker, **_line(number, _colour(kind)))
        axes.axhline(1 / len(start), **UNDECIDED)
        axes.title.set_fontsize("small")
        axes.grid(alpha=0.3)
        axes.tick_params(labelsize="small")
    for axes in every[-columns:]:
        # the row below may have no panel
        axes.tick_params(labelbottom=True)
    figure.supxlabel("epoch", fontsize="medium")
    figure.supylabel("share", fontsize="medium")
    # of 0 to 1 the part that is used
    low, high = every[0].get_ylim()
    spare = max(0.0, MIN_SPAN - (high - low)) / 2
    every[0].set_ylim(max(0.0, low - spare), min(1.0, high + spare))
    lines = {kind: _line(0, _colour(kind)) for kind in _uncertain(first.values())}
    if len(runs) > 1:
        lines.update({run: _line(number, "0.3") for number, run in enumerate(runs)})
    _legend(
        figure, [Line2D([], [], label=plain_name(name), **style) for name, style in lines.items()]
    )
    return figure


def _line(number: int, colour: str) -> Dict[str, Any]:
    """Line style of run number `number`."""
    style = LINE_STYLES[number % len(LINE_STYLES)]
    return {"color": colour, "linestyle": style, "linewidth": 1.2}


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
    """Put a legend above the panels."""
    columns = min(MAX_LEGEND, len(handles))
    figure.legend(handles=handles, loc="outside upper center", ncols=columns, frameon=False)
