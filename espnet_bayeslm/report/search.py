"""Tables, JSON, yaml and figures of `bayeslm search`."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence

from espnet_bayeslm.evaluation.perplexity import perplexity_text
from espnet_bayeslm.supernet.history import Record
from espnet_bayeslm.supernet.ranking import (
    ArchitectureWeights,
    RankedArchitecture,
    num_architectures,
    shares,
)
from espnet_bayeslm.supernet.space import architecture_yaml, uncertainty_of
from espnet_bayeslm.training.supernets import TrainedSupernet
from espnet_bayeslm.utils.files import write_json, write_text


@dataclasses.dataclass(frozen=True)
class Run:
    """A super-network that was trained.

    Attributes:
        name: What tables call it.
        path: Its experiment folder.
        seed: ESPnet's seed of the training.
        weights: Its architecture weights at the end.
        history: The weights over the training; empty where they were not written down.
    """

    name: str
    path: str
    seed: int
    weights: ArchitectureWeights
    history: Sequence[Record] = ()


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


def as_runs(supernets: Sequence[TrainedSupernet]) -> List[Run]:
    """Super-networks as tables show them, by their folders' names."""
    names = [supernet.path.resolve().name for supernet in supernets]
    if len(set(names)) < len(names):
        names = [str(supernet.path) for supernet in supernets]
    return [
        Run(name, str(s.path), s.config.seed, s.weights, s.history)
        for name, s in zip(names, supernets, strict=True)
    ]


def describe(choices: Mapping[str, str]) -> str:
    """Architecture in a few words."""
    entries = uncertainty_of(choices).items()
    return ", ".join(f"{entry} {kind}" for entry, kind in entries) or "point at all locations"


def print_weights(runs: Sequence[Run]) -> None:
    """Print the share of each kind at each location, and each run's architecture weights."""
    tables = [shares(run.weights) for run in runs]
    locations = max(map(len, ("location", *tables[0])))
    widths = [max(8, len(run.name)) for run in runs]
    print(f"{'location':<{locations}} {'kind':<11} {'share':>6}  weights:", end=" ")
    print(*(f"{run.name:>{width}}" for run, width in zip(runs, widths, strict=True)))
    for location, kinds in tables[0].items():
        for kind in kinds:
            share = sum(table[location][kind] for table in tables) / len(tables)
            values = (run.weights[location][kind] for run in runs)
            cells = (f"{value:>+{w}.4f}" for value, w in zip(values, widths, strict=True))
            print(f"{location:<{locations}} {kind:<11} {share:6.3f} {'':9}", *cells)


def print_ranking(ranking: Sequence[RankedArchitecture], runs: Sequence[Run]) -> None:
    """Print one row for each architecture, the best first."""
    several = len(runs) > 1
    total = num_architectures(runs[0].weights)
    print(f"\nThe best of {total} architectures", end="")
    print(f", by the mean over {len(runs)} runs of ln p" if several else "")
    print(f"{'rank':>4} {'probability':>11}", end=" ")
    print(f"{'mean rank':>9} {'ranks':<{6 * len(runs)}}" if several else "", "architecture")
    for number, item in enumerate(ranking, 1):
        print(f"{number:>4} {math.exp(item.mean_log_prob):>11.4g}", end=" ")
        ranks = " ".join(f"{_text(rank):<5}" for rank in item.ranks)
        print(f"{_text(item.mean_rank):>9} {ranks} " if several else "", describe(item.choices))


def print_retrained(results: Sequence[Retrained], ranking: Sequence[RankedArchitecture]) -> None:
    """Print how good the architectures are, trained by themselves, beside their probability."""
    print("\nTrained by themselves")
    print(f"{'rank':>4} {'probability':>11} {'valid ppl':>10} {'epoch':>8}  architecture")
    for result in results:
        item = ranking[result.rank - 1]
        epoch = f"{result.epoch} of {result.num_epochs}"
        print(f"{result.rank:>4} {math.exp(item.mean_log_prob):>11.4g}", end=" ")
        print(f"{perplexity_text(result.valid_ppl):>10} {epoch:>8} ", describe(item.choices))


def _text(rank: Optional[float]) -> str:
    """Rank or a mean of ranks; a dash where it is beyond what was looked at."""
    if rank is None:
        return "-"
    return str(rank) if isinstance(rank, int) else f"{rank:.1f}"


def write_files(
    folder: Path,
    runs: Sequence[Run],
    ranking: Sequence[RankedArchitecture],
    configs: Sequence[Mapping[str, Any]],
    *,
    howto: Sequence[Sequence[str]],
) -> None:
    """Write search.json, top1.yaml and so on, architecture.png and history.png.

    Args:
        folder: Where they go.
        runs: The super-networks.
        ranking: Their best architectures.
        configs: The training configuration of each of them.
        howto: Lines for the head of each, which say how to train with it.
    """
    from espnet_bayeslm.report.architecture import history_figure, weights_figure
    from espnet_bayeslm.report.plots import save_figure

    for number, (item, config, lines) in enumerate(zip(ranking, configs, howto, strict=True), 1):
        text = architecture_yaml(config, [*_header(number, item, runs), *lines])
        write_text(folder / f"top{number}.yaml", text)
    save_figure(weights_figure({r.name: r.weights for r in runs}), folder / "architecture.png")
    history = {run.name: run.history for run in runs if run.history}
    if history:
        save_figure(history_figure(history), folder / "history.png")
    write_json(
        folder / "search.json",
        {
            "runs": [_run_json(run) for run in runs],
            "num_architectures": num_architectures(runs[0].weights),
            "ranking": [
                _ranked_json(number, item, config)
                for number, (item, config) in enumerate(zip(ranking, configs, strict=True), 1)
            ],
        },
        allow_nan=False,
    )


def _header(number: int, item: RankedArchitecture, runs: Sequence[Run]) -> List[str]:
    """Architecture that the head of a configuration describes."""
    total = num_architectures(runs[0].weights)
    lines = [f"Rank {number} of {total} in an architecture search: {describe(item.choices)}."]
    probability = f"{math.exp(item.mean_log_prob):.4g}"
    if len(runs) == 1:
        return [*lines, f"Probability {probability} in the super-network {runs[0].path}."]
    ranks = ", ".join(map(_text, item.ranks))
    return [
        *lines,
        f"Probability {probability}, the geometric mean over {len(runs)} super-networks;",
        f"rank in each: {ranks} (mean {_text(item.mean_rank)}).",
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
