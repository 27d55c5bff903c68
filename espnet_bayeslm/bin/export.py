"""`bayeslm export`: posterior means as an ordinary checkpoint."""

from __future__ import annotations

import argparse
import logging
from typing import Optional, Sequence

from espnet_bayeslm.utils.cli import run_tool, tool_parser
from espnet_bayeslm.utils.errors import InputError


def export(*, lm: Sequence[str], ngram: Sequence[str], weights: Optional[str], output: str) -> None:
    """Write an LM, or a mixture of several, for use elsewhere; options as `get_parser` says.

    Raises:
        InputError: The LMs or their weights cannot be used.
    """
    from espnet_bayeslm.loading.export import check_output, export_lm
    from espnet_bayeslm.loading.mixture_export import write_mixture

    if not lm and not ngram:
        raise InputError("no LM", remedy="Give --lm EXP.")
    if len(lm) == 1 and not ngram:
        if weights is not None:
            raise InputError("--weights are for several LMs, and there is one")
        export_lm(lm[0], output)
    else:
        check_output(output, sources=lm)
        write_mixture(output, lms=lm, ngrams=ngram, weights=weights)
    logging.info(f"Wrote {output}")


def get_parser() -> argparse.ArgumentParser:
    """Parser of `bayeslm export`."""
    parser = tool_parser("export", "Trained LMs as an ordinary checkpoint")
    parser.add_argument(
        "--lm",
        action="append",
        default=[],
        help="A trained LM: its experiment folder or checkpoint (repeatable, for a mixture)",
    )
    parser.add_argument(
        "--ngram",
        action="append",
        default=[],
        help="An ARPA file or KenLM binary, for a mixture (repeatable)",
    )
    parser.add_argument(
        "--weights", help="A mixture's weights.yaml of `bayeslm interpolate`, or W,W,.."
    )
    parser.add_argument("--output", required=True, help="The folder to write")
    return parser


def main(cmd: Optional[Sequence[str]] = None) -> None:
    """Run `bayeslm export`."""
    run_tool(get_parser(), export, cmd)


if __name__ == "__main__":
    main()
