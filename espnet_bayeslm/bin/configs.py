"""`bayeslm configs`: training configurations, those shipped and those of the paper's tables."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import List, Optional

from espnet_bayeslm.configs import describe, find_config, shipped
from espnet_bayeslm.configs.tables import (
    MIXTURE,
    NUMERALS,
    Line,
    config_text,
    describe_line,
    paper_tables,
)
from espnet_bayeslm.utils.cli import Tool
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import write_text
from espnet_bayeslm.utils.options import option


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConfigsOptions:
    """Options of `bayeslm configs`."""

    name: Optional[str] = option("The configuration to print or copy", None, positional=True)
    table: Optional[str] = option("Table of the paper: I, III, IV, V or VI", None)
    line: Optional[int] = option("Line of the table; with --output the default is all lines", None)
    size: str = option("Size of the table's LMs, as small or paper", "paper")
    output: Optional[Path] = option(
        "Copy to this file, which must not exist; of a table, a folder", None
    )


def configs(options: ConfigsOptions) -> None:
    """List, print or copy shipped configurations, or those of the paper's tables."""
    name, table = options.name, options.table
    if table is not None:
        if name is not None:
            raise InputError(f"{name} and --table {table}: expected one of them")
        table_configs(NUMERALS.get(table, table), options)
    elif options.line is not None:
        raise InputError(f"--line {options.line} without --table")
    elif name is not None:
        put(find_config(name).read_text(encoding="utf-8"), options.output)
    elif options.output is not None:
        raise InputError("--output without a name", remedy="Say which: `bayeslm configs`.")
    else:
        found = shipped()
        width = max(map(len, found))
        for known, path in found.items():
            print(f"{known:{width}}  {describe(path)}")


def table_configs(table: str, options: ConfigsOptions) -> None:
    """List a table's lines, or print or write the configurations of one or all of its LMs."""
    number, output = options.line, options.output
    tables = paper_tables()
    tables.check_size(options.size)
    lines = tables.table(table) if number is None else [tables.line(table, number)]
    if number is None and output is None:
        for line in lines:
            print(f"{line.number:3}  {describe_line(line)}")
        return
    lms: List[Line] = [line for line in lines if line.kind != MIXTURE]
    files = {line.number: output and output / line.file_name for line in lms}
    for path in filter(None, files.values()):
        refuse_existing(path)
    for line in lms:
        put(config_text(options.size, line), files[line.number])


def refuse_existing(path: Path) -> None:
    """Raise an InputError where a file exists."""
    if path.exists():
        raise InputError("exists already", path=path, remedy="Give another --output.")


def put(text: str, output: Optional[Path]) -> None:
    """Print a configuration, or write it to a new file."""
    if output is None:
        print(text, end="")
        return
    refuse_existing(output)
    write_text(output, text)


TOOL = Tool(
    "configs",
    "Without a name, list the shipped training configurations, which --config finds by name;"
    " with one, print it or copy it. With --table, list the lines of a table of the paper,"
    " print the configuration of one of them (--line), or write files (--output).",
    configs,
    ConfigsOptions,
)
get_parser, main = TOOL.parser, TOOL.main


if __name__ == "__main__":
    main()
