"""The report's signal-to-noise ratios and pruning curves."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from espnet_bayeslm.evaluation.snr import BIN_EDGES, PERCENTILES, SnrSummary
from espnet_bayeslm.report.html_input import expecting, mapping, number, numbers, read_json
from espnet_bayeslm.report.page import Section
from espnet_bayeslm.report.plots import STYLES, pruning_figure, snr_figure, svg
from espnet_bayeslm.report.table import MISSING, Table
from espnet_bayeslm.utils.errors import InputError

SNR, PRUNING = "snr.json", "prune.json"
REMEDY = "Make it with `bayeslm snr --output DIR`."
Summaries = Dict[str, List[SnrSummary]]
# LM -> criterion -> (share of the weights, perplexity), ...
Curves = Dict[str, Dict[str, List[Tuple[float, float]]]]


def read_snr(paths: Sequence[str]) -> Tuple[Summaries, Curves]:
    """Ratios of LMs by location, and the perplexities of pruned LMs.

    Args:
        paths: Folders of `bayeslm snr`, or their snr.json.

    Raises:
        InputError: A file is missing or not usable, or an LM's name comes twice.
    """
    lms: Summaries = {}
    curves: Curves = {}
    for name in paths:
        path = Path(name) / SNR if Path(name).is_dir() else Path(name)
        content = read_json(path, remedy=REMEDY)
        with expecting("signal-to-noise ratios of LMs", path=path, remedy=REMEDY):
            found = {
                # a row without figures needed a text that was not given
                lm: [_summary(row) for row in rows if "histogram" in row]
                for lm, rows in mapping(content["lms"]).items()
            }
        twice = [lm for lm in found if lm in lms]
        if twice:
            raise InputError(f"{twice[0]} is in another file too", path=path)
        lms.update(found)
        if Path(name).is_dir() and (path.parent / PRUNING).exists():
            curves.update(_read_curves(path.parent / PRUNING))
    return lms, curves


def _summary(row: Mapping[str, Any]) -> SnrSummary:
    ratios = row["snr_percentiles"]
    percentiles = tuple(number(ratios[str(p)], infinite=True) for p in PERCENTILES)
    histogram = tuple(int(value) for value in numbers(row["histogram"]))
    if len(histogram) != len(BIN_EDGES) - 1 or not sum(histogram):
        raise ValueError(f"a histogram of {len(histogram)} bins, not {len(BIN_EDGES) - 1}")
    ratio = row["median_std_ratio"]
    return SnrSummary(
        str(row["location"]),
        int(number(row["count"])),
        percentiles,
        number(row["median_std"]),
        None if ratio is None else number(ratio),
        histogram,
    )


def _read_curves(path: Path) -> Curves:
    content = read_json(path, remedy=REMEDY)
    curves: Curves = {}
    with expecting("perplexities of pruned LMs", path=path, remedy=REMEDY):
        for name, steps in mapping(content["lms"]).items():
            for step in steps:
                if step["criterion"] not in STYLES:
                    raise ValueError(f"criterion {step['criterion']!r}")
                perplexity = number(step["result"]["perplexity"]["word"], infinite=True)
                curve = curves.setdefault(name, {}).setdefault(step["criterion"], [])
                curve.append((number(step["share"]), perplexity))
    return curves


def snr_section(lms: Summaries, curves: Curves) -> Optional[Section]:
    """Histograms and a table; None where there is no LM."""
    if not lms:
        return None
    shown = {name: rows for name, rows in lms.items() if rows}
    ratios = "Signal-to-noise ratio of the random weights"
    pruning = "Perplexity against the share of random weights set to zero"
    values = {
        "ratios": svg(snr_figure(shown), ratios) if shown else None,
        "locations": location_table(lms),
        "pruning": svg(pruning_figure(curves), pruning) if curves else None,
    }
    return Section("snr", "Signal-to-noise ratio", values)


def location_table(lms: Summaries) -> Table:
    """Rows of each location of each LM."""
    rows = []
    for name, summaries in lms.items():
        for summary in summaries:
            low, high = summary.percentiles[0], summary.percentiles[-1]
            ratio = summary.median_std_ratio
            ratios = [f"{summary.median:.3g}", f"{low:.2g} to {high:.2g}"]
            sigma = [f"{summary.median_std:.3g}", MISSING if ratio is None else f"{ratio:.3g}"]
            rows.append([name, summary.location, f"{summary.count}", *ratios, *sigma])
        if not summaries:
            rows.append([name, "needs a text", *[MISSING] * 5])
    header = ["LM", "location", "random", "median SNR", "5 to 95 %", "median σ", "σ / start"]
    caption = "Signal-to-noise ratio |mean| / σ of the random weights"
    return Table(caption, header, rows, words=(1,))
