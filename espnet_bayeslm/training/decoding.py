"""Check of a decoding program's token lists, before ESPnet's program runs with an LM."""

from __future__ import annotations

import argparse
import contextlib
import io
from pathlib import Path
from types import ModuleType
from typing import Any, Dict, List, Optional, Sequence

import yaml

from espnet_bayeslm.loading.experiment import token_difference
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import read_yaml_mapping

Config = Dict[str, Any]
"""What a config.yaml holds."""

LM, SUFFIX = "lm_train_config", "_train_config"
# Options of LMs over other tokens than the recogniser writes
OTHER_LMS = ("word_lm", "src_lm", "src_word_lm")


def check_decoding(program: ModuleType, words: Sequence[str]) -> None:
    """Check that a program of ESPnet's can decode with the LM that its options name.

    Nothing is said about files that are missing or unreadable, nor about wrong options: those
    are the program's own errors.
    """
    args = _parsed(program, words)
    lm = _config(getattr(args, LM, None))
    if args is None or lm is None or getattr(args, "model_tag", None):
        return
    for option, path in vars(args).items():
        part = option.removesuffix(SUFFIX)
        if option == LM or part == option or part in OTHER_LMS:
            continue
        recogniser = _config(path)
        if recogniser is not None:
            _check_tokens(lm, recogniser, lm_path=args.lm_train_config, path=path)


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
