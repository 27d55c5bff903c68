"""Checks of a decoding program's options, before ESPnet's program runs with an LM."""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
from pathlib import Path
from types import ModuleType
from typing import Any, Dict, List, Optional, Sequence

import yaml

from espnet_bayeslm.loading.espnet_tasks import TransformerLM, lm_choices
from espnet_bayeslm.loading.experiment import read_yaml_mapping, token_difference
from espnet_bayeslm.utils.errors import InputError

Config = Dict[str, Any]
"""What a config.yaml holds."""

LM, SUFFIX = "lm_train_config", "_train_config"
# Options of LMs over other tokens than the recogniser writes
OTHER_LMS = ("word_lm", "src_lm", "src_word_lm")
# The searches of transducers, for the programs that have any
SEARCHES = {
    "espnet2.bin.asr_inference": ("default", "tsd", "alsd", "nsc", "maes", "mbg"),
    "espnet2.bin.asr_transducer_inference": ("default", "tsd", "alsd", "maes"),
}
# The only one that gives the LM all tokens of a hypothesis
WHOLE_PREFIXES = "default"


def check_decoding(program: ModuleType, words: Sequence[str]) -> None:
    """Check that a program of ESPnet's can decode with the LM that its options name.

    Nothing is said about files that are missing or unreadable, nor about wrong options: those
    are the program's own errors.

    Raises:
        InputError: The LM's tokens are not the recogniser's, or ESPnet cannot do this with it.
    """
    args = _parsed(program, words)
    lm = _config(getattr(args, LM, None))
    if args is None or lm is None or getattr(args, "model_tag", None):
        return
    if program.__name__ == "espnet2.bin.lm_inference":
        _check_generation(lm, path=args.lm_train_config)
    for option, path in vars(args).items():
        part = option.removesuffix(SUFFIX)
        if option == LM or part == option or part in OTHER_LMS:
            continue
        recogniser = _config(path)
        if recogniser is not None:
            _check_tokens(lm, recogniser, lm_path=args.lm_train_config, path=path)
            _check_search(program.__name__, args, recogniser, lm)


def _parsed(program: ModuleType, words: Sequence[str]) -> Optional[argparse.Namespace]:
    """A program's options, `--config` included; None where it will refuse them itself."""
    if "inference" not in program.__name__ or not hasattr(program, "get_parser"):
        return None
    silence = io.StringIO()
    try:
        with contextlib.redirect_stderr(silence), contextlib.redirect_stdout(silence):
            return program.get_parser().parse_args(list(words))
    except (SystemExit, OSError, ValueError, yaml.YAMLError):
        return None


def _config(path: Optional[str]) -> Optional[Config]:
    """A config.yaml's content; None where there is none that can be read."""
    if path is None:
        return None
    try:
        return read_yaml_mapping(Path(path))
    except ValueError:  # an InputError, or of yaml itself, as for a date that is none
        return None


def _token_list(config: Config) -> Optional[List[str]]:
    """A configuration's tokens, in the order of their ids; None where it names none."""
    tokens = config.get("token_list")
    if isinstance(tokens, str):
        try:
            with open(tokens, encoding="utf-8") as f:
                tokens = [line.rstrip("\n") for line in f]
        except (OSError, ValueError):
            return None
    return list(map(str, tokens)) if isinstance(tokens, list) else None


def _check_tokens(lm: Config, recogniser: Config, *, lm_path: str, path: str) -> None:
    """Raise an InputError where the two token lists differ."""
    ours, theirs = _token_list(lm), _token_list(recogniser)
    if ours is None or theirs is None or ours == theirs:
        return
    raise InputError(
        token_difference(ours, theirs, whose=path),
        path=lm_path,
        remedy="Train the LM with the recogniser's --token_list (and --bpemodel).",
    )


def _check_search(program: str, args: argparse.Namespace, recogniser: Config, lm: Config) -> None:
    """Raise an InputError where ESPnet's search of a transducer cannot be done with the LM."""
    standalone = program == "espnet2.bin.asr_transducer_inference"
    if program not in SEARCHES or not (standalone or recogniser.get("decoder") == "transducer"):
        return
    if args.beam_size <= 1 and not standalone:
        return  # greedy, without the LM
    options = args.beam_search_config if standalone else args.transducer_conf
    if not isinstance(options or {}, dict):
        return
    search = (options or {}).get("search_type", WHOLE_PREFIXES)
    if search not in SEARCHES[program]:
        raise InputError(
            f"{program} has no search {search!r}",
            remedy=f"Valid are {', '.join(SEARCHES[program])}.",
        )
    if not _reads_token_by_token(lm) and (standalone or search not in (WHOLE_PREFIXES, "mbg")):
        another = "" if standalone else f"the search {WHOLE_PREFIXES!r}, "
        raise InputError(
            f"ESPnet's search {search!r} of transducers cannot use an LM of type {lm.get('lm')},"
            " which reads whole prefixes",
            path=args.lm_train_config,
            remedy=f"Use {another}an LM of this package or seq_rnn, or make the LM a bayes_espnet"
            " one (its lm as the backbone).",
        )
    if search == "maes" and not standalone:
        # the module's function would set up the log, before ESPnet does
        logging.getLogger(__name__).warning(
            "ESPnet's search 'maes' of asr_inference forgets tokens of the LM's context, whatever"
            " the LM; 'default', 'tsd', 'alsd' and 'nsc' do not."
        )


def _reads_token_by_token(lm: Config) -> bool:
    """Whether an LM can go on from a state and one token."""
    chosen = lm_choices.classes.get(lm.get("lm", lm_choices.default))
    if chosen is None:
        return True  # ESPnet will say that it knows no such LM
    return hasattr(chosen, "zero_state") and not issubclass(chosen, TransformerLM)


def _check_generation(lm: Config, *, path: str) -> None:
    """Raise an InputError where `lm_inference` cannot generate text with the model."""
    if lm.get("model", "lm") == "lm":
        raise InputError(
            "ESPnet's lm_inference takes the start of a sentence from the model, and `model: lm`"
            " does not tell it",
            path=path,
            remedy="Use an LM of this package (model: bayes_lm) or ESPnet's model: lm_multitask.",
        )
