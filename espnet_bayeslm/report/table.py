"""Tables: cells, as data, Markdown and plain text, and how numbers are written in them."""

from __future__ import annotations

import dataclasses
import sys
from typing import (
    TYPE_CHECKING,
    Any,
    Dict,
    Iterable,
    List,
    NamedTuple,
    Optional,
    Sequence,
    Union,
)

if TYPE_CHECKING:
    from espnet_bayeslm.evaluation.wer import Counted

BETTER, WORSE, MISSING = "†", "‡", "–"
# Typeset numbers as programs read them
_NUMBERS = str.maketrans({"−": "-", "\u00a0": " ", "∞": "inf", MISSING: ""})
_PRINTED = str.maketrans({"−": "-", "\u00a0": " ", MISSING: "-"})


class Cell(NamedTuple):
    """A cell: its text, a mark of significance, the target of its link, and emphasis."""

    text: str
    mark: str = ""
    href: str = ""
    strong: bool = False


Row = Sequence[Union[str, Cell]]


class Table:
    """A table whose first column names the rows.

    Args:
        caption: Title.
        header: Heads of the columns.
        rows: Cells; a text stands for a cell with nothing but a text.
        words: Further columns (from 0) that hold words: they are aligned to the left.
        counted: How the errors in it were counted; None: it has no error rates.

    Attributes:
        cells: Rows of cells.
        marked: True for each column with marks of significance.
        words: All columns that hold words, the first among them.
        note: Line below the table; empty where there is none.
    """

    def __init__(
        self,
        caption: str,
        header: Sequence[str],
        rows: Sequence[Row],
        words: Iterable[int] = (),
        counted: Optional[Counted] = None,
    ):
        self.caption, self.header, self.words = caption, header, {0, *words}
        self.counted, self.note = counted, "" if counted is None else str(counted)
        self.cells = [[c if isinstance(c, Cell) else Cell(c) for c in row] for row in rows]
        self.marked = [any(row[n].mark for row in self.cells) for n in range(len(header))]

    def data(self) -> Dict[str, Any]:
        """JSON object: numbers in a form for programs, marks in columns of their own."""
        columns: List[str] = []
        rows: List[List[str]] = [[] for _ in self.cells]
        for n, (head, marked) in enumerate(zip(self.header, self.marked, strict=True)):
            columns += [head, f"{head} significance"][: 1 + marked]
            for row, cells in zip(rows, self.cells, strict=True):
                text, mark = cells[n][:2]
                row += [text if n in self.words else text.translate(_NUMBERS), mark][: 1 + marked]
        counted = {} if self.counted is None else {"counted": dataclasses.asdict(self.counted)}
        return {"caption": self.caption, "columns": columns, "rows": rows, **counted}

    def markdown(self) -> str:
        """Table in Markdown: columns of equal width, numbers to the right."""
        cells = [[cell.text + cell.mark for cell in row] for row in self.cells]
        header, *rows = self._padded([self.header, *cells], width=3)
        rule = [
            "-" * len(head) if n in self.words else "-" * (len(head) - 1) + ":"
            for n, head in enumerate(header)
        ]
        lines = [f"| {' | '.join(line)} |\n" for line in [header, rule, *rows]]
        return "".join([*lines, *[f"\n{self.note}\n"] * bool(self.note)])

    def text(self) -> str:
        """Table in columns, as tools print it."""
        ends = [" " * mark for mark in self.marked]
        lines = [[head + end for head, end in zip(self.header, ends, strict=True)]]
        for row in self.cells:
            lines.append([c.text + (c.mark or end) for c, end in zip(row, ends, strict=True)])
        shown = ["  ".join(line).rstrip() for line in self._padded(lines)]
        return printed("\n".join([*shown, *[self.note] * bool(self.note)]))

    def _padded(self, lines: Sequence[Sequence[str]], width: int = 0) -> List[List[str]]:
        """Lines whose columns have the same width: words to the left, numbers to the right."""
        widths = [max(width, *map(len, column)) for column in zip(*lines, strict=True)]
        return [
            [
                text.ljust(width) if n in self.words else text.rjust(width)
                for n, (text, width) in enumerate(zip(line, widths, strict=True))
            ]
            for line in lines
        ]


def printed(text: str) -> str:
    """Text for the console: plain signs, and no daggers where the output's encoding has none."""
    text, encoding = text.translate(_PRINTED), sys.stdout.encoding or "ascii"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        text = text.replace(BETTER, "+").replace(WORSE, "-")
        return text.encode(encoding, "replace").decode(encoding)
    return text


def fixed(number: Optional[float], digits: int) -> str:
    """Number with so many digits after the point; a dash where there is none."""
    if number is None:
        return MISSING
    return "∞" if number == float("inf") else f"{number:.{digits}f}"


def signed(number: float, digits: int = 2) -> str:
    """Number with its sign, none where it is zero as it is shown."""
    text = f"{number:+.{digits}f}"
    return text if float(text) else text[1:]


def typeset(number: float, digits: int = 2) -> str:
    """Number with its sign, which is a minus and no hyphen."""
    return signed(number, digits).replace("-", "−")
