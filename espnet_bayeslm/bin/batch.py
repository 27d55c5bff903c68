"""`bayeslm` command lines from a file or standard input, one a line, run in one process.

The same as a loop over `bayeslm TOOL ...`, less the seconds that importing ESPnet takes each time.
"""

from __future__ import annotations

import dataclasses
import shlex
import sys
from typing import Optional

from espnet_bayeslm.bin import bayeslm
from espnet_bayeslm.utils.cli import Tool
from espnet_bayeslm.utils.files import read_lines
from espnet_bayeslm.utils.options import option


@dataclasses.dataclass(frozen=True, kw_only=True)
class BatchOptions:
    """Options of `bayeslm batch`."""

    file: Optional[str] = option(
        "The command lines; default: standard input", None, positional=True
    )


def batch(options: BatchOptions) -> None:
    """Run the command lines of a file, or of standard input; the first that fails ends all.

    `bayeslm` itself may be left out of them.
    """
    file = options.file
    lines = sys.stdin if file is None else [line for _, line in read_lines(file)]
    commands = [shlex.split(line, comments=True) for line in lines]
    for words in filter(None, commands):
        words = words[words[0] == "bayeslm" :]
        print("$ bayeslm", shlex.join(words), flush=True)
        bayeslm.main(words)


TOOL = Tool(
    "batch",
    __doc__.splitlines()[0],
    batch,
    BatchOptions,
)
get_parser, main = TOOL.parser, TOOL.main


if __name__ == "__main__":
    main()
