#!/usr/bin/env python3
"""Runs `bayeslm` command lines from a file or standard input, one a line, in one process.

The same as a loop over `bayeslm TOOL ...`, less the seconds that importing ESPnet takes each time.
"""

from __future__ import annotations

import shlex
import sys
from typing import Iterable, List

from espnet_bayeslm.bin import bayeslm


def parse_commands(lines: Iterable[str]) -> List[List[str]]:
    """Return the words of each command; `bayeslm` itself may be left out, empty lines are."""
    commands = [shlex.split(line, comments=True) for line in lines]
    return [words[words[0] == "bayeslm" :] for words in commands if words]


def main(lines: Iterable[str] = sys.stdin) -> None:
    """Run the commands; the first that fails ends all."""
    for words in parse_commands(lines):
        print("$ bayeslm", shlex.join(words), flush=True)
        bayeslm.main(words)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        with open(sys.argv[1], encoding="utf-8") as file:
            main(file)
    else:
        main()
