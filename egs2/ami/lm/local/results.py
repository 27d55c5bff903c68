#!/usr/bin/env python3
"""Collects the results of a table, and writes them as Markdown with figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Optional, Sequence

from collect import collect
from figures import write_figures
from report_input import write_report_input
from sections import document
from settings import Settings
from view import View

from espnet_bayeslm.utils.cli import run_tool, tool_parser
from espnet_bayeslm.utils.files import atomic_write


def results(
    *,
    table: str,
    size: str,
    seeds: Sequence[int],
    sets: Sequence[str],
    order: int,
    exp: str,
    data: str,
    note: Sequence[str],
) -> None:
    """Write results_TABLE.json, RESULTS_TABLE.md, images and report_TABLE.yaml into EXP/SIZE."""
    dev, test = sets
    settings = Settings(
        table, size, tuple(dict.fromkeys(seeds)), Path(exp), Path(data), (dev, test), order
    )
    view = View(collect(settings))
    images = write_figures(view, settings.folder / "images")
    text = document(view, images, settings.folder, note)
    with atomic_write(settings.folder / f"RESULTS_{table}.md") as f:
        f.write(text)
    write_report_input(view, settings)
    print(text)


def get_parser() -> Any:
    """Return the parser of this script."""
    parser = tool_parser("results", __doc__.splitlines()[0])
    parser.prog = "local/results.py"
    parser.add_argument("--table", default="main", help="Which table's lines")
    parser.add_argument("--size", default="small", help="Size of the LMs")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1], help="Of ESPnet's training")
    parser.add_argument("--sets", nargs=2, default=["dev", "eval"], help="Dev and test set")
    parser.add_argument("--order", type=int, default=3, help="Order of the n-gram")
    parser.add_argument("--exp", default="exp", help="The folder that has the sizes")
    parser.add_argument("--data", default="data", help="Folder of texts and N-best lists")
    parser.add_argument(
        "--note",
        nargs="*",
        default=[],
        help="Sentences for the head of RESULTS: what the lists are of, the machine",
    )
    return parser


def main(cmd: Optional[Sequence[str]] = None) -> None:
    """Collect, write and print the results."""
    run_tool(get_parser(), results, cmd)


if __name__ == "__main__":
    main()
