"""`bayeslm nbest`: N-best lists from recordings, by an installed recogniser, or from CTC logits."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence

from espnet_bayeslm.decoding.ctc_lists import CTCOptions, ctc_lists
from espnet_bayeslm.evaluation.bias_lists import BiasLists
from espnet_bayeslm.evaluation.normalization import Normalization
from espnet_bayeslm.loading.component_options import MixtureOptions, ngpu_option
from espnet_bayeslm.nbest.formats import nbest_writer
from espnet_bayeslm.nbest.types import NBest
from espnet_bayeslm.recognisers.espnet_asr import BeamSearch
from espnet_bayeslm.recognisers.pocketsphinx import SphinxSearch
from espnet_bayeslm.recognisers.recordings import (
    LeftOut,
    checked_recordings,
    find_recordings,
    read_samples,
)
from espnet_bayeslm.recognisers.whisper import FEWEST_TOKENS, TOKEN_RATE, WhisperSearch
from espnet_bayeslm.rescoring.near_texts import near_texts
from espnet_bayeslm.rescoring.rescore_options import BIAS_WEIGHT
from espnet_bayeslm.utils.cli import Tool, device_of, progress
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.log import LOG
from espnet_bayeslm.utils.options import ToolOptions, nested, option

# Recogniser -> the inputs that it needs; the others it does not take
NEEDED = {
    "pocketsphinx": ("audio",),
    "espnet": ("audio", "model"),
    "whisper": ("audio", "model"),
    "ctc": ("logits", "tokens"),
}
RECOGNISERS = tuple(NEEDED)


def ctc_weight_option() -> Any:
    """Field of the option `--ctc_weight` of tools that run ESPnet's search."""
    return option(
        "Weight of CTC in ESPnet's beam search (default: 0.3, and 0 of s2t models such as OWSM)",
        None,
        least=0,
        most=1,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class SearchLMs(MixtureOptions):
    """LMs and n-grams of a search."""

    lms: Sequence[Any] = option(
        "The LM of the first pass: an experiment for ESPnet's beam search, an ARPA file for"
        " pocketsphinx; for ctc and whisper as in rescore (repeatable)",
        (),
        name="lm",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class WhisperOptions(ToolOptions):
    """Options of Whisper's search."""

    token_rate: float = option(
        f"Tokens of a hypothesis of Whisper for each second, at most, beside {FEWEST_TOKENS}: more"
        " are a loop",
        TOKEN_RATE,
        least=0,
    )
    language: Optional[str] = option(
        "Language of a multilingual Whisper model (default: en), or of OWSM (default: eng)", None
    )
    encoded: Optional[str] = option(
        "A folder that keeps outputs of Whisper's encoder: another search of the same recordings"
        " takes half the time. An output of Whisper base has 3 MB",
        None,
    )

    def search(self, model: str, *, normalize: str, **how: Any) -> WhisperSearch:
        """The recogniser of a folder, whose hypotheses differ after some steps."""
        steps = Normalization(normalize)
        steps.check_by_word("--recogniser whisper")
        return WhisperSearch(model, normalization=steps, **self.values(), **how)


@dataclasses.dataclass(frozen=True, kw_only=True)
class NbestOptions(ToolOptions):
    """Options of `bayeslm nbest`."""

    ngpu: int = ngpu_option()
    mixture: SearchLMs = nested(SearchLMs)
    ctc: CTCOptions = nested(CTCOptions)
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
    lm_weight: Optional[float] = option(
        "Weight of the LM in the search; default: 0.3 of ESPnet's, 0.2 of Whisper's, 0.5 of ctc",
        None,
        least=0,
    )
    ctc_weight: Optional[float] = ctc_weight_option()
    penalty: float = option("Bonus of each token in ESPnet's beam search", 0.0)
    bias: Optional[str] = option(
        "Words and phrases that an utterance may hold, such as names, for the search of ESPnet,"
        ' Whisper or ctc: JSON lines {"utt": .., "words": [..]}, a Kaldi archive, or plain text for'
        " all utterances, a phrase on each line, perhaps with a tab and its weight",
        None,
    )
    bias_weight: Optional[float] = option(
        "Weight of each phrase that a hypothesis holds, in nats of the recogniser (default: as"
        f" tuned in the fusion, else {BIAS_WEIGHT:g})",
        None,
        least=0,
    )
    near_words: bool = option(
        "With --bias: score texts, too, in which listed phrases stand for words that are spelled"
        " nearly so",
        False,
    )
    normalize: str = option(
        "Steps that words and phrases of --bias go through before they are compared, as of `bayeslm"
        " rescore`, without those that read several words; a fusion has its own, ctc --lower. With"
        " whisper, also words before LMs read them, and hypotheses that are one text after them are"
        " one",
        "",
    )
    whisper: WhisperOptions = nested(WhisperOptions)
    nbest: int = option(
        "Hypotheses of a list, at most, and the beam of ESPnet and Whisper", 20, least=1
    )
    nbest_format: str = option("Format to write", "jsonl", choices=("jsonl", "kaldi"))

    def __post_init__(self) -> None:
        super().__post_init__()
        needed, given, lms = NEEDED[self.recogniser], self.values(), self.mixture.lms
        for name in ("audio", "model", "logits", "tokens"):
            if (given[name] is None) == (name in needed):
                problem = "is needed" if name in needed else "has no meaning"
                raise InputError(f"--{name} {problem} with --recogniser {self.recogniser}")
        self._check_bias()
        if self.recogniser == "ctc":
            return
        mixed = ("ngrams", "weights") if self.recogniser != "whisper" else ()
        for name in ("hotwords", "unigrams", "blank", "ctm", "frame_shift", *mixed):
            if given[name]:
                problem = f"--{name.removesuffix('s') if name == 'ngrams' else name}"
                raise InputError(f"{problem} has no meaning with --recogniser {self.recogniser}")
        if len(lms) > 1 and self.recogniser != "whisper":
            problem = f"{len(lms)} LMs with --recogniser {self.recogniser}, which takes one"
            raise InputError(problem, remedy="Rescore the lists with the others.")

    def _check_bias(self) -> None:
        """Raise an InputError where options of bias lists have no meaning."""
        problem = ""
        if self.bias is None:
            given: Dict[str, Any] = {"--bias_weight": self.bias_weight}
            given["--near_words"] = self.near_words or None
            if self.recogniser != "whisper":
                given["--normalize"] = self.normalize or None
            names = [name for name, value in given.items() if value is not None]
            problem = f"{names[0]} without --bias" if names else ""
        elif self.recogniser == "pocketsphinx":
            problem = f"--bias with --recogniser {self.recogniser}, whose search takes none"
        elif self.ctc.hotwords is not None:
            problem = "--bias and --hotwords"
        elif self.near_words and self.ctc.frame_shift is not None:
            problem = "--near_words with --frame_shift, and its texts have no times"
        elif self.normalize and self.recogniser == "ctc":
            problem = "--normalize with --lower"
        elif self.normalize and self.recogniser == "espnet" and self.mixture.lms:
            problem = "--normalize with a fusion, which has its own"
        if problem:
            raise InputError(problem, remedy="Leave it out, or rescore the lists with --bias.")


def recogniser_of(options: NbestOptions) -> Any:
    """The recogniser that the options ask for: samples in, hypotheses out."""
    how: Dict[str, Any]
    size, model = options.nbest, options.model or ""
    lm = next(iter(options.mixture.lms), None)
    if options.recogniser == "pocketsphinx":
        return SphinxSearch(lm, size=size)
    device = device_of(options.ngpu)
    if options.recogniser == "whisper":
        how = {"normalize": options.normalize, "size": size, "device": device}
        return options.whisper.search(model, **how)
    lm_weight = 0.3 if options.lm_weight is None else options.lm_weight
    how = {name: getattr(options, name) for name in ("ctc_weight", "penalty")}
    how["language"] = options.whisper.language
    how.update(bias_weight=options.bias_weight, size=size, device=device)
    if options.bias is None or lm is not None:
        search = BeamSearch(model, lm=lm, lm_weight=lm_weight, **how)
    else:
        from espnet_bayeslm.decoding.fusion_export import bias_fusion

        with bias_fusion(model, options.normalize) as fusion:
            search = BeamSearch(model, lm=fusion, lm_weight=1.0, **how)
    if options.bias is not None and not search.takes_bias:
        raise InputError(
            "--bias, and the LM of the search is no fusion",
            path=lm,
            remedy="Leave --lm out, or give a fusion: bayeslm export --format fusion.",
        )
    return search


def recognised(options: NbestOptions) -> Iterator[NBest]:
    """Yield the N-best list of each recording; one that fails is left out, and named in the log."""
    recordings = find_recordings(options.audio or "")
    recogniser = recogniser_of(options)
    left_out = LeftOut(len(recordings))
    usable = checked_recordings(recordings, recogniser, left_out)
    parts = options.mixture.lms, options.mixture.ngrams, options.bias
    if options.recogniser == "whisper" and any(parts):
        recogniser.lm = _fusion(options, recogniser, usable)
    bias: Optional[BiasLists] = None
    best: List[Sequence[str]] = []
    if options.bias is not None:
        payments = recogniser.lm.payments
        bias = payments.read_bias(options.bias, [*usable])
        if options.near_words:
            how = {"normalised": payments.normalised, "most": options.nbest}
            recogniser.near_texts = functools.partial(near_texts, **how)
    for utt, path in progress(usable.items(), desc="recognise", unit="utt"):
        given = () if bias is None else (bias.of(utt),)
        try:
            found = NBest(utt, tuple(recogniser(read_samples(path), *given)))
        except Exception as error:  # a recogniser may raise any
            left_out.add(utt, path, error)
        else:
            best += [hypothesis.words for hypothesis in found.hypotheses[:1]]
            yield found
    left_out.warn()
    mixture = getattr(recogniser.lm, "mixture", None) if options.recogniser == "whisper" else None
    if mixture is not None:
        words = [recogniser.lm.payments.normalised(text) for text in best]
        mixture.check_words(
            words, remedy="Write words as the LM has them: --normalize lower,punct."
        )


def _fusion(options: NbestOptions, search: WhisperSearch, usable: Mapping[str, Path]) -> Any:
    """LMs and bias lists of Whisper's search."""
    from espnet_bayeslm.decoding.generate_lists import fusion_of

    weights = {"lm_weight": options.lm_weight, "bias_weight": options.bias_weight}
    weights["word_bonus"] = options.ctc.word_bonus
    return fusion_of(
        search,
        options.mixture,
        usable.values(),
        device=device_of(options.ngpu),
        normalize=options.normalize,
        bias=None if options.bias is None else [],
        **{name: value for name, value in weights.items() if value is not None},
    )


def searched(options: NbestOptions) -> Iterator[NBest]:
    """Yield the N-best list of each utterance of a CTC recogniser's logits."""
    lists = ctc_lists(
        options.ctc,
        options.mixture,
        lm_weight=0.5 if options.lm_weight is None else options.lm_weight,
        bias=options.bias,
        bias_weight=BIAS_WEIGHT if options.bias_weight is None else options.bias_weight,
        near_words=options.near_words,
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
