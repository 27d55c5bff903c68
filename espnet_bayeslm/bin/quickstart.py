"""`bayeslm quickstart`: from what the package ships to a table of word error rates, in minutes."""

from __future__ import annotations

import argparse
import dataclasses
from typing import Optional, Sequence

from espnet_bayeslm import quickstart
from espnet_bayeslm.bin import bayeslm
from espnet_bayeslm.utils.cli import run_tool, tool_parser
from espnet_bayeslm.utils.options import add_options, option


@dataclasses.dataclass(frozen=True, kw_only=True)
class QuickstartOptions:
    """Options of `bayeslm quickstart`."""

    output: str = option("The folder to write", "exp/quickstart")
    epochs: int = option(argparse.SUPPRESS, 0)


def run(options: QuickstartOptions) -> None:
    """Make LMs, rescored lists and a table of what the package ships."""
    quickstart.run(options.output, tool=bayeslm.main, epochs=options.epochs)


def get_parser() -> argparse.ArgumentParser:
    """Parser of `bayeslm quickstart`."""
    parser = tool_parser(
        "quickstart",
        "Text and 20-best lists that come with the package, to a 3-gram, a point-estimate LM and a"
        " Bayesian LM, to a table of word error rates with intervals and tests, and a report: three"
        " to five minutes on two cores. The same command goes on where it was stopped.",
    )
    return add_options(parser, QuickstartOptions)


def main(cmd: Optional[Sequence[str]] = None) -> None:
    """Run `bayeslm quickstart`."""
    stopped = ": the same command goes on from here"
    run_tool(get_parser(), run, cmd, options=QuickstartOptions, stopped=stopped)


if __name__ == "__main__":
    main()
