"""Check of a decoding program's token lists, before ESPnet's program runs with an LM."""

from __future__ import annotations

import contextlib
import io
from types import ModuleType
from typing import Any, List, Optional, Sequence

import yaml

from espnet_bayeslm.loading.experiment import token_difference
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import read_lines, read_yaml_mapping

LM, SUFFIX = "lm_train_config", "_train_config"
# Options of LMs over other tokens than the recogniser writes
OTHER_LMS = ("word_lm", "src_lm", "src_word_lm")


def check_decoding(program: ModuleType, words: Sequence[str]) -> None:
    """Check that a program of ESPnet's can decode with the LM that its options name.

    Nothing is said about files that are missing or unreadable, nor about wrong options: those
    are the program's own errors.
    """
    if "inference" not in program.__name__ or not hasattr(program, "get_parser"):
        return
    silence = io.StringIO()
    try:
        with contextlib.redirect_stderr(silence), contextlib.redirect_stdout(silence):
            options = vars(program.get_parser().parse_args(list(words)))
    except (SystemExit, OSError, ValueError, yaml.YAMLError):
        return
    lm = _token_list(options.get(LM))
    if lm is None or options.get("model_tag"):
        return
    for option, path in options.items():
        part = option.removesuffix(SUFFIX)
        others = part in (option, *OTHER_LMS) or option == LM
        recogniser = None if others else _token_list(path)
        if recogniser is not None and recogniser != lm:
            raise InputError(
                token_difference(lm, recogniser, whose=path),
                path=options[LM],
                remedy="Train the LM with the recogniser's --token_list (and --bpemodel).",
            )


def _token_list(config: Optional[str]) -> Optional[List[str]]:
    """Tokens of a config.yaml in the order of their ids; None where none can be read."""
    try:
        tokens: Any = read_yaml_mapping(config).get("token_list") if config else None
        if isinstance(tokens, str):
            tokens = [line for _, line in read_lines(tokens)]
    except ValueError:  # an InputError, or of yaml itself, as for a date that is none
        return None
    return list(map(str, tokens)) if isinstance(tokens, list) else None
