"""Tables: cells, as data and as Markdown, and how numbers are written in them."""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Union

BETTER, WORSE, MISSING = "†", "‡", "–"
# Typeset numbers as programs read them
_NUMBERS = str.maketrans({"−": "-", "\u00a0": " ", "∞": "inf", MISSING: ""})


class Cell(NamedTuple):
    """A cell: its text, a mark of significance, the target of its link, and emphasis."""

    text: str
    mark: str = ""
    href: str = ""
    strong: bool = False


Row = Sequence[Union[str, Cell]]


@dataclasses.dataclass(frozen=True)
class Table:
    """A table whose first column names the rows.

    Attributes:
        caption: Caption.
        header: The columns' names.
        rows: The cells.
        words: Further columns (from 0) that hold words: they are aligned to the left.
    """

    caption: str
    header: Sequence[str]
    rows: Sequence[Row]
    words: Sequence[int] = ()

    @property
    def cells(self) -> List[List[Cell]]:
        """Rows of cells."""
        return [[c if isinstance(c, Cell) else Cell(c) for c in row] for row in self.rows]

    @property
    def marked(self) -> List[bool]:
        """Columns with marks of significance."""
        return [any(row[n].mark for row in self.cells) for n in range(len(self.header))]

    def is_words(self, column: int) -> bool:
        """True if a column holds words."""
        return column == 0 or column in self.words

    def data(self) -> Dict[str, Any]:
        """JSON object: numbers in a form for programs, marks in columns of their own."""
        columns: List[str] = []
        rows: List[List[str]] = [[] for _ in self.rows]
        for n, (head, marked) in enumerate(zip(self.header, self.marked, strict=True)):
            columns += [head, f"{head} significance"][: 1 + marked]
            for row, cells in zip(rows, self.cells, strict=True):
                text, mark = cells[n][:2]
                row += [text if self.is_words(n) else text.translate(_NUMBERS), mark][: 1 + marked]
        return {"caption": self.caption, "columns": columns, "rows": rows}

    def markdown(self) -> str:
        """Table in Markdown: columns of equal width, numbers to the right."""
        lines = [[*self.header], *([cell.text + cell.mark for cell in row] for row in self.cells)]
        widths = [max(3, *map(len, column)) for column in zip(*lines, strict=True)]
        rule = [
            "-" * width if self.is_words(n) else "-" * (width - 1) + ":"
            for n, width in enumerate(widths)
        ]
        padded = [
            [
                text.ljust(width) if self.is_words(n) else text.rjust(width)
                for n, (text, width) in enumerate(zip(line, widths, strict=True))
            ]
            for line in lines
        ]
        return "".join(f"| {' | '.join(line)} |\n" for line in [padded[0], rule, *padded[1:]])


def columns(rows: Sequence[Sequence[str]], *, words: Sequence[int] = (0,)) -> str:
    """Rows as text in columns; columns that hold words are aligned to the left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        [cell.ljust(w) if n in words else cell.rjust(w) for n, (cell, w) in enumerate(cells)]
        for cells in (list(zip(row, widths, strict=True)) for row in rows)
    ]
    return "\n".join("  ".join(line).rstrip() for line in lines)


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
