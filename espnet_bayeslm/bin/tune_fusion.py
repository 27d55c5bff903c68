"""`bayeslm tune_fusion`: weights of LMs and bias lists in a search, tuned by decoding."""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, Iterable, Mapping, Optional, Sequence, Tuple

from espnet_bayeslm.bin.nbest import (
    SearchLMs,
    WhisperOptions,
    checked_recordings,
    ctc_weight_option,
    find_recordings,
    read_samples,
)
from espnet_bayeslm.evaluation.bias_lists import BiasLists
from espnet_bayeslm.evaluation.transcripts import has_words
from espnet_bayeslm.evaluation.wer import Counted, read_transcripts
from espnet_bayeslm.lm import FUSION
from espnet_bayeslm.loading.component_options import ngpu_option
from espnet_bayeslm.loading.experiment import find_files
from espnet_bayeslm.recognisers.recordings import LeftOut
from espnet_bayeslm.report.table import Table
from espnet_bayeslm.utils.cli import Tool, device_of, progress
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike, read_yaml_mapping, write_yaml
from espnet_bayeslm.utils.folders import staged
from espnet_bayeslm.utils.log import LOG
from espnet_bayeslm.utils.options import ToolOptions, described_fields, nested, option

if TYPE_CHECKING:
    from espnet_bayeslm.decoding.tuned_search import FusionWeights, TunedSearch

BEAMS = {"espnet": 10, "whisper": 5}


