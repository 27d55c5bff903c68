"""Tables, JSON, yaml and figures of `bayeslm search`."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence

from espnet_bayeslm.evaluation.perplexity import perplexity_text
from espnet_bayeslm.kinds.search.ranking import RankedArchitecture, Run, num_architectures, shares
from espnet_bayeslm.kinds.search.space import architecture_yaml, uncertainty_of
from espnet_bayeslm.utils.files import write_json, write_text


@dataclasses.dataclass(frozen=True)
class Retrained:
    """An architecture that was trained by itself.

    Attributes:
        rank: Its rank in the search.
        path: The experiment folder.
        start: The checkpoints that it started from.
        valid_ppl: Perplexity per token of the validation text in the best epoch.
        epoch: That epoch.
        num_epochs: Epochs that were trained.
    """

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


def print_weights(runs: Sequence[Run]) -> None:
    """Print the share of each kind at each location, and each run's architecture weights."""
    tables = [shares(run.weights) for run in runs]
    rows = [["location", "kind", "share", *(f"weight, {run.name}" for run in runs)]]
    for location, kinds in tables[0].items():
        for kind in kinds:
            share = sum(table[location][kind] for table in tables) / len(tables)
            weights = [f"{run.weights[location][kind]:+.4f}" for run in runs]
            rows.append([location, kind, f"{share:.3f}", *weights])
    _print_columns(rows)


def print_ranking(ranking: Sequence[RankedArchitecture], runs: Sequence[Run]) -> None:
    """Print one row for each architecture, the best first."""
    several = len(runs) > 1
    mean = f", by the mean over {len(runs)} runs of ln p" if several else ""
    print(f"\nThe best of {num_architectures(runs[0].weights)} architectures{mean}")
    ranks = ["mean rank", *(f"rank, {run.name}" for run in runs)] if several else []
    rows = [["rank", "probability", *ranks, "architecture"]]
    for number, item in enumerate(ranking, 1):
        ranks = [_text(rank) for rank in (item.mean_rank, *item.ranks)] if several else []
        rows.append([f"{number}", _probability(item), *ranks, describe(item.choices)])
    _print_columns(rows)


def print_retrained(results: Sequence[Retrained], ranking: Sequence[RankedArchitecture]) -> None:
    """Print how good the architectures are, trained by themselves, beside their probability."""
    print("\nTrained by themselves")
    rows = [["rank", "probability", "valid ppl", "epoch", "architecture"]]
    for result in results:
        item = ranking[result.rank - 1]
        figures = [perplexity_text(result.valid_ppl), f"{result.epoch} of {result.num_epochs}"]
        rows.append([f"{result.rank}", _probability(item), *figures, describe(item.choices)])
    _print_columns(rows)


def _print_columns(rows: Sequence[Sequence[str]]) -> None:
    """Print rows of cells, each column as wide as its widest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip())


def _probability(item: RankedArchitecture) -> str:
    """Probability of an architecture, the geometric mean over the runs."""
    return f"{math.exp(item.mean_log_prob):.4g}"


def _text(rank: Optional[float]) -> str:
    """Rank or a mean of ranks; a dash where it is beyond the limit of the ranking."""
    if rank is None:
        return "-"
    return str(rank) if isinstance(rank, int) else f"{rank:.1f}"


def write_files(
    folder: Path,
    runs: Sequence[Run],
    ranking: Sequence[RankedArchitecture],
    configs: Sequence[Mapping[str, Any]],
) -> None:
    """Write search.json, top1.yaml and so on, architecture.png and history.png.

    Args:
        folder: The folder of the search.
        runs: The super-networks.
        ranking: Their best architectures.
        configs: The training configuration of each of them.
    """
    from espnet_bayeslm.report.architecture import history_figure, weights_figure
    from espnet_bayeslm.report.plots import save_figure

    rows = []
    for number, (item, config) in enumerate(zip(ranking, configs, strict=True), 1):
        path = folder / f"top{number}.yaml"
        write_text(path, architecture_yaml(config, _header(number, item, runs, path)))
        rows.append(_ranked_json(number, item, config))
    save_figure(weights_figure({r.name: r.weights for r in runs}), folder / "architecture.png")
    history = {run.name: run.history for run in runs if run.history}
    if history:
        save_figure(history_figure(history), folder / "history.png")
    content = {
        "runs": [_run_json(run) for run in runs],
        "num_architectures": num_architectures(runs[0].weights),
        "ranking": rows,
    }
    write_json(folder / "search.json", content, allow_nan=False)


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


def _run_json(run: Run) -> Dict[str, Any]:
    """Run as JSON; a weight of minus infinity, which JSON has not, is null."""
    weights = {
        location: {kind: value if math.isfinite(value) else None for kind, value in kinds.items()}
        for location, kinds in run.weights.items()
    }
    place = {"name": run.name, "path": run.path, "seed": run.seed}
    return {**place, "weights": weights, "shares": shares(run.weights)}


def _ranked_json(
    number: int, item: RankedArchitecture, config: Mapping[str, Any]
) -> Dict[str, Any]:
    """Architecture as JSON."""
    return {
        "rank": number,
        "config": f"top{number}.yaml",
        "uncertainty": config["lm_conf"]["uncertainty"],
        "choices": item.choices,
        "probability": math.exp(item.mean_log_prob),
        "probabilities": [math.exp(value) for value in item.log_probs],
        "ranks": item.ranks,
        "mean_rank": item.mean_rank,
    }


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
