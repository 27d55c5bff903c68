"""Runs ESPnet's programs with our classes registered."""

from __future__ import annotations

import importlib
import os
import sys
from typing import List

from espnet_bayeslm.utils.errors import one_line_errors

# The program that has a task of its own here.
PROGRAMS = {"espnet2.bin.lm_train": "espnet_bayeslm.bin.lm_train"}
ESPNET_PROGRAMS = "espnet2.bin."
# Options of the interpreter that may stand before -m.
FLAGS = ("-u", "-B", "-O", "-OO", "-E", "-s", "-S", "-P", "-q", "-v", "-I")
VALUED = ("-W", "-X")


def run_program(module: str, words: List[str]) -> None:
    """Call `main()` of an ESPnet program in this process.

    Importing the module, where runpy would make it `__main__`, keeps the classes registered
    in workers that are spawned: those import this package first.
    """
    from espnet_bayeslm import register

    with one_line_errors(module):
        register()
        from espnet_bayeslm.training.decoding import check_decoding

        program = importlib.import_module(PROGRAMS.get(module, module))
        sys.argv = [program.__file__ or module, *words]
        check_decoding(program, words)
        program.main()


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
