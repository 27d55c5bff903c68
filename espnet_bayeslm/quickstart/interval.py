"""A figure with its 95 % interval: how it is written, and how it is found over seeds."""

from __future__ import annotations

import math
import statistics
from typing import Callable, Dict, NamedTuple, Sequence, Tuple

import numpy as np


class Interval(NamedTuple):
    """A figure and its 95 % interval.

    Attributes:
        value: The figure.
        low: Lower end; nan where there is no interval.
        high: Upper end; nan where there is no interval.
        p: p-value of a test that the figure is zero; nan where there is no test.
    """

    value: float
    low: float
    high: float
    p: float = math.nan

    def text(self, write: Callable[[float], str]) -> str:
        """Figure and interval in brackets; a dagger where the figure is significantly below 0."""
        mark = " †" if self.value < 0 and self.p < 0.05 else ""
        if math.isnan(self.low):
            return write(self.value) + mark
        return f"{write(self.value)} [{write(self.low)}, {write(self.high)}]{mark}"


def pairs(seeds: Sequence[int]) -> Dict[int, Tuple[int, int]]:
    """{seed: it and another}: pairs of starts, each once."""
    found = {seed: (seed, other) for seed, other in zip(seeds, [*seeds[1:], seeds[0]], strict=True)}
    return {seeds[0]: found[seeds[0]]} if len(seeds) == 2 else found


def over_seeds(values: Sequence[float], *, ring: bool = False) -> Interval:
    """Geometric mean and its 95 % t interval; of one value there is no interval.

    A perplexity is exp of a mean of nats per word: the mean is taken over these nats. In a ring
    value n is of seeds n and n + 1, as `pairs` makes them.
    """
    from scipy.stats import t  # takes a while

    logs = [math.log(value) for value in values]
    mean, count = statistics.fmean(logs), len(logs)
    half = math.nan
    if count > 1:
        variance, freedom = ring_variance(logs) if ring else (statistics.variance(logs), count - 1)
        half = float(t.ppf(0.975, freedom)) * math.sqrt(variance / count)
    return Interval(math.exp(mean), math.exp(mean - half), math.exp(mean + half))


def ring_variance(values: Sequence[float]) -> Tuple[float, int]:
    """Variance of one seed's part in N >= 3 pairs that overlap, and its degrees of freedom.

    Value n of N is (u_n + u_(n+1)) / 2 with independent u: its Fourier coefficient m has the
    variance of u times cos^2(pi m / N). Each coefficient but the mean estimates the variance; with
    even N, the alternating coefficient holds nothing of it. Anything else that differs between
    pairs makes the estimate larger.
    """
    count = len(values)
    power = np.abs(np.fft.fft(values)[1:]) ** 2 / count
    gain = np.cos(np.pi * np.arange(1, count) / count) ** 2
    held = gain > 1e-9
    return float(np.mean(power[held] / gain[held])), int(held.sum())
