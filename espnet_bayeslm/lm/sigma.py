"""Standard deviations of an LM's random weights, by location."""

from __future__ import annotations

import math
from typing import Dict, List, Tuple

from espnet_bayeslm.lm.uncertain import UncertainLM


def typical_sigma(lm: UncertainLM) -> Dict[str, Tuple[float, float]]:
    """Standard deviation of each location at the start and now.

    They are geometric means over its weights; for a latent output over the tokens and units of
    the last forward pass that computed its KL.
    """
    logs: Dict[str, List[Tuple[float, float, int]]] = {}
    for piece in lm.posterior.blocks():
        if not math.isnan(piece.start_std):
            terms = (math.log(piece.start_std), float(piece.std.log().mean()), piece.std.numel())
            logs.setdefault(piece.location, []).append(terms)
    typical = {}
    for location, pieces in logs.items():
        total = sum(count for _, _, count in pieces)
        start, now = (sum(p[k] * p[2] for p in pieces) / total for k in (0, 1))
        typical[location] = (math.exp(start), math.exp(now))
    for location, latent in lm.latents():
        if latent.typical_std is not None:
            typical[location] = (latent.init_std, latent.typical_std)
    return typical


def sigma_ranges(lm: UncertainLM) -> Dict[str, Tuple[float, float]]:
    """Smallest and largest standard deviation of each location's random weights.

    Of a latent output it is the typical one, twice.
    """
    ranges: Dict[str, Tuple[float, float]] = {}
    for piece in lm.posterior.blocks():
        # minimum and maximum of torch are nan where one of the values is
        ends = float(piece.std.min()), float(piece.std.max())
        low, high = ranges.get(piece.location, ends)
        ranges[piece.location] = (min(ends[0], low), max(ends[1], high))
    for location, latent in lm.latents():
        if latent.typical_std is not None:
            ranges[location] = (latent.typical_std, latent.typical_std)
    return ranges
