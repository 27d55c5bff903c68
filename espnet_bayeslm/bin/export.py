"""`bayeslm export`: posterior means as an ordinary checkpoint."""

from __future__ import annotations

import dataclasses
from typing import Optional

from espnet_bayeslm.loading.component_options import SubtractOptions
from espnet_bayeslm.rescoring.rescore_options import BIAS_WEIGHT
from espnet_bayeslm.scoring.perplexity import read_sentences
from espnet_bayeslm.utils.cli import Tool
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.log import LOG
from espnet_bayeslm.utils.options import ToolOptions, nested, option

FUSION = "fusion"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportOptions(ToolOptions):
    """Options of `bayeslm export`."""

    mixture: SubtractOptions = nested(SubtractOptions)
    format: str = option(
        "espnet: a checkpoint that ESPnet loads; fusion: LMs with tokens of their own as an LM for"
        " the search of --asr_exp; peft: the adapter of an adapted pretrained LM; hf: a pretrained"
        " LM, such as a GGUF file, as a folder of transformers in float16",
        "espnet",
        choices=("espnet", "fusion", "peft", "hf"),
    )
    asr_exp: Optional[str] = option(
        "The recogniser whose search the LMs take part in: its experiment", None, group=FUSION
    )
    ahead: Optional[str] = option(
        "An LM that scores the recogniser's tokens while a word is not complete: an experiment of"
        " `bayeslm train --asr_exp`, or an ARPA file of `bayeslm ngram --asr_exp`",
        None,
        group=FUSION,
    )
    ahead_weight: Optional[float] = option(
        "Weight of --ahead, where that of the LMs is 1 (default: 1, and 0.5 where its scores stay)",
        None,
        group=FUSION,
        least=0,
    )
    ahead_stays: bool = option(
        "false: scores of --ahead are taken back when a word is complete, and a hypothesis has the"
        " LMs' ln P; true: they stay, log-linearly",
        False,
        group=FUSION,
    )
    interval: Optional[int] = option(
        "Words are paid at each so many tokens: a large LM reads the words of several tokens in the"
        " time of one. Until then n-grams stand in for the LMs, also those of weight 0 (default: 4"
        " with LMs, 8 where the recogniser has fewer than 1,000 tokens; 1 with n-grams alone)",
        None,
        group=FUSION,
        least=1,
    )
    normalize: str = option(
        "Steps that a word of the recogniser goes through before the LMs read it, as of `bayeslm"
        " rescore`, without those that read several words (numbers, whisper)",
        "",
        group=FUSION,
    )
    text: Optional[str] = option(
        "Sentences as the recogniser writes them, one a line: they choose the form of the text of"
        " pretrained LMs. Default: the validation text of the recogniser's training",
        None,
        group=FUSION,
    )
    bias: Optional[str] = option(
        "Words and phrases that the search prefers, such as names: a phrase on each line, perhaps"
        " with a tab and its weight; with LMs or alone",
        None,
        group=FUSION,
    )
    bias_weight: float = option(
        "Weight of each phrase that a hypothesis holds, in nats, where that of the LMs is 1",
        BIAS_WEIGHT,
        group=FUSION,
        least=0,
    )
    output: str = option("The folder to write")


def export(options: ExportOptions) -> None:
    """Write an LM, or a mixture of several, for use elsewhere."""
    from espnet_bayeslm.loading.export import export_adapter, export_folder, export_lm
    from espnet_bayeslm.mixture.mixture_export import write_mixture

    mixture, output = options.mixture, options.output
    lms, ngrams, weights = mixture.lms, mixture.ngrams, mixture.weights
    if options.bias is not None and options.format != "fusion":
        raise InputError("--bias, and no --format fusion", remedy="Leave it out.")
    if not (lms or ngrams or options.bias):
        raise InputError("no LM", remedy="Give --lm EXP.")
    if mixture.base and options.format != "peft":
        raise InputError("--base, and no --format peft", remedy="Leave it out.")
    subtracts = mixture.subtract_lms or mixture.subtract_weights
    if options.format == "fusion":
        _export_fusion(options)
    elif options.format != "espnet":
        if len(lms) != 1 or ngrams or subtracts or weights is not None:
            raise InputError(f"--format {options.format}: expected one pretrained LM and no more")
        if options.format == "peft":
            export_adapter(lms[0], output, mixture.base)
        else:
            export_folder(lms[0], output)
    elif len(lms) == 1 and not (ngrams or subtracts):
        if weights is not None:
            raise InputError("--weights are for several LMs, and there is one")
        export_lm(lms[0], output)
    else:
        write_mixture(
            output,
            lms=lms,
            ngrams=ngrams,
            weights=weights,
            subtract_lms=mixture.subtract_lms,
            subtract_weights=mixture.subtract_weights,
        )
    LOG.info(f"Wrote {output}")


def _export_fusion(options: ExportOptions) -> None:
    """Write LMs with tokens of their own as an LM for the search of a recogniser."""
    from espnet_bayeslm.decoding.fusion_export import LookAhead, write_fusion

    mixture = options.mixture
    if options.asr_exp is None:
        raise InputError(
            "--format fusion without --asr_exp",
            remedy="Give the recogniser's experiment: it has the tokens.",
        )
    weight = options.ahead_weight
    if weight is None:
        weight = 0.5 if options.ahead_stays else 1.0
    ahead = options.ahead and LookAhead(options.ahead, weight, options.ahead_stays)
    if not ahead and (mixture.lms or mixture.ngrams):
        raise InputError(
            "--format fusion without --ahead: hypotheses that complete no word would cost nothing",
            remedy="Make one in seconds: bayeslm ngram --asr_exp EXP --text TEXT --arpa FILE.",
        )
    if mixture.subtract_lms or mixture.subtract_weights:
        raise InputError("--subtract_lm with --format fusion", remedy="Leave it out.")
    sentences = options.text and read_sentences(options.text, keyed=False).values()
    write_fusion(
        options.output,
        asr_exp=options.asr_exp,
        options=mixture,
        ahead=ahead or None,
        interval=options.interval,
        normalize=options.normalize,
        sentences=None if sentences is None else [*sentences],
        bias=options.bias,
        bias_weight=options.bias_weight,
    )


TOOL = Tool("export", "Trained LMs as an ordinary checkpoint", export, ExportOptions)
get_parser, main = TOOL.parser, TOOL.main


if __name__ == "__main__":
    main()
