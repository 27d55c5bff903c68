"""`bayeslm quickstart`: from what the package ships to a table of word error rates, in minutes."""

from __future__ import annotations

import argparse
import dataclasses

from espnet_bayeslm.bin import bayeslm
from espnet_bayeslm.utils.cli import Tool
from espnet_bayeslm.utils.options import ToolOptions, option
from espnet_bayeslm.workflows import quickstart


@dataclasses.dataclass(frozen=True, kw_only=True)
class QuickstartOptions(ToolOptions):
    """Options of `bayeslm quickstart`."""

    output: str = option("The folder to write", "exp/quickstart")
    epochs: int = option(argparse.SUPPRESS, 0)


def run_demo(options: QuickstartOptions) -> None:
    """Make LMs, rescored lists and a table of what the package ships."""
    quickstart.run(options.output, tool=bayeslm.main, epochs=options.epochs)


TOOL = Tool(
    "quickstart",
    "Text and 20-best lists that come with the package, to a 3-gram, a point-estimate LM, a"
    " Bayesian LM and SmolLM2, if it is installed, to a table of word error rates with intervals"
    " and tests, and a report: three to five minutes on two cores. The same command goes on where"
    " it was stopped.",
    run_demo,
    QuickstartOptions,
    stopped=": the same command goes on from here",
)
get_parser, main = TOOL.parser, TOOL.main


if __name__ == "__main__":
    main()