@dataclasses.dataclass(frozen=True, kw_only=True)
class TuneFusionOptions(ToolOptions):
    """Options of `bayeslm tune_fusion`."""

    ngpu: int = ngpu_option()
    recogniser: str = option("The recogniser", "espnet", choices=tuple(BEAMS))
    asr_exp: Optional[str] = option(
        "ESPnet's recogniser: its experiment folder or checkpoint", None
    )
    model: Optional[str] = option("The folder of a Whisper model", None)
    mixture: SearchLMs = nested(SearchLMs)
    audio: str = option("Recordings to tune on: a wav.scp, or a folder of audio files")
    ref: str = option("Their transcripts, a Kaldi text")
    output: str = option(
        "The folder to write: decode.yaml, and of ESPnet the LM with tuned weights"
    )
    bias: Optional[str] = option(
        "Bias lists of the recordings, as of `bayeslm nbest`: the weight of their phrases is tuned"
        " too (default: the list that the fusion has, if any)",
        None,
    )
    normalize: str = option(
        "Steps that words and phrases go through before they are compared; of ESPnet with --bias"
        " and no --lm, of Whisper also before LMs read words and errors are counted",
        "",
    )
    beam_size: Optional[int] = option(
        "Beam of the search, and hypotheses of a list; default:"
        f" {' or '.join(f'{size} of {name}' for name, size in BEAMS.items())}",
        None,
        least=2,
    )
    ctc_weight: Optional[float] = ctc_weight_option()
    whisper: WhisperOptions = nested(WhisperOptions)
    num_rounds: int = option("Decodings with the LM, at most", 5, least=1)
    num_utts: int = option("Utterances to tune on, spread over the set; 0: all", 0, least=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        needed = "model" if self.recogniser == "whisper" else "asr_exp"
        for name in ("asr_exp", "model"):
            if (getattr(self, name) is None) == (name == needed):
                problem = "is needed" if name == needed else "has no meaning"
                raise InputError(f"--{name} {problem} with --recogniser {self.recogniser}")
        lms, ngrams = self.mixture.lms, self.mixture.ngrams
        if not (lms or ngrams) and self.bias is None:
            raise InputError("neither --lm nor --bias", remedy="Give one of them, or both.")
        if self.recogniser == "whisper":
            return
        if ngrams or len(lms) > 1:
            problem = "--recogniser espnet takes one --lm, and no --ngram"
            raise InputError(problem, remedy="Export a fusion of them: --format fusion.")
        if self.normalize and (lms or self.bias is None):
            raise InputError("--normalize with --lm", remedy="Leave it out: a fusion has its own.")

    @property
    def size(self) -> int:
        """Beam of the search."""
        return self.beam_size or BEAMS[self.recogniser]


class _Set:
    """A development set.

    Args:
        options: Options of the tool.

    Attributes:
        refs: Transcripts.
        paths: Recordings to tune on.
        left_out: Recordings that cannot be used.
    """

    def __init__(self, options: TuneFusionOptions):
        self.refs = read_transcripts(options.ref)
        self.paths = _chosen(find_recordings(options.audio), self.refs, options)
        _num_words([self.refs[utt] for utt in self.paths], options.ref)
        self.left_out = LeftOut(len(self.paths))

    def check(self, recogniser: Any) -> None:
        """Leave out recordings that a recogniser does not take."""
        self.paths = checked_recordings(self.paths, recogniser, self.left_out)


def tune_fusion(options: TuneFusionOptions) -> None:
    """Decode, tune and decode again; write the weights of the best round."""
    from espnet_bayeslm.decoding.fusion_export import bias_fusion

    if options.recogniser == "whisper":
        with tempfile.TemporaryDirectory() as folder:
            _tune_whisper(options, options.whisper.encoded or folder)
    elif options.mixture.lms:
        _tune_espnet(options, options.mixture.lms[0])
    else:
        with bias_fusion(options.asr_exp or "", options.normalize) as lm:
            _tune_espnet(options, lm)


def _tune_espnet(options: TuneFusionOptions, lm: PathLike) -> None:
    """Tune the weights of an LM in ESPnet's search."""
    from espnet_bayeslm.decoding.tuned_search import ESPnetSearch
    from espnet_bayeslm.recognisers.espnet_asr import BeamSearch

    dev, asr_exp = _Set(options), options.asr_exp or ""
    how: Dict[str, Any] = {"ctc_weight": options.ctc_weight, "size": options.size}
    how["device"] = device_of(options.ngpu)
    alone = BeamSearch(asr_exp, lm_weight=0.0, **how)
    # parts of weight 0 are left out by ESPnet: these weights are set in each round
    search = BeamSearch(asr_exp, lm=lm, lm_weight=1.0, penalty=1.0, **how)
    dev.check(search)
    bias = _bias(options, search, dev.paths)
    conf = read_yaml_mapping(find_files(lm)[0]).get("lm_conf") or {}
    counted = Counted(text_forms=conf.get("text_forms") or {}, tuned_on=options.ref)
    columns = {"lm_weight": "lm_weight", "penalty": "penalty", "look-ahead": "ahead_weight"}
    weights = _tuned(options, dev, ESPnetSearch(search, alone), bias, columns, counted)
    _write(options, lm, search, weights)


def _tune_whisper(options: TuneFusionOptions, encoded: str) -> None:
    """Tune the weights of LMs and bias lists in Whisper's search.

    Args:
        options: Options of the tool.
        encoded: Folder that keeps the encoder's outputs from round to round.
    """
    from espnet_bayeslm.decoding.generate_lists import fusion_of
    from espnet_bayeslm.decoding.tuned_search import GenerateSearch

    dev, device = _Set(options), device_of(options.ngpu)
    how: Dict[str, Any] = {"normalize": options.normalize, "device": device}
    whisper = dataclasses.replace(options.whisper, encoded=encoded)
    recogniser = whisper.search(options.model or "", size=options.size, **how)
    dev.check(recogniser)
    how["bias"] = None if options.bias is None else []
    fusion = fusion_of(recogniser, options.mixture, dev.paths.values(), **how)
    bias = None
    if options.bias is not None:
        bias = fusion.payments.read_bias(options.bias, [*dev.paths])
    forms = {} if fusion.mixture is None else fusion.mixture.facts.text_forms
    steps = tuple(filter(None, options.normalize.split(",")))
    counted = Counted(normalize=steps, text_forms=forms, tuned_on=options.ref)
    columns = {} if fusion.mixture is None else {"lm_weight": "lm_weight", "word_bonus": "penalty"}
    weights = _tuned(options, dev, GenerateSearch(recogniser, fusion), bias, columns, counted)
    _write_whisper(options, weights, forms)


def _tuned(
    options: TuneFusionOptions,
    dev: _Set,
    search: TunedSearch,
    bias: Optional[BiasLists],
    columns: Mapping[str, str],
    counted: Counted,
) -> FusionWeights:
    """Print the table of a tuning, whose columns name weights; the best weights."""
    from espnet_bayeslm.decoding.fusion_tuning import FusionTuning

    recordings = {utt: lambda path=path: read_samples(path) for utt, path in dev.paths.items()}
    how: Dict[str, Any] = {"progress": progress, "left_out": dev.left_out, "bias": bias}
    tuning = FusionTuning(search, recordings, dev.refs, **how)
    best, others = tuning.run(options.num_rounds), {}
    if bias is not None:
        best, *rest = tuning.guarded(best)
        others = dict(zip(("without the bias list", "decoys"), rest, strict=True))
        columns = {**columns, "bias": "bias_weight"}
    dev.left_out.warn()
    num_words = _num_words([search.counted(dev.refs[utt]) for utt in tuning.lists], options.ref)
    print(_table(tuning.rounds, best, others, columns, num_words, counted).text())
    return best.weights


def _bias(options: TuneFusionOptions, search: Any, utts: Iterable[str]) -> Optional[BiasLists]:
    """Bias lists to tune with; None where there are none."""
    if options.bias is None:
        own = search.lm.own_bias if search.takes_bias else ()
        return BiasLists(shared=own) if own else None
    if not search.takes_bias:
        raise InputError(
            "--bias, and the LM is no fusion",
            path=options.mixture.lms[0],
            remedy="Give a fusion: bayeslm export --format fusion.",
        )
    lists: BiasLists = search.lm.payments.read_bias(options.bias, [*utts])
    return lists


def _table(
    rounds: Sequence[Any],
    best: Any,
    others: Mapping[str, Any],
    columns: Mapping[str, str],
    num_words: int,
    counted: Counted,
) -> Table:
    """Table of the rounds, and of the best weights without the bias list and with decoys."""
    names = ["no LM", *(f"round {number}" for number in range(1, len(rounds)))]
    named = [*zip(names, rounds, strict=True)]
    if not any(row is best for row in (*rounds, *others.values())):
        named.append(("smaller bias", best))
    named += others.items()
    rows = []
    for name, row in named:
        values = (getattr(row.weights, column) for column in columns.values())
        weights = [f"{value:.3f}" if value else "" for value in values]
        star = " *" if row is best and name not in others else ""
        rate = f"{100 * row.errors / num_words:.2f}"
        rows.append([name + star, *weights, rate, f"{row.seconds:.2f}"])
    caption = f"{len(best.each)} utterances, {num_words} words"
    return Table(caption, ["search", *columns, "WER %", "s/utterance"], rows, counted=counted)


def _chosen(
    paths: Mapping[str, Path], refs: Mapping[str, Any], options: TuneFusionOptions
) -> Dict[str, Path]:
    """Recordings to tune on."""
    lacking = [utt for utt in paths if utt not in refs]
    if lacking:
        raise InputError(
            f"no transcript of {len(lacking)} of {len(paths)} recordings, such as {lacking[0]}",
            path=options.ref,
        )
    step = max(len(paths) // options.num_utts, 1) if options.num_utts else 1
    return dict([*paths.items()][::step][: options.num_utts or None])


def _num_words(refs: Sequence[Sequence[str]], path: str) -> int:
    """Words of some transcripts, which error rates are divided by."""
    if not has_words(refs):
        problem = "no words in the transcripts of the recordings, and error rates need some"
        raise InputError(problem, path=path, remedy="Give transcripts with words.")
    return sum(map(len, refs))


def _write(options: TuneFusionOptions, lm: PathLike, search: Any, weights: FusionWeights) -> None:
    """Write the LM, a fusion with its tuned look-ahead, and the options of ESPnet's search."""
    from espnet_bayeslm.decoding.tuned_search import in_fusion

    config, checkpoint = find_files(lm)
    content = read_yaml_mapping(config)
    if content["lm"] == FUSION:
        content["lm_conf"]["ahead_weight"] = weights.ahead_weight
        if "bias" in content["lm_conf"] or options.bias is not None:
            content["lm_conf"]["bias_weight"] = round(in_fusion(weights), 4)
            content["lm_conf"].setdefault("bias", [])
    decode = {"beam_size": options.size, "ctc_weight": search.ctc_weight}
    decode.update(lm_weight=weights.lm_weight, penalty=weights.penalty)
    with staged(options.output) as folder:
        write_yaml(folder / config.name, content)
        shutil.copyfile(checkpoint, folder / checkpoint.name)
        write_yaml(folder / "decode.yaml", decode)
    LOG.info(f"Wrote {options.output}")
    output = Path(options.output)
    print(
        f"Decode: python -m espnet_bayeslm -m espnet2.bin.{search.program}"
        f" --config {output / 'decode.yaml'} --lm_train_config {output / config.name}"
        f" --lm_file {output / checkpoint.name} ..."
    )


def _write_whisper(
    options: TuneFusionOptions, weights: FusionWeights, forms: Mapping[str, str]
) -> None:
    """Write the options of `bayeslm nbest`: recogniser, LMs that count, their form, and weights."""
    decode: Dict[str, Any] = {"recogniser": options.recogniser, "model": options.model}
    decode.update((n, v) for n, v in options.whisper.values().items() if v and n != "encoded")
    decode.update(normalize=options.normalize, nbest=options.size)
    lms = options.mixture.lms or options.mixture.ngrams
    if lms and (weights.lm_weight or weights.penalty):
        fields, values = described_fields(SearchLMs), options.mixture.values()
        given = {name: values[field.name] for name, field in fields.items()}
        unset: Tuple[Any, ...] = None, (), []
        decode.update((n, v) for n, v in given.items() if v not in (*unset, fields[n].default))
        decode.update(lm_weight=weights.lm_weight, word_bonus=weights.penalty)
        if len({*forms.values()}) == 1:
            decode["text_form"] = next(iter(forms.values()))
    if options.bias is not None:
        decode["bias_weight"] = weights.bias_weight
    with staged(options.output) as folder:
        write_yaml(folder / "decode.yaml", decode)
    LOG.info(f"Wrote {options.output}")
    bias = " --bias LISTS" * (options.bias is not None)
    print(
        f"Decode: bayeslm nbest --config {Path(options.output) / 'decode.yaml'}{bias}"
        " --audio AUDIO --output LISTS"
    )


TOOL = Tool(
    "tune_fusion",
    "Tune the weights of LMs and bias lists in a search of ESPnet or Whisper, by decoding",
    tune_fusion,
    TuneFusionOptions,
)
get_parser, main = TOOL.parser, TOOL.main


if __name__ == "__main__":
    main()
