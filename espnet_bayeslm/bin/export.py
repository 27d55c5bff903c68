"""`bayeslm export`: posterior means as an ordinary checkpoint, or as ONNX graphs."""

from __future__ import annotations

import argparse
import logging
from typing import Optional, Sequence

from espnet_bayeslm.utils.cli import run_tool, tool_parser
from espnet_bayeslm.utils.errors import InputError

FORMATS = ("espnet", "onnx")


def export(
    *, lm: Sequence[str], ngram: Sequence[str], weights: Optional[str], output: str, format: str
) -> None:
    """Write an LM, or a mixture of several, for use elsewhere; options as `get_parser` says.

    Raises:
        InputError: A mixture is asked for as a graph, or what is given cannot be used.
    """
    from espnet_bayeslm.training.export import check_output, export_lm
    from espnet_bayeslm.training.mixture import write_mixture
    from espnet_bayeslm.training.onnx import export_onnx

    if not lm and not ngram:
        raise InputError("no LM", remedy="Give --lm EXP.")
    if len(lm) == 1 and not ngram:
        if weights is not None:
            raise InputError("--weights are for several LMs, and there is one")
        (export_lm if format == "espnet" else export_onnx)(lm[0], output)
    elif format != "espnet":
        raise InputError(
            f"--format {format} is for a single LM, and these are {len(lm) + len(ngram)}",
            remedy="Export each --lm by itself.",
        )
    else:
        check_output(output, sources=lm)
        write_mixture(output, lms=lm, ngrams=ngram, weights=weights)
    logging.info(f"Wrote {output}")


def get_parser() -> argparse.ArgumentParser:
    """Parser of `bayeslm export`."""
    parser = tool_parser("export", "Trained LMs as an ordinary checkpoint or as ONNX graphs")
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
    parser.add_argument(
        "--format",
        choices=FORMATS,
        default="espnet",
        help="espnet: config.yaml and valid.loss.ave.pth with the posterior means; onnx: graphs of"
        " one step and of whole sequences at them",
    )
    parser.add_argument("--output", required=True, help="The folder to write")
    return parser


def main(cmd: Optional[Sequence[str]] = None) -> None:
    """Run `bayeslm export`."""
    run_tool(get_parser(), export, cmd)


if __name__ == "__main__":
    main()
