"""Results of `bayeslm search`: tables, files, and the report's section of them."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence

from espnet_bayeslm.evaluation.perplexity import perplexity_text
from espnet_bayeslm.kinds.architectures import (
    HISTORY,
    RankedArchitecture,
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
from espnet_bayeslm.report.table import MISSING, Table
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import write_json, write_text

SEARCH, RETRAINED = "search.json", "retrain.json"
REMEDY = "Make it with `bayeslm search --exp DIR`."


@dataclasses.dataclass(frozen=True)
class Retrained:
    """An architecture that was trained by itself."""

    rank: int
    path: str
    start: Sequence[str]
    valid_ppl: float
    epoch: int
    num_epochs: int


def describe(choices: Mapping[str, str]) -> str:
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
    found = {result.rank: result for result in retrained}
    rows = []
    for number, item in enumerate(ranking, 1):
        ranks = [_text(rank) for rank in (item.mean_rank, *item.ranks)] if several else []
        figures = [MISSING] * 2 if retrained else []
        if number in found:
            result = found[number]
            figures = [perplexity_text(result.valid_ppl), f"{result.epoch} of {result.num_epochs}"]
        rows.append([f"{number}", describe(item.choices), _probability(item), *ranks, *figures])
    mean = f", by the mean over {len(runs)} runs of ln p" if several else ""
    caption = f"The best of {num_architectures(runs[0].weights)} architectures{mean}"
    return Table(caption, header, rows, words=(1,))


def _probability(item: RankedArchitecture) -> str:
    return f"{math.exp(item.mean_log_prob):.4g}"


def _text(rank: Optional[float]) -> str:
    """Rank or a mean of ranks; a dash where it is beyond the limit of the ranking."""
    return MISSING if rank is None else f"{rank:g}"


def write_files(
    folder: Path,
    runs: Sequence[Run],
    ranking: Sequence[RankedArchitecture],
    configs: Sequence[Mapping[str, Any]],
) -> None:
    """Write search.json, top1.yaml and so on, architecture.png and history.png."""
    from espnet_bayeslm.report.architecture_figures import history_figure, weights_figure
    from espnet_bayeslm.report.plots import save_figure

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
    save_figure(weights_figure({r.name: r.weights for r in runs}), folder / "architecture.png")
    history = {run.name: run.history for run in runs if run.history}
    if history:
        save_figure(history_figure(history), folder / "history.png")
    found = []
    for run in runs:
        # a weight of minus infinity, which JSON has not, is null
        weights = {
            location: {kind: v if math.isfinite(v) else None for kind, v in kinds.items()}
            for location, kinds in run.weights.items()
        }
        place = {"name": run.name, "path": run.path, "seed": run.seed}
        found.append({**place, "weights": weights, "shares": shares(run.weights)})
    content = {
        "runs": found,
        "num_architectures": num_architectures(runs[0].weights),
        "ranking": rows,
    }
    write_json(folder / SEARCH, content, allow_nan=False)


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
        f"Rank {number} of {total} in an architecture search: {describe(item.choices)}.",
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


class Search(NamedTuple):
    """Results of a search."""

    runs: List[Run]
    ranking: List[RankedArchitecture]
    retrained: List[Retrained]


def read_search(folder: str) -> Search:
    """Search of a folder."""
    path = Path(folder) / SEARCH
    with json_content(path, "architecture weights and a ranking", remedy=REMEDY) as content:
        runs = [_run(item, Path(folder)) for item in typed(List[Dict[str, Any]], content["runs"])]
        try:
            ranking = rank([run.weights for run in runs], len(content["ranking"]))
        except InputError as error:
            raise ValueError(str(error)) from error
    path = Path(folder) / RETRAINED
    if not path.exists():
        return Search(runs, ranking, [])
    with json_content(path, "trained architectures", remedy=REMEDY) as rows:
        return Search(runs, ranking, typed(List[Retrained], rows))


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


def search_section(searches: Mapping[str, Search]) -> Optional[Section]:
    """Figures and tables of searches; None where there is none."""
    from espnet_bayeslm.report.architecture_figures import history_figure, weights_figure
    from espnet_bayeslm.report.plots import svg

    if not searches:
        return None
    parts = []
    for name, search in searches.items():
        drawn = weights_figure({run.name: run.weights for run in search.runs})
        figures = [svg(drawn, f"Share of each kind by location: {name}")]
        history = {run.name: run.history for run in search.runs if run.history}
        if history:
            figures.append(svg(history_figure(history), f"Shares over the training: {name}"))
        ranked = ranking_table(search.ranking, search.runs, search.retrained)
        parts.append({"name": name, "figures": figures, "ranking": ranked})
    return Section("search", "Architecture weights", {"searches": parts})
