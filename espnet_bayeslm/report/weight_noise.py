"""Results of `bayeslm snr`: tables, files, and the report's section of them."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from espnet_bayeslm.evaluation.signal_to_noise import (
    BIN_EDGES,
    CRITERIA,
    PERCENTILES,
    PruningStep,
    SnrSummary,
)
from espnet_bayeslm.report.inputs import json_content, typed
from espnet_bayeslm.report.page import Section
from espnet_bayeslm.report.table import MISSING, Table
from espnet_bayeslm.scoring.perplexity import perplexity_text
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import write_json

SNR, PRUNING = "snr.json", "prune.json"
REMEDY = "Make it with `bayeslm snr --output DIR`."
LABELS = {
    "snr": "Signal-to-noise ratio of the random weights",
    "prune": "Perplexity against the share of random weights set to zero",
}
NEEDS_TEXT = "a Gaussian for each token: give --text"


class LocationRow(NamedTuple):
    """A location of an LM and its figures."""

    location: str
    kind: str
    summary: Optional[SnrSummary]


# LM -> its locations; its steps of pruning
Locations = Mapping[str, Sequence[LocationRow]]
Pruned = Mapping[str, Sequence[PruningStep]]


def pruning_table(name: str, steps: Sequence[PruningStep]) -> Table:
    """Perplexities of an LM, one row for each share of its weights at zero."""
    by_snr, by_magnitude = ([s for s in steps if s.criterion == name] for name in CRITERIA)
    rows = []
    for pair in zip(by_snr, by_magnitude, strict=True):
        values = [perplexity_text(step.perplexity) for step in pair]
        rows.append([f"{100 * pair[0].share:.1f}", f"{pair[0].num_zeroed}", *values])
    caption = f"{name}: perplexity per word with the least random weights set to zero"
    return Table(caption, ["share %", "weights", "by SNR", "by |mean|"], rows)


def write_snr(folder: Path, lms: Locations, steps: Pruned, *, text: Optional[str]) -> None:
    """Write the figures as JSON and PNG."""
    from espnet_bayeslm.report.plots import save_figure

    rows = {name: [_row_json(row) for row in rows] for name, rows in lms.items()}
    edges = BIN_EDGES.tolist()
    write_json(folder / SNR, {"text": text, "histogram_edges": edges, "lms": rows})
    if steps:
        content = {name: [dataclasses.asdict(s) for s in values] for name, values in steps.items()}
        write_json(folder / PRUNING, {"text": text, "lms": content})
    for name, figure in _figures(lms, steps).items():
        save_figure(figure, folder / f"{name}.png")


def _figures(lms: Locations, steps: Pruned) -> Dict[str, Any]:
    """Figures of the LMs that have some ratios or were pruned, by the names of their files."""
    from espnet_bayeslm.report.noise_plots import pruning_figure, snr_figure

    found = {name: [row.summary for row in rows if row.summary] for name, rows in lms.items()}
    drawn = {name: summaries for name, summaries in found.items() if summaries}
    figures = {"snr": snr_figure(drawn)} if drawn else {}
    return {**figures, "prune": pruning_figure(steps)} if steps else figures


def _row_json(row: LocationRow) -> Dict[str, Any]:
    """Row as JSON, its percentiles by name."""
    if row.summary is None:
        return {"location": row.location, "kind": row.kind, "note": NEEDS_TEXT}
    figures = dataclasses.asdict(row.summary)
    values = figures.pop("percentiles")
    figures["snr_percentiles"] = dict(zip(map(str, PERCENTILES), values, strict=True))
    return {"kind": row.kind, "median_snr": row.summary.median, **figures}


def read_snr(paths: Sequence[str]) -> Tuple[Locations, Pruned]:
    """Ratios of LMs by location, and the steps of pruned LMs."""
    lms: Dict[str, List[LocationRow]] = {}
    steps: Dict[str, List[PruningStep]] = {}
    for name in paths:
        path = Path(name) / SNR if Path(name).is_dir() else Path(name)
        with json_content(path, "signal-to-noise ratios of LMs", remedy=REMEDY) as content:
            rows = typed(Dict[str, List[Dict[str, Any]]], content["lms"])
            ratios = {lm: [_row(row) for row in values] for lm, values in rows.items()}
        if twice := [lm for lm in ratios if lm in lms]:
            problem = f"the LM {twice[0]} is in another file too"
            raise InputError(problem, path=path, remedy="Give each LM once.")
        lms.update(ratios)
        if Path(name).is_dir() and (path.parent / PRUNING).exists():
            path = path.parent / PRUNING
            with json_content(path, "perplexities of pruned LMs", remedy=REMEDY) as content:
                pruned = typed(Dict[str, List[PruningStep]], content["lms"])
                for step in (step for values in pruned.values() for step in values):
                    if step.criterion not in CRITERIA or not step.perplexity > 0:
                        problem = f"criterion {step.criterion!r}, perplexity {step.perplexity}"
                        raise ValueError(problem)
                steps.update((lm, values) for lm, values in pruned.items() if values)
    return lms, steps


def _row(content: Dict[str, Any]) -> LocationRow:
    """Row of JSON; without figures where it needed a text that was not given."""
    summary = None
    if "histogram" in content:
        ratios = typed(Dict[str, float], content["snr_percentiles"])
        percentiles = [ratios[str(p)] for p in PERCENTILES]
        summary = typed(SnrSummary, {**content, "percentiles": percentiles})
        if len(summary.histogram) != len(BIN_EDGES) - 1 or not sum(summary.histogram):
            raise ValueError(f"a histogram of {len(summary.histogram)} bins")
    return LocationRow(str(content["location"]), str(content["kind"]), summary)


def snr_section(lms: Locations, steps: Pruned) -> Section:
    """Histograms and a table."""
    from espnet_bayeslm.report.plots import svg

    figures = {name: svg(figure, LABELS[name]) for name, figure in _figures(lms, steps).items()}
    values = {"figures": figures, "locations": location_table(lms)}
    return Section("snr", "Signal-to-noise ratio", values)


def location_table(lms: Locations) -> Table:
    """Rows of each location of each LM."""
    rows = []
    for name, (location, _, summary) in ((name, row) for name, rs in lms.items() for row in rs):
        cells = [NEEDS_TEXT, *[MISSING] * 4]
        if summary is not None:
            ratio = summary.median_std_ratio
            cells = [
                f"{summary.count}",
                f"{summary.median:.3g}",
                f"{summary.percentiles[0]:.2g} to {summary.percentiles[-1]:.2g}",
                f"{summary.median_std:.3g}",
                MISSING if ratio is None else f"{ratio:.3g}",
            ]
        rows.append([name, location, *cells])
    header = ["LM", "location", "random", "median SNR", "5 to 95 %", "median σ", "σ / start"]
    caption = "Signal-to-noise ratio |mean| / σ of the random weights"
    return Table(caption, header, rows, words=(1,))
