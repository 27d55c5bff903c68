"""`bayeslm compare`: does a Bayesian LM help on my text? Perplexities with intervals over seeds."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, Optional, Sequence

from espnet_bayeslm.bin import bayeslm
from espnet_bayeslm.utils.cli import device_of, parse_numbers, run_tool, tool_parser


def run(*, exp: Path, seeds: str, dropout_rates: str, **options: Any) -> None:
    """Print the table; options as `get_parser` explains them.

    Raises:
        InputError: A text, a seed or a rate cannot be used.
    """
    from espnet_bayeslm.quickstart.seed_comparison import Comparison, compare

    device_of(options["ngpu"])
    numbers = [*parse_numbers("--seeds", seeds)]
    rates = [*parse_numbers("--dropout_rates", dropout_rates, float)]
    print(compare(Comparison(**options), exp, seeds=numbers, rates=rates, tool=bayeslm.main))


def get_parser() -> argparse.ArgumentParser:
    """Parser of `bayeslm compare`."""
    parser = tool_parser(
        "compare",
        "Does a Bayesian LM help on a text? For each seed a point-estimate LM, its dropout tuned"
        " on the validation text, and the Bayesian LM by the shipped configuration, untuned, from"
        " the same start by the same steps; a modified Kneser-Ney 3-gram; and mixtures of them."
        " Writes EXP/RESULTS.md, results.tsv and results.json. The same command goes on where it"
        " was stopped.",
    )
    for name, what in (("train", "is trained on"), ("valid", "is tuned on"), ("test", "is scored")):
        parser.add_argument(
            f"--{name}_text", type=Path, required=True, help=f"What {what}, a sentence a line"
        )
    parser.add_argument("--exp", type=Path, default=Path("exp/compare"), help="Folder to write")
    parser.add_argument("--seeds", default="1 2 3", help="Of the trainings, two or more")
    for name, choices, what in (
        ("size", ("small", "paper", "tiny"), "Of the LMs"),
        ("lm", ("transformer", "lstm"), "The backbone"),
        ("token_type", ("word", "bpe", "char"), "The LMs' tokens"),
    ):
        parser.add_argument(f"--{name}", default=choices[0], choices=choices, help=what)
    parser.add_argument("--vocab_size", type=int, help="Default: all words, or 5000 BPE pieces")
    parser.add_argument(
        "--dropout_rates", default="0.1 0.2 0.3 0.5", help="Those of the point-estimate LM to try"
    )
    parser.add_argument(
        "--epochs", type=int, default=0, help="Of each training; 0: as the configurations say"
    )
    parser.add_argument(
        "--autocast",
        choices=("bfloat16",),
        help="Precision of the products in training: faster where the CPU or GPU has it",
    )
    parser.add_argument("--ngpu", type=int, default=0, help="The number of gpus. 0: CPU mode")
    return parser


def main(cmd: Optional[Sequence[str]] = None) -> None:
    """Run `bayeslm compare`."""
    run_tool(get_parser(), run, cmd, stopped=": the same command goes on from here")


if __name__ == "__main__":
    main()
