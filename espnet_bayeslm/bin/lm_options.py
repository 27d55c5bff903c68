"""Options of the tools that score text: which LMs and n-grams, and how."""

from __future__ import annotations

import argparse

from espnet2.utils.types import float_or_none

from espnet_bayeslm.evaluation.counting import UNITS
from espnet_bayeslm.evaluation.normalization import STEPS
from espnet_bayeslm.nbest.formats import FORMATS
from espnet_bayeslm.scoring.limits import MAX_TOKENS

FORMAT_HELP = f"Their format: {', '.join(FORMATS)} (default: as names or contents of the files say)"


def add_lm_options(group: argparse._ActionsContainer) -> None:
    """Add the options of a tool that scores with LMs."""
    group.add_argument(
        "--lm",
        action="append",
        default=[],
        help="A trained ESPnet LM: its experiment folder or checkpoint (repeatable)",
    )
    group.add_argument(
        "--max_tokens", type=int, default=MAX_TOKENS, help="The most tokens of a batch"
    )
    group.add_argument("--ngpu", type=int, default=0, help="The number of gpus. 0: CPU mode")
    group.add_argument(
        "--max_oov_rate",
        type=float,
        default=0.2,
        help="More unknown words than this part of all words are an error",
    )


def add_component_options(parser: argparse.ArgumentParser, *, weighted: bool = True) -> None:
    """Add the options that `load_components` and `score_components` take, and the weights."""
    group = parser.add_argument_group("LMs and n-grams")
    add_lm_options(group)
    group.add_argument(
        "--ngram",
        action="append",
        default=[],
        help="An ARPA file or KenLM binary (repeatable; after the LMs in the order of weights)",
    )
    group.add_argument(
        "--num_samples",
        type=int,
        default=0,
        help="Weight draws whose probabilities are averaged; 0: the posterior mean",
    )
    group.add_argument(
        "--unk_size",
        type=float_or_none,
        help="Words that share the probability of <unk>. Default: as counted in an LM's training"
        " (else three quarters of its vocabulary), 1 for n-grams and LMs of word pieces",
    )
    group.add_argument("--cache", help="A folder that keeps the LMs' word scores")
    if weighted:
        group.add_argument("--weights", help="weights.yaml of `bayeslm interpolate`, or W,W,..")


def add_counting_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say how errors are counted, as `Counting` has them."""
    parser.add_argument(
        "--unit",
        default="word",
        choices=UNITS,
        help="What errors are counted in: words, or characters (CER; Unicode code points after NFC,"
        " blanks left out)",
    )
    parser.add_argument(
        "--ignore_words",
        metavar="FILE",
        help="Words that do not count, one a line, such as [laugh]: they are left out of references"
        " and hypotheses before errors are counted; what is written keeps them",
    )


def add_normalize_option(parser: argparse.ArgumentParser, what: str) -> None:
    """Add the option that says how text is normalised; `what` text goes into its help."""
    parser.add_argument(
        "--normalize",
        default="",
        help=f"Normalise {what} for scoring and counting; what is written stays as it came."
        f" Steps with commas between them: {', '.join(STEPS)}",
    )
