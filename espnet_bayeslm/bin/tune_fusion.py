"""`bayeslm tune_fusion`: weights of an LM in ESPnet's beam search, tuned by decoding."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any, Dict, Iterable, Mapping, Optional, Sequence

from espnet_bayeslm.bin.nbest import checked_recordings, find_recordings, read_samples
from espnet_bayeslm.evaluation.bias_lists import BiasLists
from espnet_bayeslm.evaluation.transcripts import has_words
from espnet_bayeslm.evaluation.wer import Counted, read_transcripts
from espnet_bayeslm.lm import FUSION
from espnet_bayeslm.loading.component_options import ngpu_option
from espnet_bayeslm.loading.experiment import find_files
from espnet_bayeslm.report.table import Table
from espnet_bayeslm.utils.cli import Tool, device_of, progress
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike, read_yaml_mapping, write_yaml
from espnet_bayeslm.utils.folders import staged
from espnet_bayeslm.utils.log import LOG
from espnet_bayeslm.utils.options import ToolOptions, option


@dataclasses.dataclass(frozen=True, kw_only=True)
class TuneFusionOptions(ToolOptions):
    """Options of `bayeslm tune_fusion`."""

    ngpu: int = ngpu_option()
    asr_exp: str = option("ESPnet's recogniser: its experiment folder or checkpoint")
    lm: Optional[str] = option(
        "An LM of the recogniser's tokens: the folder that `bayeslm export --format fusion` has"
        " written, or an experiment of `bayeslm train --asr_exp`; none with --bias alone",
        None,
    )
    audio: str = option("Recordings to tune on: a wav.scp, or a folder of audio files")
    ref: str = option("Their transcripts, a Kaldi text")
    output: str = option("The folder to write: the LM with tuned weights, and decode.yaml")
    bias: Optional[str] = option(
        "Bias lists of the recordings, as of `bayeslm nbest`: the weight of their phrases is tuned"
        " too (default: the list that the fusion has, if any)",
        None,
    )
    normalize: str = option(
        "Steps that words and phrases go through before they are compared, with --bias and no --lm",
        "",
    )
    beam_size: int = option("Beam of the search, and hypotheses of a list", 10, least=2)
    ctc_weight: Optional[float] = option(
        "Weight of CTC in the search (default: 0.3, and 0 of s2t models such as OWSM)",
        None,
        least=0,
        most=1,
    )
    num_rounds: int = option("Decodings with the LM, at most", 5, least=1)
    num_utts: int = option("Utterances to tune on, spread over the set; 0: all", 0, least=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.lm is None and self.bias is None:
            raise InputError("neither --lm nor --bias", remedy="Give one of them, or both.")
        if self.normalize and (self.lm is not None or self.bias is None):
            raise InputError("--normalize with --lm", remedy="Leave it out: a fusion has its own.")


def tune_fusion(options: TuneFusionOptions) -> None:
    """Decode, tune and decode again; write the weights of the best round."""
    from espnet_bayeslm.decoding.fusion_export import bias_fusion

    if options.lm is not None:
        _tune(options, options.lm)
        return
    with bias_fusion(options.asr_exp, options.normalize) as lm:
        _tune(options, lm)


def _tune(options: TuneFusionOptions, lm: PathLike) -> None:
    """Tune the weights of an LM."""
    from espnet_bayeslm.decoding.fusion_tuning import FusionTuning
    from espnet_bayeslm.recognisers.espnet_asr import BeamSearch
    from espnet_bayeslm.recognisers.recordings import LeftOut

    refs = read_transcripts(options.ref)
    paths = _chosen(find_recordings(options.audio), refs, options)
    _num_words(refs, paths, options.ref)
    how: Dict[str, Any] = {"ctc_weight": options.ctc_weight, "size": options.beam_size}
    how["device"] = device_of(options.ngpu)
    alone = BeamSearch(options.asr_exp, lm_weight=0.0, **how)
    # parts of weight 0 are left out by ESPnet: these weights are set in each round
    search = BeamSearch(options.asr_exp, lm=lm, lm_weight=1.0, penalty=1.0, **how)
    left_out = LeftOut(len(paths))
    paths = checked_recordings(paths, search, left_out)
    recordings = {utt: lambda path=path: read_samples(path) for utt, path in paths.items()}
    how = {"progress": progress, "left_out": left_out, "bias": _bias(options, search, paths)}
    tuning = FusionTuning(search, alone, recordings, refs, **how)
    best, others = tuning.run(options.num_rounds), {}
    if how["bias"] is not None:
        best, *rest = tuning.guarded(best)
        others = dict(zip(("without the bias list", "decoys"), rest, strict=True))
    left_out.warn()
    num_words = _num_words(refs, tuning.lists, options.ref)
    conf = read_yaml_mapping(find_files(lm)[0]).get("lm_conf") or {}
    counted = Counted(text_forms=conf.get("text_forms") or {}, tuned_on=options.ref)
    print(_table(tuning.rounds, best, others, num_words, counted).text())
    _write(options, lm, search, best.weights._asdict())


def _bias(options: TuneFusionOptions, search: Any, utts: Iterable[str]) -> Optional[BiasLists]:
    """Bias lists to tune with; None where there are none."""
    if options.bias is None:
        own = search.lm.own_bias if search.takes_bias else ()
        return BiasLists(shared=own) if own else None
    if not search.takes_bias:
        raise InputError(
            "--bias, and the LM is no fusion",
            path=options.lm,
            remedy="Give a fusion: bayeslm export --format fusion.",
        )
    lists: BiasLists = search.lm.payments.read_bias(options.bias, [*utts])
    return lists


def _table(
    rounds: Sequence[Any], best: Any, others: Mapping[str, Any], num_words: int, counted: Counted
) -> Table:
    """Table of the rounds, and of the best weights without the bias list and with decoys."""
    names = ["no LM", *(f"round {number}" for number in range(1, len(rounds)))]
    named = [*zip(names, rounds, strict=True)]
    if not any(row is best for row in (*rounds, *others.values())):
        named.append(("smaller bias", best))
    named += others.items()
    rows = []
    for name, row in named:
        weights = [f"{value:.3f}" if value else "" for value in row.weights][: 4 if others else 3]
        star = " *" if row is best and name not in others else ""
        rate = f"{100 * row.errors / num_words:.2f}"
        rows.append([name + star, *weights, rate, f"{row.seconds:.2f}"])
    header = ["search", "lm_weight", "penalty", "look-ahead", *["bias"] * bool(others)]
    caption = f"{len(best.each)} utterances, {num_words} words"
    return Table(caption, [*header, "WER %", "s/utterance"], rows, counted=counted)


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


def _num_words(refs: Mapping[str, Any], utts: Iterable[str], path: str) -> int:
    """Words of some transcripts, which error rates are divided by."""
    known = [refs[utt] for utt in utts]
    if not has_words(known):
        problem = "no words in the transcripts of the recordings, and error rates need some"
        raise InputError(problem, path=path, remedy="Give transcripts with words.")
    return sum(map(len, known))


def _write(
    options: TuneFusionOptions, lm: PathLike, search: Any, weights: Mapping[str, float]
) -> None:
    """Write the LM, a fusion with its tuned look-ahead, and the options of ESPnet's search."""
    config, checkpoint = find_files(lm)
    content = read_yaml_mapping(config)
    if content["lm"] == FUSION:
        content["lm_conf"]["ahead_weight"] = weights["ahead_weight"]
        if "bias" in content["lm_conf"] or options.bias is not None:
            content["lm_conf"]["bias_weight"] = weights["bias_weight"]
            content["lm_conf"].setdefault("bias", [])
    decode = {"beam_size": options.beam_size, "ctc_weight": search.ctc_weight}
    decode.update(lm_weight=weights["lm_weight"], penalty=weights["penalty"])
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


TOOL = Tool(
    "tune_fusion",
    "Tune the weights of an LM in ESPnet's beam search, by decoding",
    tune_fusion,
    TuneFusionOptions,
)
get_parser, main = TOOL.parser, TOOL.main


if __name__ == "__main__":
    main()
