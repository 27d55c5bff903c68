"""`bayeslm configs`: the training configurations that are shipped."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Optional

from espnet_bayeslm.configs import find_config, first_sentence, shipped
from espnet_bayeslm.utils.cli import Tool
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import write_text
from espnet_bayeslm.utils.options import ToolOptions, option


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConfigsOptions(ToolOptions):
    """Options of `bayeslm configs`."""

    name: Optional[str] = option("The configuration to print or copy", None, positional=True)
    output: Optional[Path] = option("Copy to this file, which must not exist", None)


def configs(options: ConfigsOptions) -> None:
    """List, print or copy shipped configurations."""
    name, output = options.name, options.output
    if name is not None:
        text = find_config(name).read_text(encoding="utf-8")
        if output is None:
            print(text, end="")
        elif output.exists():
            raise InputError("exists already", path=output, remedy="Give another --output.")
        else:
            write_text(output, text)
    elif output is not None:
        raise InputError("--output without a name", remedy="Say which: `bayeslm configs`.")
    else:
        found = shipped()
        width = max(map(len, found))
        for known, path in found.items():
            print(f"{known:{width}}  {first_sentence(path)}")


TOOL = Tool(
    "configs",
    "Without a name, list the shipped training configurations, which --config finds by name;"
    " with one, print it or copy it.",
    configs,
    ConfigsOptions,
)
get_parser, main = TOOL.parser, TOOL.main


if __name__ == "__main__":
    main()
