"""`bayeslm adapt`: lists with references to an adapted LM, with all that rescoring needs."""

from __future__ import annotations

import functools

from espnet_bayeslm.bin import bayeslm
from espnet_bayeslm.utils.cli import Tool
from espnet_bayeslm.workflows.adapt import adapt
from espnet_bayeslm.workflows.adapt_data import AdaptOptions

TOOL = Tool(
    "adapt",
    "Adapt a pretrained LM to a recogniser's lists with their references: one part of these trains"
    " adapters, the other says which is used and how much it counts. The same command goes on"
    " where it was stopped.",
    functools.partial(adapt, tool=bayeslm.main),
    AdaptOptions,
    stopped=": the same command goes on from here",
)
get_parser, main = TOOL.parser, TOOL.main


if __name__ == "__main__":
    main()
