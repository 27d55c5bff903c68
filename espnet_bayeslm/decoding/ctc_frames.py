"""Frames of a CTC search: their likely tokens, and the tokens of alignments.

Frames in a row whose one likely token is the same are one step: after the first of them all
hypotheses end in that token, and the others add the same to all.
"""

from __future__ import annotations

import itertools
from typing import Any, Iterator, List, NamedTuple, Optional, Tuple

import numpy as np

LEAST = -1e9
"""Ln P of a token that is impossible, where all others are too."""

Trace = Optional[Tuple[Any, int, int, int]]
"""Tokens of an alignment: (trace of the tokens before, token, its first frame, the frame after)."""


class FrameStep(NamedTuple):
    """A frame, or frames in a row that have one likely token, and the same.

    Attributes:
        tokens: The likely tokens and their ln P.
        rest: Ln P of the token in the frames after the first one.
        start: The first frame.
        end: The frame after the last one.
    """

    tokens: List[Tuple[int, float]]
    rest: float
    start: int
    end: int


def steps_of(log_probs: np.ndarray, silent: np.ndarray, least: float) -> Iterator[FrameStep]:
    """Yield the steps of an utterance.

    Args:
        log_probs: Ln P of each token at each frame, (T, V).
        silent: True for tokens that are never found, (V,).
        least: Ln P below which a token is skipped, but for the best one of a frame.
    """
    allowed = np.where(silent, -np.inf, log_probs)
    best, tops = allowed.argmax(axis=1), np.maximum(allowed.max(axis=1), LEAST)
    used = (allowed >= least) & (allowed > -np.inf)
    used[np.arange(len(used)), best] = True
    counts = used.sum(axis=1)
    rows, columns = np.nonzero(used)
    values = np.maximum(allowed[rows, columns], LEAST)
    goes_on = (counts[1:] == 1) & (counts[:-1] == 1) & (best[1:] == best[:-1])
    bounds = np.flatnonzero([True, *~goes_on, True])
    firsts = bounds[:-1]
    rests = np.add.reduceat(tops, firsts) - tops[firsts]
    pairs = list(zip(columns.tolist(), values.tolist(), strict=True))
    ends = counts.cumsum()[firsts]
    slices = zip((ends - counts[firsts]).tolist(), ends.tolist(), strict=True)
    spans = itertools.pairwise(bounds.tolist())
    for (place, after), rest, (start, end) in zip(slices, rests.tolist(), spans, strict=True):
        yield FrameStep(pairs[place:after], rest, start, end)


def grown(trace: Trace, token: int, goes_on: bool, step: FrameStep) -> Trace:
    """Trace of a hypothesis after a step that ends in a token.

    Args:
        trace: The trace before.
        token: The token.
        goes_on: True if the token is the last one of the trace.
        step: The step.
    """
    if goes_on and trace is not None:
        return (trace[0], token, trace[2], step.end)
    return (trace, token, step.start, step.end)
