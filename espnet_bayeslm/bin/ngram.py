"""`bayeslm ngram`: estimate a modified Kneser-Ney n-gram, ARPA out."""

from __future__ import annotations

import argparse
from typing import Optional, Sequence

from espnet_bayeslm.ngram.build import build_ngram
from espnet_bayeslm.utils.cli import add_flag, run_tool, tool_parser


def get_parser() -> argparse.ArgumentParser:
    """Parser of `bayeslm ngram`."""
    parser = tool_parser("ngram", "Estimate a modified Kneser-Ney n-gram from text, ARPA out")
    parser.add_argument(
        "--text", required=True, help="One sentence per line, words; .gz is unpacked"
    )
    parser.add_argument("--order", type=int, default=3, help="Words in the longest n-gram")
    parser.add_argument(
        "--arpa", required=True, help="The ARPA file to write; gzipped if it ends in .gz"
    )
    what = "Take the discounts 0.5, 1 and 1.5 where the text allows no estimate"
    add_flag(parser, "--discount_fallback", what)
    parser.add_argument(
        "--lmplz",
        default="auto",
        help="KenLM's lmplz: its path, `auto` (lmplz if it is on the PATH) or `none` (our own)",
    )
    return parser


def main(cmd: Optional[Sequence[str]] = None) -> None:
    """Estimate the n-gram that the options ask for."""
    run_tool(get_parser(), build_ngram, cmd)


if __name__ == "__main__":
    main()
