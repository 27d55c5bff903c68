"""`bayeslm export`: posterior means as an ordinary checkpoint."""

from __future__ import annotations

import dataclasses
from typing import Optional, Sequence

from espnet_bayeslm.utils.cli import Tool
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.log import LOG
from espnet_bayeslm.utils.options import ToolOptions, option


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportOptions(ToolOptions):
    """Options of `bayeslm export`."""

    lms: Sequence[str] = option(
        "A trained LM: its experiment folder or checkpoint (repeatable, for a mixture)",
        (),
        name="lm",
    )
    ngrams: Sequence[str] = option(
        "An ARPA file or KenLM binary, for a mixture (repeatable)", (), name="ngram"
    )
    weights: Optional[str] = option(
        "A mixture's weights.yaml of `bayeslm interpolate`, or W,W,..", None
    )
    format: str = option(
        "espnet: a checkpoint that ESPnet loads; peft: the adapter of an adapted pretrained LM;"
        " hf: a pretrained LM, such as a GGUF file, as a folder of transformers in float16",
        "espnet",
        choices=("espnet", "peft", "hf"),
    )
    base: Optional[str] = option(
        "Base model of the LM for peft, where it is not at the path that the LM names", None
    )
    subtract_lms: Sequence[str] = option(
        "An LM or n-gram of the recogniser's training text, subtracted log-linearly in the search"
        " (repeatable)",
        (),
        name="subtract_lm",
    )
    subtract_weights: Sequence[float] = option(
        "Weight of a --subtract_lm, at or below zero (repeatable)", (), name="subtract_weight"
    )
    output: str = option("The folder to write")


def export(options: ExportOptions) -> None:
    """Write an LM, or a mixture of several, for use elsewhere."""
    from espnet_bayeslm.loading.export import (
        export_adapter,
        export_folder,
        export_lm,
        write_mixture,
    )

    lms, ngrams, output = options.lms, options.ngrams, options.output
    if not lms and not ngrams:
        raise InputError("no LM", remedy="Give --lm EXP.")
    if options.base and options.format != "peft":
        raise InputError("--base, and no --format peft", remedy="Leave it out.")
    subtracts = options.subtract_lms or options.subtract_weights
    if options.format != "espnet":
        if len(lms) != 1 or ngrams or subtracts or options.weights is not None:
            raise InputError(f"--format {options.format}: expected one pretrained LM and no more")
        if options.format == "peft":
            export_adapter(lms[0], output, options.base)
        else:
            export_folder(lms[0], output)
    elif len(lms) == 1 and not (ngrams or subtracts):
        if options.weights is not None:
            raise InputError("--weights are for several LMs, and there is one")
        export_lm(lms[0], output)
    else:
        write_mixture(
            output,
            lms=lms,
            ngrams=ngrams,
            weights=options.weights,
            subtract_lms=options.subtract_lms,
            subtract_weights=options.subtract_weights,
        )
    LOG.info(f"Wrote {output}")


TOOL = Tool("export", "Trained LMs as an ordinary checkpoint", export, ExportOptions)
get_parser, main = TOOL.parser, TOOL.main


if __name__ == "__main__":
    main()
