"""Tables, JSON and figures of `bayeslm snr`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence

from espnet_bayeslm.evaluation.perplexity import perplexity_text
from espnet_bayeslm.evaluation.snr import BIN_EDGES, PERCENTILES, PruningStep, SnrSummary
from espnet_bayeslm.utils.files import write_json

NEEDS_TEXT = "a Gaussian for each token: give --text"


class LocationRow(NamedTuple):
    """A location of an LM and its figures.

    Attributes:
        location: Its name.
        kind: "weights", or "latent" for a Gaussian at each token.
        summary: Its figures; None where they need a text.
    """

    location: str
    kind: str
    summary: Optional[SnrSummary]


def print_snr(lms: Mapping[str, Sequence[LocationRow]]) -> None:
    """Print one row for each LM and location."""
    columns = [f"{p} %" for p in PERCENTILES if p != 50]
    width = max(map(len, ("LM", *lms)))
    print(f"{'LM':<{width}} {'location':<18} {'random':>11} {'median SNR':>10}", end=" ")
    print(*(f"{column:>9}" for column in columns), f"{'sigma':>10} {'/ start':>8}")
    for name, rows in lms.items():
        for row in rows:
            print(f"{name:<{width}} {row.location:<18}", _figures(row.summary))


def _figures(summary: Optional[SnrSummary]) -> str:
    """Figures of a row of the table."""
    if summary is None:
        return NEEDS_TEXT
    spread = [v for p, v in zip(PERCENTILES, summary.percentiles, strict=True) if p != 50]
    ratio = summary.median_std_ratio
    values = " ".join(f"{value:9.3g}" for value in spread)
    start = f"{'-':>8}" if ratio is None else f"{ratio:8.3g}"
    return f"{summary.count:11d} {summary.median:10.3g} {values} {summary.median_std:10.3g} {start}"


def print_pruning(name: str, steps: Sequence[PruningStep]) -> None:
    """Print the perplexities of an LM, one row for each share."""
    snr_steps, magnitude_steps = _by_criterion(steps).values()
    print(f"\n{name}: perplexity per word with the least random weights set to zero")
    print(f"{'share %':>8} {'weights':>11} {'by SNR':>12} {'by |mean|':>12}")
    for first, second in zip(snr_steps, magnitude_steps, strict=True):
        values = (f"{perplexity_text(_word_perplexity(step)):>12}" for step in (first, second))
        print(f"{100 * first.share:8.1f} {first.num_zeroed:11d}", *values)


def _by_criterion(steps: Sequence[PruningStep]) -> Dict[str, List[PruningStep]]:
    """{criterion: its steps}."""
    curves: Dict[str, List[PruningStep]] = {}
    for step in steps:
        curves.setdefault(step.criterion, []).append(step)
    return curves


def _word_perplexity(step: PruningStep) -> float:
    """Perplexity per word, OOVs included, of a pruned LM."""
    return step.result["perplexity"]["word"]


def write_files(
    folder: Path,
    lms: Mapping[str, Sequence[LocationRow]],
    steps: Mapping[str, Sequence[PruningStep]],
    *,
    text: Optional[str],
) -> None:
    """Write the figures as JSON and PNG."""
    from espnet_bayeslm.report.plots import pruning_figure, save_figure, snr_figure

    write_json(
        folder / "snr.json",
        {
            "text": text,
            "histogram_edges": BIN_EDGES.tolist(),
            "lms": {name: [_row_json(row) for row in rows] for name, rows in lms.items()},
        },
    )
    known = {name: [row.summary for row in rows if row.summary] for name, rows in lms.items()}
    drawn = {name: summaries for name, summaries in known.items() if summaries}
    if drawn:
        save_figure(snr_figure(drawn), folder / "snr.png")
    if steps:
        content = {name: [dataclasses.asdict(s) for s in values] for name, values in steps.items()}
        write_json(folder / "prune.json", {"text": text, "lms": content})
        curves = {
            name: {
                criterion: [(s.share, _word_perplexity(s)) for s in members]
                for criterion, members in _by_criterion(values).items()
            }
            for name, values in steps.items()
        }
        save_figure(pruning_figure(curves), folder / "prune.png")


def _row_json(row: LocationRow) -> Dict[str, Any]:
    """Row as JSON, its percentiles by name."""
    if row.summary is None:
        return {"location": row.location, "kind": row.kind, "note": NEEDS_TEXT}
    figures = dataclasses.asdict(row.summary)
    values = figures.pop("percentiles")
    figures["snr_percentiles"] = dict(zip(map(str, PERCENTILES), values, strict=True))
    return {"kind": row.kind, "median_snr": row.summary.median, **figures}
