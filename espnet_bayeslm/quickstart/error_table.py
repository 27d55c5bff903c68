"""The table of a quick start, and its conclusions in words."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence

from espnet_bayeslm.evaluation.perplexity import perplexity_text
from espnet_bayeslm.quickstart.interval import Interval
from espnet_bayeslm.quickstart.runner import read_perplexities
from espnet_bayeslm.report.table import Table, signed

FIRST, POINT = "first pass", "point-estimate + 3-gram"
TUNED = "first pass, tuned"
"""The control: the recogniser's own scores, tuned as those of the systems are."""
EXPLANATION = """\
Word error rate (WER) in % on lists that nothing was tuned on; in brackets the 95 % bootstrap
interval of a difference; † significantly fewer errors (MAPSSWE, two sides, 0.05). Perplexity per
word, </s> counted, unknown words left out.
"first pass, tuned" is the control without an LM: the recogniser's own scores, tuned on dev.
Intervals and tests hold for these trained LMs. Another CPU rounds differently, which acts like
another seed: it can turn the last column, by some tenths of a point.
Text and recogniser are real and the speech is synthetic: the differences count, not the error
rates.
"""


@dataclasses.dataclass(frozen=True)
class Row:
    """A system on eval.

    Attributes:
        name: Name of the system.
        wer: Word error rate in %.
        perplexity: Perplexity of the mixture, unknown words left out; None: not measured.
        against: Other system above -> WER of this system less WER of the other, in points.
    """

    name: str
    wer: float
    perplexity: Optional[float]
    against: Dict[str, Interval]


def read_rows(scores: Path, perplexities: Mapping[str, Path], *, names: Iterable[str]) -> List[Row]:
    """Rows of the table, in the order of `names`, from the files of `score` and `perplexity`."""
    errors = json.loads(scores.read_text(encoding="utf-8"))
    pairs = errors["significance"]["pairs"]
    mixtures = {name: read_perplexities(path)[-1] for name, path in perplexities.items()}
    return [
        Row(
            name,
            errors[name]["wer"],
            mixtures.get(name),
            {pair["a"]: _difference(pair) for pair in pairs if pair["b"] == name},
        )
        for name in (FIRST, TUNED, *names)
    ]


def _difference(pair: Mapping[str, Any]) -> Interval:
    """Difference of WERs, the second system's less the first's; the pair has the opposite sign."""
    found = pair["bootstrap"]
    return Interval(-found["difference"], -found["high"], -found["low"], pair["mapsswe"]["p"])


def table(rows: Sequence[Row]) -> str:
    """Table of the systems in Markdown, and its conclusions in words."""
    header = ("eval", "perplexity", "WER", f"against the {FIRST}", f"against {POINT}")
    cells = [
        [
            row.name,
            "" if row.perplexity is None else perplexity_text(row.perplexity, 1),
            f"{row.wer:.2f}",
            *(
                row.against[name].text(signed) if name in row.against else ""
                for name in (FIRST, POINT)
            ),
        ]
        for row in rows
    ]
    return "\n".join([Table("", header, cells).markdown(), EXPLANATION, *verdicts(rows), ""])


def verdicts(rows: Sequence[Row]) -> Iterator[str]:
    """Yield each Bayesian system's change against the point-estimate one, in words."""
    point = next(row for row in rows if row.name == POINT)
    for row in rows:
        change = row.against.get(POINT)
        if change is None:
            continue
        gain = ""
        if row.perplexity is not None and point.perplexity is not None:
            gain = f" perplexity {signed(100 * (row.perplexity / point.perplexity - 1), 1)} %,"
        verdict = "no significant difference"
        if change.p < 0.05:
            verdict = f"significantly {'fewer' if change.value < 0 else 'MORE'} errors"
        yield (
            f"{row.name} against {POINT}:{gain} WER {signed(change.value)} points,"
            f" p = {change.p:.2g}: {verdict}."
        )
