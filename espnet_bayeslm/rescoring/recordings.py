"""Which recording an utterance is from and when, and the blocks that work is cut into."""

from __future__ import annotations

import math
from typing import Dict, Iterable, Iterator, List, Mapping, NamedTuple, Optional, Sequence

from espnet_bayeslm.nbest.types import NBest
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike, read_keyed_lines

# Hypotheses of a block: enough for full batches, few enough for the memory of any list.
BLOCK_SIZE = 2000
Recording = Sequence[NBest]


class Segment(NamedTuple):
    """Where an utterance is: its recording, and its start in seconds."""

    recording: str
    start: float


def read_segments(path: PathLike) -> Dict[str, Segment]:
    """Return {utterance: segment} of a Kaldi `segments` or of a `utt2start`.

    Lines are `utterance recording start [end]`, or `utterance start` of one recording.

    Raises:
        InputError: A line of another form, or no line.
    """
    segments = {}
    for utt, (line, rest) in read_keyed_lines(path).items():
        fields = rest.split()
        recording, start = ("", fields[0]) if len(fields) == 1 else (*fields, "", "")[:2]
        try:
            seconds = float(start)
        except ValueError:
            seconds = math.nan
        if not math.isfinite(seconds) or len(fields) > 3:
            raise InputError(
                f"expected `utterance recording start [end]` or `utterance start`, got {rest!r}",
                path=path,
                line=line,
                remedy="Give a Kaldi `segments` file, or utt2start with seconds.",
            )
        segments[utt] = Segment(recording, seconds)
    if not segments:
        raise InputError("no utterances", path=path)
    return segments


def by_recording(
    nbests: Iterable[NBest], segments: Optional[Mapping[str, Segment]], *, path: PathLike = ""
) -> Iterator[Recording]:
    """Yield the lists of each recording in the order of time, recordings as they come first.

    Args:
        nbests: The lists.
        segments: Where they are; None: each is a recording by itself, and is yielded at once.
        path: The file of the segments, for messages.

    Raises:
        InputError: An utterance is not among the segments.
    """
    if segments is None:
        for item in nbests:
            yield [item]
        return
    recordings: Dict[str, List[NBest]] = {}
    for item in nbests:
        if item.utt not in segments:
            raise InputError(
                f"has no line for the utterance {item.utt!r}",
                path=path,
                remedy="Give the segments of all utterances.",
            )
        recordings.setdefault(segments[item.utt].recording, []).append(item)
    for items in recordings.values():
        yield sorted(items, key=lambda item: (segments[item.utt].start, item.utt))


def blocks(recordings: Iterable[Recording]) -> Iterator[List[Recording]]:
    """Yield runs of recordings with at least `BLOCK_SIZE` hypotheses, but the last.

    The blocks do not depend on how many jobs share them, and so no score does.
    """
    block: List[Recording] = []
    count = 0
    for recording in recordings:
        block.append(recording)
        count += sum(len(item.hypotheses) for item in recording)
        if count >= BLOCK_SIZE:
            yield block
            block, count = [], 0
    if block:
        yield block


def of_job(
    every: Iterable[List[Recording]], *, job: int, num_jobs: int
) -> Iterator[List[Recording]]:
    """Yield the blocks of one job of several: each `num_jobs`-th.

    Raises:
        InputError: There is no such job.
    """
    if not 1 <= job <= num_jobs:
        raise InputError(f"--job {job} of --num_jobs {num_jobs}: expected 1 to {num_jobs}")
    for number, block in enumerate(every):
        if number % num_jobs == job - 1:
            yield block
