"""Tables of the report: as data, as CSV and as LaTeX."""

from __future__ import annotations

import csv
import dataclasses
import io
import re
from typing import List, NamedTuple, Sequence, Union

BETTER, WORSE, MISSING = "†", "‡", "–"
# What numbers are made of, for programs and for TeX
_NUMBERS = str.maketrans({"−": "-", "\u00a0": " ", "∞": "inf", MISSING: ""})
_TEX = str.maketrans(
    {character: f"\\{character}" for character in "{}$&#_%"}
    | {"\\": r"\textbackslash{}", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}"}
    | {"−": "$-$", "\u00a0": "~", "∞": r"$\infty$", MISSING: "--", "—": "---"}
    | {"σ": r"$\sigma$", BETTER: r"\textsuperscript{\dag}", WORSE: r"\textsuperscript{\ddag}"}
    | {"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}"}
)


class Cell(NamedTuple):
    """A cell: its text, a mark of significance, what it links to, and whether it stands out."""

    text: str
    mark: str = ""
    href: str = ""
    strong: bool = False


Row = Sequence[Union[str, Cell]]


@dataclasses.dataclass(frozen=True)
class Table:
    """A table whose first column names the rows.

    Attributes:
        caption: What it shows.
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
        rows = self.rows
        return [[c if isinstance(c, Cell) else Cell(c) for c in row] for row in rows]

    @property
    def marked(self) -> List[bool]:
        """Columns with marks of significance."""
        return [any(row[n].mark for row in self.cells) for n in range(len(self.header))]

    @property
    def name(self) -> str:
        """Name of a file for it."""
        return re.sub(r"[^a-z0-9]+", "-", self.caption.partition(":")[0].lower()).strip("-")[:40]

    def is_words(self, column: int) -> bool:
        """Whether a column holds words."""
        return column == 0 or column in self.words

    def csv(self, delimiter: str = ",") -> str:
        """CSV with a header; marks of significance have columns of their own."""
        lines: List[List[str]] = [[], *([] for _ in self.rows)]
        for n, (head, marked) in enumerate(zip(self.header, self.marked, strict=True)):
            column = [row[n] for row in self.cells]
            lines[0] += [head, f"{head} significance"][: 1 + marked]
            for line, cell in zip(lines[1:], column, strict=True):
                text = cell.text if self.is_words(n) else cell.text.translate(_NUMBERS)
                line += [text, cell.mark][: 1 + marked]
        file = io.StringIO()
        csv.writer(file, delimiter=delimiter, lineterminator="\n").writerows(lines)
        return file.getvalue()

    def latex(self) -> str:
        """LaTeX `table` with the rules of the package booktabs."""
        columns = "".join("l" if self.is_words(n) else "r" for n in range(len(self.header)))
        lines = [[Cell(head) for head in self.header], *self.cells]
        head, *body = (
            " & ".join((cell.text + cell.mark).translate(_TEX) for cell in row) + r" \\"
            for row in lines
        )
        begin = [r"\begin{table}", rf"\caption{{{self.caption.translate(_TEX)}}}"]
        rows = [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", head, r"\midrule", *body]
        end = [r"\bottomrule", r"\end{tabular}", r"\end{table}"]
        return "\n".join([*begin, *rows, *end]) + "\n"


def fixed(number: Union[float, None], digits: int) -> str:
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
