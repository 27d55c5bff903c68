"""Runs ESPnet's programs with our classes registered, after a check of their token lists."""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import os
import sys
from types import ModuleType
from typing import Any, Iterator, List, Sequence

import yaml

from espnet_bayeslm.loading.experiment import check_same_tokens, other_tokens_error
from espnet_bayeslm.pretrained.names import is_pretrained
from espnet_bayeslm.utils.errors import one_line_errors

# The program that has a task of its own here.
PROGRAMS = {"espnet2.bin.lm_train": "espnet_bayeslm.bin.lm_train"}
ESPNET_PROGRAMS = "espnet2.bin."
# Options of the interpreter that may stand before -m.
FLAGS = ("-u", "-B", "-O", "-OO", "-E", "-s", "-S", "-P", "-q", "-v", "-I")
VALUED = ("-W", "-X")
LM, LM_FILE, SUFFIX = "lm_train_config", "lm_file", "_train_config"
# Options of LMs over other tokens than the recogniser writes
OTHER_LMS = ("word_lm", "src_lm", "src_word_lm")


def run_program(module: str, words: List[str]) -> None:
    """Call `main()` of an ESPnet program in this process.

    Importing the module, where runpy would make it `__main__`, keeps the classes registered
    in workers that are spawned: those import this package first.
    """
    from espnet_bayeslm import register

    with one_line_errors(module):
        register()
        program = importlib.import_module(PROGRAMS.get(module, module))
        sys.argv = [program.__file__ or module, *words]
        check_decoding(program, words)
        with _ends_wait(program):
            program.main()


def attach_lm(recogniser: Any) -> None:
    """Let the search of ESPnet's `Speech2Text` pay the ends of a fusion when it is over."""
    search = getattr(recogniser, "beam_search_transducer", None)
    lm: Any = getattr(search, "lm", None)
    if search is None:
        search = getattr(recogniser, "beam_search", None)
        lm = getattr(search, "scorers", {}).get("lm")
    if hasattr(lm, "attach_to"):
        lm.attach_to(search)


@contextlib.contextmanager
def _ends_wait(program: ModuleType) -> Iterator[None]:
    """Attach LMs to the searches of the recognisers that a program makes."""
    recogniser: Any = getattr(program, "Speech2Text", None)
    if recogniser is None:
        yield
        return
    init = recogniser.__init__

    @functools.wraps(init)
    def init_and_attach(self: Any, *args: Any, **options: Any) -> None:
        init(self, *args, **options)
        attach_lm(self)

    recogniser.__init__ = init_and_attach
    try:
        yield
    finally:
        recogniser.__init__ = init


def launch(words: List[str]) -> None:
    """Do what `python WORDS` would do, with our classes in ESPnet's programs.

    `-m espnet2.bin.X ...` comes back here, after options of the interpreter.
    """
    options = 0
    while words[options : options + 1] and words[options] in (*FLAGS, *VALUED):
        options += 1 if words[options] in FLAGS else 2
    rest = words[options:]
    if len(rest) >= 2 and rest[0] == "-m" and rest[1].startswith(ESPNET_PROGRAMS):
        if not options:
            return run_program(rest[1], rest[2:])
        rest = ["-m", "espnet_bayeslm", *rest]
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, *words[:options], *rest])


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
    lm = options.get(LM)
    for path in filter(None, (lm, options.get(LM_FILE))):
        if is_pretrained(path):
            raise other_tokens_error(path)
    if not lm or options.get("model_tag"):
        return
    for option, path in options.items():
        part = option.removesuffix(SUFFIX)
        if path and option != LM and part not in (option, *OTHER_LMS):
            remedy = "Train the LM with the recogniser's --token_list (and --bpemodel)."
            check_same_tokens(lm, path, remedy=remedy)
