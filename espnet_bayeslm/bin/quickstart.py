"""`bayeslm quickstart`: from what the package ships to a table of word error rates, in minutes."""

from __future__ import annotations

import argparse
import functools
from typing import Optional, Sequence

from espnet_bayeslm import quickstart
from espnet_bayeslm.bin import bayeslm
from espnet_bayeslm.utils.cli import run_tool, tool_parser


def get_parser() -> argparse.ArgumentParser:
    """Parser of `bayeslm quickstart`."""
    parser = tool_parser(
        "quickstart",
        "Text and 20-best lists that come with the package, to a 3-gram, a point-estimate LM and a"
        " Bayesian LM, to a table of word error rates with intervals and tests, and a report: three"
        " to five minutes on two cores. The same command goes on where it was stopped.",
    )
    parser.add_argument("--output", default="exp/quickstart", help="The folder to write")
    parser.add_argument("--epochs", type=int, default=0, help=argparse.SUPPRESS)
    return parser


def main(cmd: Optional[Sequence[str]] = None) -> None:
    """Run `bayeslm quickstart`."""
    run = functools.partial(quickstart.run, tool=bayeslm.main)
    run_tool(get_parser(), run, cmd, stopped=": the same command goes on from here")


if __name__ == "__main__":
    main()
