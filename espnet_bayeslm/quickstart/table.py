"""The table of a quick start, and what it says in words."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence

from espnet_bayeslm.evaluation.perplexity import perplexity_text
from espnet_bayeslm.report.table import signed

FIRST, POINT = "first pass", "point-estimate + 3-gram"
EXPLANATION = """\
Word error rate (WER) in % on lists that nothing was tuned on; in brackets the 95 % bootstrap
interval of a difference; † significantly fewer errors (MAPSSWE, two sides, 0.05). Perplexity per
word, </s> counted, unknown words left out.
Intervals and tests hold for these trained LMs. Another CPU rounds differently, which acts like
another seed: it can turn the last column, by some tenths of a point.
Text and recogniser are real and the speech is synthetic: the differences count, not the error
rates.
"""


@dataclasses.dataclass(frozen=True)
class Difference:
    """A system's WER less another's, in points; below zero it is better.

    Attributes:
        points: The difference.
        low: Lower end of its 95 % bootstrap interval.
        high: Upper end.
        p: Of MAPSSWE, two sides.
    """

    points: float
    low: float
    high: float
    p: float

    def __str__(self) -> str:
        mark = " †" if self.points < 0 and self.p < 0.05 else ""
        return f"{signed(self.points)} [{signed(self.low)}, {signed(self.high)}]{mark}"


@dataclasses.dataclass(frozen=True)
class Row:
    """A system on eval.

    Attributes:
        name: What it is.
        wer: Its word error rate in %.
        perplexity: Of the mixture, unknown words left out; None for the first pass.
        against: Other system -> difference, for those that stand above it.
    """

    name: str
    wer: float
    perplexity: Optional[float]
    against: Dict[str, Difference]


def read_rows(scores: Path, perplexities: Mapping[str, Path]) -> List[Row]:
    """Rows of the table.

    Args:
        scores: The JSON of `bayeslm score`.
        perplexities: System -> the JSON of `bayeslm perplexity`.
    """
    errors = json.loads(scores.read_text(encoding="utf-8"))
    pairs = {(pair["a"], pair["b"]): pair for pair in errors["significance"]["pairs"]}
    rows = []
    for name in (FIRST, *perplexities):
        perplexity = None
        if name in perplexities:
            content = json.loads(perplexities[name].read_text(encoding="utf-8"))
            perplexity = content["components"][-1]["perplexity_without_oov"]["word"]
        against = {a: _difference(pair) for (a, b), pair in pairs.items() if b == name}
        rows.append(Row(name, errors[name]["wer"], perplexity, against))
    return rows


def _difference(pair: Mapping[str, Any]) -> Difference:
    """The second system's WER less the first's, of a pair whose interval is the other way."""
    interval = pair["bootstrap"]
    ends = -interval["high"], -interval["low"]
    return Difference(-interval["difference"], *ends, pair["mapsswe"]["p"])


def table(rows: Sequence[Row]) -> str:
    """Table of the systems in Markdown, and in words what was gained and what was not."""
    header = ("eval", "perplexity", "WER", f"against the {FIRST}", f"against {POINT}")
    cells = [header, *map(_cells, rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["| " + " | ".join(_padded(row, widths)) + " |" for row in cells]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    lines.insert(1, "| " + " | ".join(rule) + " |")
    return "\n".join([*lines, "", EXPLANATION, *verdicts(rows), ""])


def _cells(row: Row) -> Sequence[str]:
    """Text of a row's cells."""
    perplexity = "" if row.perplexity is None else perplexity_text(row.perplexity, 1)
    differences = (str(row.against.get(name, "")) for name in (FIRST, POINT))
    return (row.name, perplexity, f"{row.wer:.2f}", *differences)


def _padded(row: Sequence[str], widths: Sequence[int]) -> Iterator[str]:
    """Cells of equal width, the first to the left."""
    yield row[0].ljust(widths[0])
    yield from (cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))


def verdicts(rows: Sequence[Row]) -> Iterator[str]:
    """What each system with a Bayesian LM changes against the point-estimate one, in words."""
    point = next(row for row in rows if row.name == POINT)
    for row in rows:
        change = row.against.get(POINT)
        if change is None or row.perplexity is None or point.perplexity is None:
            continue
        relative = 100 * (row.perplexity / point.perplexity - 1)
        verdict = "no significant difference"
        if change.p < 0.05:
            verdict = f"significantly {'fewer' if change.points < 0 else 'MORE'} errors"
        yield (
            f"{row.name} against {POINT}: perplexity {signed(relative, 1)} %, WER"
            f" {signed(change.points)} points, p = {change.p:.2g}: {verdict}."
        )
