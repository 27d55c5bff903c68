"""`bayeslm compare`: does a Bayesian LM help on my text? Perplexities with intervals over seeds."""

from __future__ import annotations

from espnet_bayeslm.bin import bayeslm
from espnet_bayeslm.utils.cli import Tool
from espnet_bayeslm.workflows.compare import CompareOptions, compare


def print_comparison(options: CompareOptions) -> None:
    """Print the table."""
    print(compare(options, tool=bayeslm.main))


TOOL = Tool(
    "compare",
    "Does a Bayesian LM help on a text? For each seed a point-estimate LM, its dropout tuned"
    " on the validation text, and the Bayesian LM by the shipped configuration, untuned, from"
    " the same start by the same steps; a modified Kneser-Ney 3-gram; and mixtures of them."
    " Writes EXP/RESULTS.md and results.json. The same command goes on where it was stopped.",
    print_comparison,
    CompareOptions,
    stopped=": the same command goes on from here",
)
get_parser, main = TOOL.parser, TOOL.main


if __name__ == "__main__":
    main()
