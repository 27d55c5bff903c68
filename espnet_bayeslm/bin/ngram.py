"""`bayeslm ngram`: estimate a modified Kneser-Ney n-gram, ARPA out."""

from __future__ import annotations

import dataclasses

from espnet_bayeslm.ngram.estimation import build_ngram
from espnet_bayeslm.utils.cli import Tool
from espnet_bayeslm.utils.options import option


@dataclasses.dataclass(frozen=True, kw_only=True)
class NgramOptions:
    """Options of `bayeslm ngram`, which are the arguments of `build_ngram`."""

    text: str = option("One sentence per line, words; perhaps compressed")
    order: int = option("Words in the longest n-gram", 3)
    arpa: str = option("The ARPA file to write; compressed if it ends in .gz")
    discount_fallback: bool = option(
        "Take the discounts 0.5, 1 and 1.5 where the text allows no estimate", False
    )
    lmplz: str = option(
        "KenLM's lmplz: its path, `auto` (lmplz if it is on the PATH) or `none` (our own)", "auto"
    )


def ngram(options: NgramOptions) -> None:
    """Estimate the n-gram that the options ask for."""
    build_ngram(**dataclasses.asdict(options))


TOOL = Tool(
    "ngram", "Estimate a modified Kneser-Ney n-gram from text, ARPA out", ngram, NgramOptions
)
get_parser, main = TOOL.parser, TOOL.main


if __name__ == "__main__":
    main()
