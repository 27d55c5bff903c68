"""Times of the words of hypotheses, and the lines of a ctm file that tell them."""

from __future__ import annotations

from typing import Any, Iterator, Optional, Sequence, Tuple, Union

import numpy as np

from espnet_bayeslm.nbest.types import Hypothesis

TIMES = "times"
"""Key of a hypothesis of JSON lines: begin and end of each of its words, in seconds."""

Times = Sequence[Tuple[float, float]]


def times_of(hypothesis: Hypothesis) -> Optional[Times]:
    """Begin and end of each word in seconds; None: its `times` are missing or something else."""
    times = hypothesis.extra.get(TIMES)
    if not isinstance(times, (list, tuple)) or len(times) != len(hypothesis.words):
        return None
    return times if all(map(_is_span, times)) else None


def _is_span(value: Any) -> bool:
    """True for begin and end."""
    is_pair = isinstance(value, (list, tuple)) and len(value) == len(("begin", "end"))
    return is_pair and all(type(n) in (int, float) and n >= 0 for n in value)


def ctm_lines(
    utt: str,
    words: Sequence[str],
    times: Times,
    confidences: Union[np.ndarray, Sequence[float], None] = None,
) -> Iterator[str]:
    """Yield the lines of an utterance in a ctm file: begin, duration, word, perhaps confidence.

    Args:
        utt: Id of the utterance.
        words: Its words.
        times: Begin and end of each, in seconds.
        confidences: Probability that each is right; None: they are not known.
    """
    for n, (word, (begin, end)) in enumerate(zip(words, times, strict=True)):
        sure = "" if confidences is None else f" {confidences[n]:.3f}"
        yield f"{utt} 1 {begin:.3f} {end - begin:.3f} {word}{sure}"
