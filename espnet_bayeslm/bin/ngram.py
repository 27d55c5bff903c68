"""`bayeslm ngram`: estimate a modified Kneser-Ney n-gram, ARPA out."""

from __future__ import annotations

import argparse
from typing import Optional, Sequence

from espnet2.utils.types import str2bool

from espnet_bayeslm.ngram.build import build_ngram
from espnet_bayeslm.utils.cli import run_tool, tool_parser


def get_parser() -> argparse.ArgumentParser:
    """Parser of `bayeslm ngram`."""
    parser = tool_parser("ngram", "Estimate a modified Kneser-Ney n-gram from text, ARPA out")
    parser.add_argument("--text", type=str, required=True, help="One sentence per line, words")
    parser.add_argument("--order", type=int, default=3, help="Words in the longest n-gram")
    parser.add_argument(
        "--arpa", type=str, required=True, help="The ARPA file to write; gzipped if it ends in .gz"
    )
    parser.add_argument(
        "--discount_fallback",
        type=str2bool,
        default=False,
        help="Take the discounts 0.5, 1 and 1.5 where the text allows no estimate",
    )
    parser.add_argument(
        "--lmplz",
        type=str,
        default="auto",
        help="KenLM's lmplz: its path, `auto` (lmplz if it is on the PATH) or `none` (our own)",
    )
    return parser


def main(cmd: Optional[Sequence[str]] = None) -> None:
    """Estimate the n-gram that the options ask for."""
    run_tool(get_parser(), build_ngram, cmd)


if __name__ == "__main__":
    main()
