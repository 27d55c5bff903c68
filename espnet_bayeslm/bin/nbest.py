"""`bayeslm nbest`: N-best lists from recordings, by an installed recogniser, or from CTC logits."""

from __future__ import annotations

import dataclasses
import itertools
import math
from pathlib import Path
from typing import Any, Dict, Iterator, Mapping, Optional, Sequence

import numpy as np

from espnet_bayeslm.loading.component_options import GPUOptions, MixtureOptions
from espnet_bayeslm.nbest.formats import nbest_writer
from espnet_bayeslm.nbest.types import NBest
from espnet_bayeslm.recognition.ctc_lists import CTCOptions, ctc_lists
from espnet_bayeslm.recognition.recognisers import (
    SHOWN,
    BeamSearch,
    LeftOut,
    SphinxSearch,
    WhisperSearch,
)
from espnet_bayeslm.utils.cli import Tool, device_of, progress
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike, read_keyed_lines, read_lines
from espnet_bayeslm.utils.log import LOG
from espnet_bayeslm.utils.options import option, part_of

SUFFIXES = (".flac", ".wav")
CONVERT = "Convert it: ffmpeg -i IN OUT.wav"
# Recogniser -> the inputs that it needs; the others it does not take
NEEDED = {
    "pocketsphinx": ("audio",),
    "espnet": ("audio", "model"),
    "whisper": ("audio", "model"),
    "ctc": ("logits", "tokens"),
}
RECOGNISERS = tuple(NEEDED)


@dataclasses.dataclass(frozen=True, kw_only=True)
class NbestOptions(CTCOptions, MixtureOptions, GPUOptions):
    """Options of `bayeslm nbest`."""

    recogniser: str = option("The recogniser", choices=RECOGNISERS)
    output: str = option("The folder to write, or for jsonl a file")
    audio: Optional[str] = option(
        "A folder of audio files (.wav, .flac and others that soundfile reads), named after"
        " utterances, or a wav.scp; of ctc --logits stand in its place",
        None,
    )
    model: Optional[str] = option(
        "ESPnet's experiment folder or checkpoint, or the folder of a Whisper model; pocketsphinx"
        " has its own",
        None,
    )
    lms: Sequence[Any] = option(
        "The LM of the first pass: an experiment for ESPnet's beam search, an ARPA file for"
        " pocketsphinx; for ctc as in rescore (repeatable)",
        (),
        name="lm",
    )
    lm_weight: Optional[float] = option(
        "Weight of the LM in the search; default: 0.3 of ESPnet's, 0.5 of ctc", None, least=0
    )
    ctc_weight: float = option("Weight of CTC in ESPnet's beam search", 0.3)
    penalty: float = option("Bonus of each token in ESPnet's beam search", 0.0)
    language: str = option("Language of a multilingual Whisper model", "en")
    nbest: int = option(
        "Hypotheses of a list, at most, and the beam of ESPnet and Whisper", 20, least=1
    )
    nbest_format: str = option("Format to write", "jsonl", choices=("jsonl", "kaldi"))

    def __post_init__(self) -> None:
        super().__post_init__()
        needed = NEEDED[self.recogniser]
        for name in ("audio", "model", "logits", "tokens"):
            if (getattr(self, name) is None) == (name in needed):
                problem = "is needed" if name in needed else "has no meaning"
                raise InputError(f"--{name} {problem} with --recogniser {self.recogniser}")
        if self.recogniser == "ctc":
            return
        for name in ("hotwords", "unigrams", "blank", "ngrams", "weights"):
            if getattr(self, name):
                problem = f"--{name.removesuffix('s') if name == 'ngrams' else name}"
                raise InputError(f"{problem} has no meaning with --recogniser {self.recogniser}")
        if self.lms and self.recogniser == "whisper":
            raise InputError(
                "--lm with --recogniser whisper, whose search takes none",
                remedy="Rescore the lists with it: bayeslm rescore --lm.",
            )
        if len(self.lms) > 1:
            problem = f"{len(self.lms)} LMs with --recogniser {self.recogniser}, which takes one"
            raise InputError(problem, remedy="Rescore the lists with the others.")


def recogniser_of(options: NbestOptions) -> Any:
    """The recogniser that the options ask for: samples in, hypotheses out."""
    size, model = options.nbest, options.model or ""
    lm = next(iter(options.lms), None)
    if options.recogniser == "pocketsphinx":
        return SphinxSearch(lm, size=size)
    device = device_of(options.ngpu)
    if options.recogniser == "whisper":
        return WhisperSearch(model, language=options.language, size=size, device=device)
    lm_weight = 0.3 if options.lm_weight is None else options.lm_weight
    weights = {"ctc_weight": options.ctc_weight, "penalty": options.penalty}
    return BeamSearch(model, lm=lm, lm_weight=lm_weight, **weights, size=size, device=device)


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


def recognised(options: NbestOptions) -> Iterator[NBest]:
    """Yield the N-best list of each recording; one that fails is left out, and named in the log."""
    recordings = find_recordings(options.audio or "")
    recogniser = recogniser_of(options)
    left_out = LeftOut(len(recordings))
    usable = checked_recordings(recordings, recogniser, left_out)
    for utt, path in progress(usable.items(), desc="recognise", unit="utt"):
        try:
            found = NBest(utt, tuple(recogniser(read_samples(path))))
        except Exception as error:  # a recogniser may raise any
            left_out.add(utt, path, error)
        else:
            yield found
    left_out.warn()


def searched(options: NbestOptions) -> Iterator[NBest]:
    """Yield the N-best list of each utterance of a CTC recogniser's logits."""
    lists = ctc_lists(
        options,
        part_of(MixtureOptions, options),
        lm_weight=0.5 if options.lm_weight is None else options.lm_weight,
        size=options.nbest,
        device=device_of(options.ngpu),
    )
    yield from progress(lists, desc="search", unit="utt")


def nbest(options: NbestOptions) -> None:
    """Write the N-best lists of recordings or logits; nothing where there is none."""
    lists = (searched if options.recogniser == "ctc" else recognised)(options)
    num_lists = num_hypotheses = 0
    first = next(lists)  # what is wrong with the inputs is told before a folder is made
    with nbest_writer(options.output, format=options.nbest_format) as add:
        for item in itertools.chain([first], lists):
            add(item)
            num_lists, num_hypotheses = num_lists + 1, num_hypotheses + len(item.hypotheses)
    LOG.info(f"{options.output}: {num_lists} lists, {num_hypotheses} hypotheses")


TOOL = Tool(
    "nbest",
    "Make N-best lists from recordings, by ESPnet, Whisper or PocketSphinx, or from CTC logits",
    nbest,
    NbestOptions,
)
get_parser, main = TOOL.parser, TOOL.main


if __name__ == "__main__":
    main()
