"""Shared by all command lines: a parser with --config, a log, one-line errors."""

from __future__ import annotations

import argparse
import logging
import sys
from typing import Callable, Iterable, Optional, Sequence

from espnet2.utils import config_argparse
from tqdm import tqdm


def tool_parser(tool: str, description: str) -> config_argparse.ArgumentParser:
    """Parser with `--config` and `--log_level`, as ESPnet's programs have them."""
    parser = config_argparse.ArgumentParser(
        prog=f"bayeslm {tool}",
        description=description,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument(
        "--log_level",
        type=str.upper,
        default="INFO",
        choices=("ERROR", "WARNING", "INFO", "DEBUG"),
        help="The verbose level of logging",
    )
    return parser


def run_tool(
    parser: argparse.ArgumentParser,
    function: Callable,
    cmd: Optional[Sequence[str]] = None,
    *,
    rest: Optional[str] = None,
) -> None:
    """Call `function` with the parsed options; bad input ends in one line and status 1.

    Args:
        parser: Made by `tool_parser`; its options are `function`'s keyword arguments.
        function: What the tool does.
        cmd: The command line (default: sys.argv).
        rest: The argument that takes options which the parser does not know; without it
            they are errors.

    Raises:
        SystemExit: Status 2 for wrong options, 1 for bad input.
    """
    known, unknown = parser.parse_known_args(cmd)
    if unknown and rest is None:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    options = vars(known)
    if rest is not None:
        options[rest] = unknown
    else:
        # --config gave its values to the other options
        options.pop("config", None)
    logging.basicConfig(
        level=options.pop("log_level"),
        format="%(asctime)s (%(module)s:%(lineno)d) %(levelname)s: %(message)s",
        stream=sys.stderr,
    )
    try:
        function(**options)
    except (ValueError, OSError) as error:
        logging.debug("traceback", exc_info=True)
        parser.exit(1, f"{parser.prog}: error: {error}\n")


def progress(
    iterable: Optional[Iterable] = None, *, desc: str, unit: str, total: Optional[int] = None
) -> tqdm:
    """Progress bar with rate and time left (silent where nobody looks).

    Args:
        iterable: What to walk; without it, call `.update(n)` and `.close()`.
        desc: What is being done.
        unit: What is counted.
        total: The count at the end, where the iterable has no length.
    """
    return tqdm(
        iterable,
        desc=desc,
        unit=unit,
        total=total,
        dynamic_ncols=True,
        unit_scale=True,
        mininterval=0.5 if sys.stderr.isatty() else 10.0,
    )
