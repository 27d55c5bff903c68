"""Recording and time of each utterance: Kaldi's `segments`, or an `utt2start`."""

from __future__ import annotations

import math
import os
from typing import Dict, Iterable, Iterator, List, Mapping, NamedTuple, Sequence, Union

from espnet_bayeslm.nbest.types import NBest
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike, read_keyed_lines

Recording = Sequence[NBest]
"""The lists of its utterances, in the order of time."""


class Segment(NamedTuple):
    """Where an utterance is: its recording, and its start in seconds."""

    recording: str
    start: float


def read_segments(path: PathLike) -> Dict[str, Segment]:
    """{utterance: segment} of a Kaldi `segments` or of a `utt2start`.

    Lines are `utterance recording start [end]`, or `utterance start` of one recording.

    Raises:
        InputError: A line of another form, or no line.
    """
    segments = {}
    for utt, (line, rest) in read_keyed_lines(path).items():
        fields = rest.split()
        recording, start = fields[:2] if len(fields) in (2, 3) else ("", rest)
        try:
            seconds = float(start)
        except ValueError:
            seconds = math.nan
        if not math.isfinite(seconds):
            expected = "expected `utterance recording start [end]` or `utterance start`"
            remedy = "Give a Kaldi `segments` file, or utt2start with seconds."
            raise InputError(f"{expected}, got {rest!r}", path=path, line=line, remedy=remedy)
        segments[utt] = Segment(recording, seconds)
    if not segments:
        raise InputError("no utterances", path=path)
    return segments


def known_segments(
    segments: Union[PathLike, Mapping[str, Segment], None],
) -> Mapping[str, Segment]:
    """Segments by utterance, read where they are a file; none of None."""
    return read_segments(segments) if isinstance(segments, (str, os.PathLike)) else segments or {}


def recordings(
    nbests: Iterable[NBest], given: Union[PathLike, Mapping[str, Segment]]
) -> Iterator[Recording]:
    """Yield the lists of each recording in the order of time, recordings as they come first.

    The segments are a file, or by utterance.
    """
    of_recordings: Dict[str, List[NBest]] = {}
    segments = known_segments(given)
    for item in nbests:
        if item.utt not in segments:
            problem = f"has no line for the utterance {item.utt!r}"
            path = "" if isinstance(given, Mapping) else given
            raise InputError(problem, path=path, remedy="Give the segments of all utterances.")
        of_recordings.setdefault(segments[item.utt].recording, []).append(item)
    for items in of_recordings.values():
        yield sorted(items, key=lambda item: (segments[item.utt].start, item.utt))
