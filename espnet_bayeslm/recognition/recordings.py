"""Recordings that are to be recognised: their files, their rate, their samples."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Dict

import numpy as np

from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike, read_keyed_lines

SUFFIXES = (".flac", ".wav")


def find_recordings(audio: PathLike) -> Dict[str, Path]:
    """Utterance id -> audio file, in the order of the ids.

    Args:
        audio: A Kaldi `wav.scp`, or a folder, whose .wav and .flac files name the utterances.

    Raises:
        InputError: There are none, two have one name, or the scp has a command.
    """
    path = Path(audio)
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.suffix.lower() in SUFFIXES)
    elif path.suffix.lower() in SUFFIXES:
        files = [path]
    else:
        return _from_scp(path)
    found: Dict[str, Path] = {}
    for file in files:
        if found.setdefault(file.stem, file) != file:
            raise InputError(
                f"two recordings have the name {file.stem!r}, which is the utterance id",
                path=file,
                remedy="Rename one, or give a wav.scp.",
            )
    if not found:
        raise InputError(f"no audio found: {' or '.join(SUFFIXES)} files were expected", path=audio)
    return found


def _from_scp(path: Path) -> Dict[str, Path]:
    """Utterance id -> audio file of a `wav.scp`."""
    found = {}
    for utt, (line, value) in read_keyed_lines(path).items():
        if not value or value.endswith("|"):
            raise InputError(
                f"{value[:80]!r} is no audio file",
                path=path,
                line=line,
                remedy="Commands are not run: write their output into files.",
            )
        found[utt] = Path(value)
    return dict(sorted(found.items()))


def check_recording(path: Path, rate: int, max_seconds: float = math.inf) -> None:
    """Check that a recogniser can read a recording; its samples are not read.

    Raises:
        InputError: It cannot be read, has another rate (samples a second) or several channels, or
            is empty or too long.
    """
    info = _opened(path, "info")
    remedy = ""
    if info.samplerate != rate or info.channels != 1:
        problem = f"{info.samplerate} samples a second and {info.channels} channels"
        expected = f"{rate} and 1 were expected"
        remedy = f"Convert it: sox IN -r {rate} -c 1 OUT"
    elif not 0 < info.duration <= max_seconds:
        problem, expected = f"{info.duration:.1f} seconds of audio", "more than 0 were expected"
        if info.duration:
            expected = f"at most {max_seconds:g} were expected"
            remedy = "Cut it into sentences."
    else:
        return
    raise InputError(f"{problem}: {expected}", path=path, remedy=remedy)


def read_samples(path: Path) -> np.ndarray:
    """Samples of a recording with one channel, (T,), between -1 and 1."""
    return _opened(path, "read", dtype="float32")[0]


def _opened(path: Path, function: str, **options: Any) -> Any:
    """Result of a function of soundfile for a file."""
    import soundfile

    if not path.is_file():
        raise InputError("no such audio file", path=path)
    try:
        return getattr(soundfile, function)(str(path), **options)
    except RuntimeError as error:
        raise InputError(f"no audio that can be read ({error})", path=path) from error
