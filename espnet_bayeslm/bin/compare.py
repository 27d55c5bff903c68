"""`bayeslm compare`: does a Bayesian LM help on my text? Perplexities with intervals over seeds."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from espnet_bayeslm.bin import bayeslm
from espnet_bayeslm.quickstart.seed_comparison import Comparison, compare
from espnet_bayeslm.utils.cli import Tool, device_of, parse_numbers
from espnet_bayeslm.utils.engine import EngineOptions
from espnet_bayeslm.utils.options import option


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompareOptions(Comparison, EngineOptions):
    """Options of `bayeslm compare`."""

    exp: Path = option("Folder to write", Path("exp/compare"))
    seeds: str = option("Seeds of the trainings, two or more", "1 2 3")
    dropout_rates: str = option("Rates of the point-estimate LM to try", "0.1 0.2 0.3 0.5")


def run(options: CompareOptions) -> None:
    """Print the table."""
    if options.engine == "local":
        device_of(options.ngpu)
    found = compare(
        options,
        options.exp,
        seeds=[*parse_numbers("--seeds", options.seeds)],
        rates=[*parse_numbers("--dropout_rates", options.dropout_rates, float)],
        tool=bayeslm.main,
        engine=options,
    )
    print(found)


TOOL = Tool(
    "compare",
    "Does a Bayesian LM help on a text? For each seed a point-estimate LM, its dropout tuned"
    " on the validation text, and the Bayesian LM by the shipped configuration, untuned, from"
    " the same start by the same steps; a modified Kneser-Ney 3-gram; and mixtures of them."
    " Writes EXP/RESULTS.md and results.json. The same command goes on where it was stopped.",
    run,
    CompareOptions,
    stopped=": the same command goes on from here",
)
get_parser, main = TOOL.parser, TOOL.main


if __name__ == "__main__":
    main()
