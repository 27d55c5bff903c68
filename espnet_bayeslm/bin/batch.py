"""`bayeslm` command lines from a file or standard input, one a line, run in one process.

The same as a loop over `bayeslm TOOL ...`, less the seconds that importing ESPnet takes each time.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from typing import Iterable, List, Optional, Sequence

from espnet_bayeslm.bin import bayeslm
from espnet_bayeslm.utils.cli import run_tool, tool_parser


def parse_commands(lines: Iterable[str]) -> List[List[str]]:
    """The words of each command; `bayeslm` itself may be left out, empty lines are."""
    commands = [shlex.split(line, comments=True) for line in lines]
    return [words[words[0] == "bayeslm" :] for words in commands if words]


def run_commands(lines: Iterable[str]) -> None:
    """Run the commands; the first that fails ends all."""
    for words in parse_commands(lines):
        print("$ bayeslm", shlex.join(words), flush=True)
        bayeslm.main(words)


def batch(file: Optional[str]) -> None:
    """Run the command lines of a file, or of standard input."""
    if file is None:
        run_commands(sys.stdin)
        return
    with open(file, encoding="utf-8") as f:
        run_commands(f)


def get_parser() -> argparse.ArgumentParser:
    """Parser of `bayeslm batch`."""
    parser = tool_parser("batch", __doc__.splitlines()[0])
    parser.add_argument("file", nargs="?", help="The command lines; default: standard input")
    return parser


def main(cmd: Optional[Sequence[str]] = None) -> None:
    """Run command lines."""
    run_tool(get_parser(), batch, cmd)


if __name__ == "__main__":
    main()
