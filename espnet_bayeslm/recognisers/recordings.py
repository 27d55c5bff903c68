"""Recordings: audio files by utterance, and those that no list is made of."""

from __future__ import annotations

import importlib
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, Mapping

import numpy as np

from espnet_bayeslm.nbest.fields import placed
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import (
    PathLike,
    read_keyed_lines,
    read_lines,
)
from espnet_bayeslm.utils.log import LOG

if TYPE_CHECKING:
    pass

RATE = 16000
"""Samples a second that the acoustic model takes."""
DIGITS = 4  # of scores, after the point
SHOWN = 10  # names of recordings in one line
SUFFIXES = (".flac", ".wav")
CONVERT = "Convert it: ffmpeg -i IN OUT.wav"


class LeftOut:
    """Recordings that no list is made of; the log has each one and the cause.

    Args:
        total: How many recordings there are.
    """

    def __init__(self, total: int):
        self.total = total
        self.errors: Dict[str, InputError] = {}

    def add(self, utt: str, path: PathLike, error: Exception) -> None:
        """Leave out a recording."""
        self.errors[utt] = placed(error, path)
        if len(self.errors) < self.total:
            LOG.warning("%s is left out: %s", utt, self.errors[utt])
            return
        first, cause = next(iter(self.errors.items()))
        if self.total > 1:
            problem = f"none of the {self.total} recordings can be used"
            cause = InputError(f"{problem}, the first, {first}: {cause}")
        raise cause

    def warn(self) -> None:
        """Tell in one line which recordings were left out, where some were."""
        if self.errors:
            names = ", ".join([*self.errors][:SHOWN]) + ", .." * (len(self.errors) > SHOWN)
            LOG.warning("%d of %d recordings are left out: %s", len(self.errors), self.total, names)


def installed(package: str, installs: str) -> Any:
    """Import a package; if it is missing, the error names the `installs` for pip."""
    try:
        return importlib.import_module(package)
    except ImportError:
        remedy = f"Run: pip install {installs}"
        raise InputError(f"{package} is not installed", remedy=remedy) from None


def find_recordings(audio: PathLike) -> Dict[str, Path]:
    """Utterance id -> audio file, in the order of the ids, of a `wav.scp` or a folder.

    Of a folder all files are taken that soundfile reads, and a warning names others that are no
    text.
    """
    path = Path(audio)
    if not path.is_dir():
        if _is_audio(path):
            return {path.stem: path}
        if path.is_file() and not _is_text(path):
            problem = f"neither audio that can be read nor a wav.scp: {_readable()}"
            raise InputError(problem, path=path, remedy=CONVERT)
        return _from_scp(path)
    found: Dict[str, Path] = {}
    unread = []
    files = (file for file in sorted(path.rglob("*")) if file.is_file() and file.name[0] != ".")
    for file in files:
        if not _is_audio(file):
            unread += [file.name] * (not _is_text(file))
        elif found.setdefault(file.stem, file) != file:
            raise InputError(
                f"two recordings have the name {file.stem!r}, which is the utterance id",
                path=file,
                remedy="Rename one, or give a wav.scp.",
            )
    if unread:
        names = ", ".join(unread[:SHOWN]) + ", .." * (len(unread) > SHOWN)
        problem = f"left out as no audio that can be read ({len(unread)}): {names}"
        LOG.warning("%s: %s. %s. %s", audio, problem, _readable(), CONVERT)
    if not found:
        raise InputError(f"no audio found: {_readable()}", path=audio)
    return found


def _is_audio(path: Path) -> bool:
    """True if a file has the name of audio, or soundfile reads it."""
    if path.suffix.lower() in SUFFIXES:
        return True
    try:
        _opened(path, "info")
    except InputError:
        return False
    return True


def _is_text(path: Path) -> bool:
    """True if the first line of a file, perhaps compressed, is text."""
    try:
        next(read_lines(path), None)
    except InputError:
        return False
    return True


def _readable() -> str:
    """Sentence that names what soundfile reads."""
    import soundfile

    return f"soundfile reads {', '.join(sorted(soundfile.available_formats()))}"


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
    """Check the format and length of a recording, whose samples are not read."""
    info = _opened(path, "info")
    found = f"{info.samplerate} samples a second and {info.channels} channels"
    length = f"{info.duration:.1f} seconds of audio"
    if (info.samplerate, info.channels) != (rate, 1):
        remedy = f"Convert it: sox IN -r {rate} -c 1 OUT"
        raise InputError(f"{found}: {rate} and 1 were expected", path=path, remedy=remedy)
    if info.duration <= 0:
        raise InputError(f"{length}: more than 0 were expected", path=path)
    if info.duration > max_seconds:
        problem = f"{length}: at most {max_seconds:g} were expected"
        raise InputError(problem, path=path, remedy="Cut it into sentences.")


def read_samples(path: Path) -> np.ndarray:
    """Samples of a recording, between -1 and 1, (T,); an InputError where some are no numbers."""
    samples: np.ndarray = _opened(path, "read", dtype="float32")[0]
    bad = np.count_nonzero(~np.isfinite(samples))
    if bad:
        raise InputError(f"{bad} of {len(samples)} samples are no numbers", path=path)
    return samples


def _opened(path: Path, function: str, **options: Any) -> Any:
    """Call a function of soundfile on a recording; one that it cannot read is an InputError."""
    import soundfile

    if not path.is_file():
        raise InputError("no such audio file", path=path)
    try:
        return getattr(soundfile, function)(str(path), **options)
    except Exception as error:  # soundfile raises several
        raise InputError(f"no audio that can be read ({error})", path=path) from error


def checked_recordings(
    paths: Mapping[str, Path], recogniser: Any, left_out: LeftOut
) -> Dict[str, Path]:
    """Recordings whose format and length a recogniser takes; others are left out."""
    usable = {}
    for utt, path in paths.items():
        try:
            check_recording(path, recogniser.rate, getattr(recogniser, "max_seconds", math.inf))
            usable[utt] = path
        except InputError as error:
            left_out.add(utt, path, error)
    return usable
