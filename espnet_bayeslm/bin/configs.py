"""`bayeslm configs`: the shipped training configurations, listed or copied."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Optional, Sequence

from espnet_bayeslm.configs import describe, find_config, shipped
from espnet_bayeslm.utils.cli import run_tool
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import atomic_write


def get_parser() -> argparse.ArgumentParser:
    """Parser of `bayeslm configs`."""
    parser = argparse.ArgumentParser(
        prog="bayeslm configs",
        description="Without a name, list the shipped training configurations, which --config"
        " finds by name; with one, print it or copy it.",
    )
    parser.add_argument("--log_level", default="INFO", type=str.upper, help="Of the log")
    parser.add_argument("name", nargs="?", default=None, help="The configuration to print or copy")
    parser.add_argument(
        "--output", type=Path, default=None, help="Copy it to this file, which must not exist"
    )
    return parser


def configs(*, name: Optional[str], output: Optional[Path]) -> None:
    """List the shipped configurations, or print or copy one.

    Raises:
        InputError: No such name, or the output exists.
    """
    if name is None:
        if output is not None:
            raise InputError("--output without a name", remedy="Say which: `bayeslm configs`.")
        found = shipped()
        width = max(map(len, found))
        for known, path in found.items():
            print(f"{known:{width}}  {describe(path)}")
        return
    text = find_config(name).read_text(encoding="utf-8")
    if output is None:
        print(text, end="")
        return
    if output.exists():
        raise InputError("exists already", path=output, remedy="Give another --output.")
    with atomic_write(output) as f:
        f.write(text)


def main(cmd: Optional[Sequence[str]] = None) -> None:
    """Run `bayeslm configs`."""
    run_tool(get_parser(), configs, cmd)


if __name__ == "__main__":
    main()
