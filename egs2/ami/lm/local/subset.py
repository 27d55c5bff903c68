#!/usr/bin/env python3
"""Writes a random part of the training text, and the shapes of its sentences.

The parts are nested: that of 5 % is in that of 10 %.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, List, Optional, Sequence

from stages import need

from espnet_bayeslm.utils.cli import run_tool, tool_parser
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import staged


def chosen_lines(count: int, percent: int) -> List[int]:
    """Return the numbers of the lines of a part, in order, the same at each call."""
    order = list(range(count))
    random.Random(0).shuffle(order)
    return sorted(order[: max(1, round(count * percent / 100))])


def write_part(text: Path, shapes: Path, percent: int, output: Path, stats: Path) -> None:
    """Write OUTPUT/text, OUTPUT/text.plain and the statistics of the part.

    Args:
        text: Kaldi text of the training set.
        shapes: Folder of its statistics, with train/ and valid/.
        percent: How much of it.
        output: Folder for the part's text.
        stats: Folder for its statistics.

    Raises:
        InputError: An input is missing.
    """
    if not 0 < percent <= 100:
        raise InputError(f"--percent {percent}: expected 1 to 100")
    need({text: 1, shapes / "train" / "text_shape.word": 2})
    lines = text.read_text(encoding="utf-8").splitlines(keepends=True)
    kept = [lines[number] for number in chosen_lines(len(lines), percent)]
    utterances = {line.split(maxsplit=1)[0] for line in kept}
    with staged(output) as folder:
        (folder / "text").write_text("".join(kept), encoding="utf-8")
        plain = (line.split(" ", 1)[1] for line in kept)
        (folder / "text.plain").write_text("".join(plain), encoding="utf-8")
    with staged(stats) as folder:
        for name in ("train", "valid"):
            (folder / name).mkdir()
            rows = (shapes / name / "text_shape.word").read_text(encoding="utf-8")
            part = (
                row
                for row in rows.splitlines(keepends=True)
                if name == "valid" or row.split(maxsplit=1)[0] in utterances
            )
            (folder / name / "text_shape.word").write_text("".join(part), encoding="utf-8")


def subset(text: str, shapes: str, percent: int, output: str, stats: str) -> None:
    """Write the part."""
    write_part(Path(text), Path(shapes), percent, Path(output), Path(stats))


def get_parser() -> Any:
    """Return the parser of this script."""
    parser = tool_parser("subset", __doc__.splitlines()[0])
    parser.prog = "local/subset.py"
    parser.add_argument("--text", default="data/train/text", help="The training text")
    parser.add_argument("--shapes", default="exp/lm_stats", help="Its statistics")
    parser.add_argument("--percent", type=int, required=True, help="How much of the sentences")
    parser.add_argument("--output", required=True, help="Folder for the part's text")
    parser.add_argument("--stats", required=True, help="Folder for its statistics")
    return parser


def main(cmd: Optional[Sequence[str]] = None) -> None:
    """Write a part of the training text."""
    run_tool(get_parser(), subset, cmd)


if __name__ == "__main__":
    main()
