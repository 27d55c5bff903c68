"""Figures of signal-to-noise ratios and of pruning."""

from __future__ import annotations

import math
from typing import Any, List, Mapping, Sequence, Tuple

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from espnet_bayeslm.evaluation.signal_to_noise import BIN_EDGES, PruningStep, SnrSummary
from espnet_bayeslm.report.plots import log_scale, panels, plain_name

# the worst that is drawn, as a multiple of the best: a pruned LM's perplexity has no bound
MAX_RISE = 1000.0
# the curves often lie upon each other
STYLES = {"snr": ("by |mean| / std", "-"), "magnitude": ("by |mean|", "--")}
# share of the ratios that their figure leaves out at either side
TAIL = 0.001


def snr_figure(lms: Mapping[str, Sequence[SnrSummary]]) -> Figure:
    """Histograms of the signal-to-noise ratio, a panel for each LM."""
    figure, every = panels(list(lms), (7.0, 3.0 * len(lms) + 0.5), sharex=True)
    for axes, summaries in zip(every, lms.values(), strict=True):
        colours: List[Any] = [f"C{n}" for n in range(10)]
        if len(summaries) > 10:  # a scale
            colours = [*matplotlib.colormaps["viridis"](np.linspace(0, 0.95, len(summaries)))]
        for summary, colour in zip(summaries, colours, strict=False):
            label = f"{plain_name(summary.location)} (median {summary.median:.3g})"
            shares = np.array(summary.histogram) / summary.count
            axes.stairs(shares, BIN_EDGES, color=colour, label=label)
        axes.set(xscale="log", xlim=_occupied(lms), ylabel="share per bin")
        axes.legend(fontsize="x-small", ncols=1 + len(summaries) // 13)
    every[-1].set_xlabel("signal-to-noise ratio |mean| / std")
    return figure


def pruning_figure(lms: Mapping[str, Sequence[PruningStep]]) -> Figure:
    """Perplexity against sparsity, a panel for each LM, a curve for each criterion."""
    figure, every = panels(list(lms), (7.0, 3.5 * len(lms) + 0.5), sharex=True)
    for axes, steps in zip(every, lms.values(), strict=True):
        for criterion, (label, line) in STYLES.items():
            points = [(100 * s.share, s.perplexity) for s in steps if s.criterion == criterion]
            if points:
                axes.plot(*zip(*points, strict=True), line, marker="o", markersize=3, label=label)
        best = min(step.perplexity for step in steps)
        axes.set_ylabel("perplexity per word")
        log_scale(axes)
        axes.set_ylim(top=min(axes.get_ylim()[1], MAX_RISE * best))
        axes.grid(alpha=0.3, which="both")
        axes.legend(fontsize="small")
    every[-1].set_xlabel("random weights set to zero, %")
    return figure


def _occupied(lms: Mapping[str, Sequence[SnrSummary]]) -> Tuple[float, float]:
    """Ratios between which nearly all histograms lie, in whole decades."""
    total = np.sum([s.histogram for summaries in lms.values() for s in summaries], axis=0)
    below = np.cumsum(total) / total.sum()
    first, last = np.searchsorted(below, (TAIL, 1 - TAIL))
    # 1e-9: an edge at a decade is one, whatever its last digit
    low, high = np.log10(BIN_EDGES[first]) + 1e-9, np.log10(BIN_EDGES[last + 1]) - 1e-9
    return 10.0 ** math.floor(low), 10.0 ** math.ceil(high)
