"""Options of the tools that score text: which LMs and n-grams, and how."""

from __future__ import annotations

import argparse
import dataclasses

from espnet_bayeslm.nbest.formats import FORMATS
from espnet_bayeslm.rescoring.options import (
    GPUOptions,
    LMOptions,
    MixtureOptions,
    normalize_option,
)
from espnet_bayeslm.utils.options import add_options, option

FORMAT_HELP = f"Their format: {', '.join(FORMATS)} (default: as names or contents of the files say)"


@dataclasses.dataclass(frozen=True, kw_only=True)
class LMCommand(LMOptions, GPUOptions):
    """Options of a tool that scores with LMs."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class MixtureCommand(MixtureOptions, GPUOptions):
    """Options of a tool that scores with LMs and n-grams."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextOptions:
    """Options that say which text is read, and how."""

    text: str = option("The text, one sentence per line")
    keyed: bool = option("Whether lines begin with an utterance id, as in a Kaldi `text`", False)
    normalize: str = normalize_option("the text")
    context: int = option(
        "Score runs of so many sentences after the so many before them, joined by <sos/eos>:"
        " for LMs that were trained on such lines; n-grams take each sentence by itself",
        0,
    )


def add_lm_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a tool that scores with LMs."""
    add_options(parser, LMCommand)


def add_component_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that `load_components` and `score_components` take, and the weights."""
    add_options(parser, MixtureCommand)


def add_normalize_option(parser: argparse.ArgumentParser, what: str) -> None:
    """Add the option that says how text is normalised; `what` text goes into its help."""
    made = dataclasses.make_dataclass("Made", [("normalize", str, normalize_option(what))])
    add_options(parser, made)
