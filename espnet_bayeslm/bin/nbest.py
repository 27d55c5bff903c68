"""`bayeslm nbest`: N-best lists from recordings, by a recogniser that is installed."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any, Dict, Optional

import numpy as np

from espnet_bayeslm.loading.component_options import GPUOptions
from espnet_bayeslm.nbest.formats import nbest_writer
from espnet_bayeslm.nbest.types import NBest
from espnet_bayeslm.recognition.recognisers import BeamSearch, SphinxSearch, WhisperSearch
from espnet_bayeslm.utils.cli import Tool, device_of, progress
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike, read_keyed_lines
from espnet_bayeslm.utils.log import LOG
from espnet_bayeslm.utils.options import ToolOptions, option

SUFFIXES = (".flac", ".wav")
RECOGNISERS = ("pocketsphinx", "espnet", "whisper")


@dataclasses.dataclass(frozen=True, kw_only=True)
class NbestOptions(GPUOptions, ToolOptions):
    """Options of `bayeslm nbest`."""

    recogniser: str = option("The recogniser", choices=RECOGNISERS)
    audio: str = option("A folder of .wav and .flac files, named after utterances, or a wav.scp")
    output: str = option("The folder to write, or for jsonl a file")
    model: Optional[str] = option(
        "ESPnet's experiment folder or checkpoint, or the folder of a Whisper model; pocketsphinx"
        " has its own",
        None,
    )
    lm: Optional[str] = option(
        "The LM of the first pass: an experiment for ESPnet's beam search, an ARPA file for"
        " pocketsphinx",
        None,
    )
    lm_weight: float = option("Weight of --lm in ESPnet's beam search", 0.3)
    ctc_weight: float = option("Weight of CTC in ESPnet's beam search", 0.3)
    language: str = option("Language of a multilingual Whisper model", "en")
    nbest: int = option(
        "Hypotheses of a list, at most, and the beam of ESPnet and Whisper", 20, least=1
    )
    nbest_format: str = option("Format to write", "jsonl", choices=("jsonl", "kaldi"))

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.model is None) != (self.recogniser == "pocketsphinx"):
            problem = "is needed" if self.model is None else "has no meaning"
            raise InputError(f"--model {problem} with --recogniser {self.recogniser}")
        if self.lm is not None and self.recogniser == "whisper":
            raise InputError(
                "--lm with --recogniser whisper, whose search takes none",
                remedy="Rescore the lists with it: bayeslm rescore --lm.",
            )


def recogniser_of(options: NbestOptions) -> Any:
    """The recogniser that the options ask for: samples in, hypotheses out."""
    size, model = options.nbest, options.model or ""
    if options.recogniser == "pocketsphinx":
        return SphinxSearch(options.lm, size=size)
    device = device_of(options.ngpu)
    if options.recogniser == "whisper":
        return WhisperSearch(model, language=options.language, size=size, device=device)
    weights = {"lm_weight": options.lm_weight, "ctc_weight": options.ctc_weight}
    return BeamSearch(model, lm=options.lm, **weights, size=size, device=device)


def find_recordings(audio: PathLike) -> Dict[str, Path]:
    """Utterance id -> audio file, in the order of the ids, of a `wav.scp` or a folder."""
    path = Path(audio)
    if not path.is_dir() and path.suffix.lower() not in SUFFIXES:
        return _from_scp(path)
    found: Dict[str, Path] = {}
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        if file.suffix.lower() in SUFFIXES and found.setdefault(file.stem, file) != file:
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
    """Samples of a recording, between -1 and 1, (T,)."""
    samples: np.ndarray = _opened(path, "read", dtype="float32")[0]
    return samples


def _opened(path: Path, function: str, **options: Any) -> Any:
    """Call a function of soundfile on a recording; one that it cannot read is an InputError."""
    import soundfile

    if not path.is_file():
        raise InputError("no such audio file", path=path)
    try:
        return getattr(soundfile, function)(str(path), **options)
    except RuntimeError as error:
        raise InputError(f"no audio that can be read ({error})", path=path) from error


def nbest(options: NbestOptions) -> None:
    """Write the N-best lists of all recordings, or nothing."""
    recordings = find_recordings(options.audio)
    recogniser = recogniser_of(options)
    for path in recordings.values():
        check_recording(path, recogniser.rate, getattr(recogniser, "max_seconds", math.inf))
    count = 0
    with nbest_writer(options.output, format=options.nbest_format) as add:
        for utt, path in progress(recordings.items(), desc="recognise", unit="utt"):
            hypotheses = tuple(recogniser(read_samples(path)))
            add(NBest(utt, hypotheses))
            count += len(hypotheses)
    LOG.info(f"{options.output}: {len(recordings)} lists, {count} hypotheses")


TOOL = Tool(
    "nbest",
    "Make N-best lists from recordings, by ESPnet, Whisper or PocketSphinx",
    nbest,
    NbestOptions,
)
get_parser, main = TOOL.parser, TOOL.main


if __name__ == "__main__":
    main()
