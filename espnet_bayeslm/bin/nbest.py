"""`bayeslm nbest`: N-best lists from recordings, by a recogniser that is installed."""

from __future__ import annotations

import dataclasses
import logging
import math
from typing import Any, Optional

from espnet_bayeslm.loading.components import GPUOptions
from espnet_bayeslm.nbest.formats import nbest_writer
from espnet_bayeslm.nbest.types import NBest
from espnet_bayeslm.recognition.recordings import check_recording, find_recordings, read_samples
from espnet_bayeslm.utils.cli import Tool, device_of, progress
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.options import option

RECOGNISERS = ("pocketsphinx", "espnet", "whisper")


@dataclasses.dataclass(frozen=True, kw_only=True)
class NbestOptions(GPUOptions):
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
    nbest: int = option("Hypotheses of a list, at most, and the beam of ESPnet and Whisper", 20)
    nbest_format: str = option("Format to write", "jsonl", choices=("jsonl", "kaldi"))

    def __post_init__(self) -> None:
        if self.nbest < 1:
            raise InputError(f"--nbest {self.nbest}: 1 or more hypotheses were expected")
        if (self.model is None) != (self.recogniser == "pocketsphinx"):
            problem = "is needed" if self.model is None else "has no meaning"
            raise InputError(f"--model {problem} with --recogniser {self.recogniser}")
        if self.lm is not None and self.recogniser == "whisper":
            raise InputError(
                "--lm with --recogniser whisper, whose search takes none",
                remedy="Rescore the lists with it: bayeslm rescore --lm.",
            )


def recogniser_of(options: NbestOptions) -> Any:
    """The recogniser that the options ask for: samples in, hypotheses out.

    Raises:
        InputError: The recogniser is not installed, or its files cannot be used.
    """
    size, model = options.nbest, options.model or ""
    if options.recogniser == "pocketsphinx":
        from espnet_bayeslm.recognition.sphinx import SphinxSearch

        return SphinxSearch(options.lm, size=size)
    device = device_of(options.ngpu)
    if options.recogniser == "whisper":
        from espnet_bayeslm.recognition.whisper_search import WhisperSearch

        return WhisperSearch(model, language=options.language, size=size, device=device)
    from espnet_bayeslm.recognition.beam_search import BeamSearch

    weights = {"lm_weight": options.lm_weight, "ctc_weight": options.ctc_weight}
    return BeamSearch(model, lm=options.lm, **weights, size=size, device=device)


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
    logging.info(f"{options.output}: {len(recordings)} lists, {count} hypotheses")


TOOL = Tool(
    "nbest",
    "Make N-best lists from recordings, by ESPnet, Whisper or PocketSphinx",
    nbest,
    NbestOptions,
)
get_parser, main = TOOL.parser, TOOL.main


if __name__ == "__main__":
    main()
