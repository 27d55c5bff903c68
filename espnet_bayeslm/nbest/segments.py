"""Recording of each list, and its place there.

They come from Kaldi's `segments` or an `utt2start`, from a pattern of the utterance ids, from
Kaldi's `utt2spk`, or from the lists themselves.
"""

from __future__ import annotations

import functools
import math
import os
import re
from pathlib import Path
from typing import (
    Callable,
    Dict,
    Iterable,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
    Union,
)

from espnet_bayeslm.nbest.types import NBest
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike, read_keyed_lines

SOURCES = ("segments", "recording_of", "utt2spk")
"""Options that say which recording each list is of, the arguments of `place_finder`."""
Recording = Sequence[NBest]
"""The lists of its utterances, in the order of time."""


class Segment(NamedTuple):
    """Where an utterance is: its recording, and its start in seconds, if that is known."""

    recording: str
    start: Optional[float] = None


PlaceOf = Callable[[NBest], Segment]
"""Function of a list: where its utterance is."""


def read_segments(path: PathLike) -> Dict[str, Segment]:
    """{utterance: segment} of a Kaldi `segments` or of a `utt2start`.

    Lines are `utterance recording start [end]`, or `utterance start` of one recording. The name of
    a file tells starts from durations and other numbers.
    """
    segments = {}
    is_named = re.search("start|segments", Path(path).name.lower())
    for utt, (line, rest) in read_keyed_lines(path).items():
        fields = rest.split()
        recording, *times = fields if len(fields) in (2, 3) else ("", rest)
        expected = "expected `utterance recording start [end]`"
        try:
            start, *end = map(float, times)
        except ValueError:
            start, end = math.nan, []
        problem = ""
        if not all(map(math.isfinite, (start, *end))):
            problem = f"{expected} or `utterance start`"
        elif not (recording or is_named):
            problem = f"{expected}, since a number alone may be a duration"
        elif end and 0 <= end[0] <= start:  # Kaldi's -1 is the end of the recording
            problem = f"{expected}, an end after its start"
        if problem:
            remedy = "Give a Kaldi `segments` file, or starts in seconds in a file named utt2start."
            raise InputError(f"{problem}, got {rest!r}", path=path, line=line, remedy=remedy)
        segments[utt] = Segment(recording, start)
    if not segments:
        raise InputError("no utterances", path=path)
    return segments


def read_utt2spk(path: PathLike) -> Dict[str, str]:
    """{utterance: speaker} of Kaldi's `utt2spk`."""
    speakers = {}
    for utt, (line, speaker) in read_keyed_lines(path).items():
        if len(speaker.split()) != 1:
            expected = f"expected `utterance speaker`, got {speaker!r}"
            raise InputError(expected, path=path, line=line, remedy="Give Kaldi's utt2spk.")
        speakers[utt] = speaker.strip()
    if not speakers:
        raise InputError("no utterances", path=path)
    return speakers


def read_utt2lm(path: PathLike) -> Dict[str, str]:
    """{utterance: LM} of a file of lines `utterance LM`."""
    lms = {}
    for utt, (line, lm) in read_keyed_lines(path).items():
        if not lm.strip():
            raise InputError("expected `utterance LM`", path=path, line=line)
        lms[utt] = lm.strip()
    if not lms:
        raise InputError("no utterances", path=path)
    return lms


def id_pattern(pattern: str) -> re.Pattern[str]:
    """Regular expression of `--recording_of`."""
    try:
        return re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise InputError(
            f"--recording_of {pattern!r} is not a regular expression ({error})",
            remedy="Give one as '([^-]+-[^-]+)-', whose group 1 is the recording.",
        ) from error


def place_finder(
    segments: Union[PathLike, Mapping[str, Segment], None] = None,
    recording_of: Optional[str] = None,
    utt2spk: Union[PathLike, Mapping[str, str], None] = None,
) -> PlaceOf:
    """Function of a list that returns its recording, and its start there.

    One source at most is given; without one the lists hold their recordings.

    Args:
        segments: Kaldi's `segments` or an `utt2start`, or segments by utterance.
        recording_of: Regular expression that is searched in utterance ids; its group 1, or all of
            it where it has no group, is the recording.
        utt2spk: Kaldi's `utt2spk`, or speakers by utterance, which stand for recordings.
    """
    if recording_of is not None:
        return functools.partial(_matched, id_pattern(recording_of))
    if segments is None and utt2spk is None:
        return _own_place
    known: Dict[str, Segment]
    given = segments if utt2spk is None else utt2spk
    path = given if isinstance(given, (str, os.PathLike)) else ""
    if segments is not None:
        known = dict(segments if isinstance(segments, Mapping) else read_segments(segments))
    else:
        speakers = utt2spk if isinstance(utt2spk, Mapping) else read_utt2spk(path)
        known = {utt: Segment(speaker) for utt, speaker in speakers.items()}
    return functools.partial(_known_place, known, path)


def _known_place(known: Mapping[str, Segment], path: PathLike, item: NBest) -> Segment:
    """Segment of a list by its utterance id; one without a start has the list's."""
    if item.utt not in known:
        problem = f"has no line for the utterance {item.utt!r}"
        raise InputError(problem, path=path, remedy="Give a line for each utterance.")
    found = known[item.utt]
    return found._replace(start=item.start) if found.start is None else found


def _matched(pattern: re.Pattern[str], item: NBest) -> Segment:
    """Recording that a pattern finds in the utterance id of a list."""
    found = pattern.search(item.utt)
    recording = None if found is None else found[min(1, pattern.groups)]
    if recording is None:
        raise InputError(
            f"--recording_of {pattern.pattern!r} finds nothing in the utterance id {item.utt!r}",
            remedy="Give a regular expression that all ids match, whose group 1 is the recording.",
        )
    return Segment(recording, item.start)


def _own_place(item: NBest) -> Segment:
    """Recording and start that a list holds."""
    if item.recording is None:
        raise InputError(
            "--context previous needs to know the recordings, and the list of the utterance"
            f" {item.utt!r} has none",
            remedy="Give --segments FILE, --recording_of PATTERN, --utt2spk FILE, or lists that"
            " hold their `recording` (JSON lines).",
        )
    return Segment(item.recording, item.start)


def recordings(nbests: Iterable[NBest], place_of: PlaceOf) -> Iterator[Recording]:
    """Yield the lists of each recording in the order of time, recordings as they come first.

    Without starts the lists of a recording stay in the order in which they come.
    """
    of_recordings: Dict[str, List[Tuple[Optional[float], NBest]]] = {}
    for item in nbests:
        place = place_of(item)
        of_recordings.setdefault(place.recording, []).append((place.start, item))
    for name, pairs in of_recordings.items():
        starts = [(start, item.utt) for start, item in pairs if start is not None]
        if starts and len(starts) < len(pairs):
            raise InputError(
                f"{len(starts)} of the {len(pairs)} lists of the recording {name!r} have a start,"
                f" {starts[0][1]!r} among them, and all or none were expected",
                remedy="Give `start` in all lists of a recording, or in none.",
            )
        if starts:
            pairs.sort(key=lambda pair: (pair[0], pair[1].utt))
        yield [item for _, item in pairs]
