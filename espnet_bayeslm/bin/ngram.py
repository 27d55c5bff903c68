"""`bayeslm ngram`: estimate a modified Kneser-Ney n-gram, ARPA out."""

from __future__ import annotations

import dataclasses
from typing import Optional

from espnet_bayeslm.ngram.estimation import build_ngram
from espnet_bayeslm.utils.cli import Tool
from espnet_bayeslm.utils.options import ToolOptions, option


@dataclasses.dataclass(frozen=True, kw_only=True)
class NgramOptions(ToolOptions):
    """Options of `bayeslm ngram`."""

    text: str = option("One sentence per line, words; perhaps compressed")
    order: int = option("Words in the longest n-gram", 3)
    arpa: str = option("The ARPA file to write; compressed if it ends in .gz")
    discount_fallback: bool = option(
        "Take the discounts 0.5, 1 and 1.5 where the text allows no estimate", False
    )
    asr_exp: Optional[str] = option(
        "An ESPnet recogniser or LM: the n-gram is over the tokens of its config.yaml, into which"
        " its tokenizer cuts the text; for mixtures in a recogniser's search",
        None,
    )
    lmplz: str = option(
        "KenLM's lmplz: its path, `auto` (lmplz if it is on the PATH) or `none` (our own)", "auto"
    )


def ngram(options: NgramOptions) -> None:
    """Estimate the n-gram that the options ask for."""
    given = dataclasses.asdict(options)
    exp, tokens = given.pop("asr_exp"), None
    if exp is not None:
        from espnet_bayeslm.loading.token_text import TokenText  # imports torch

        tokens = TokenText(exp)
    build_ngram(**given, tokens=tokens)


TOOL = Tool(
    "ngram", "Estimate a modified Kneser-Ney n-gram from text, ARPA out", ngram, NgramOptions
)
get_parser, main = TOOL.parser, TOOL.main


if __name__ == "__main__":
    main()
