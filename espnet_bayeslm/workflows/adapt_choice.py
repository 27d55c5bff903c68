"""Systems on lists that were held out: their errors, which of them is used, and why."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence

from espnet_bayeslm.evaluation.comparison import Scores
from espnet_bayeslm.evaluation.wer import FIRST_PASS, Counted
from espnet_bayeslm.report.counted_outputs import SCALES
from espnet_bayeslm.report.table import Table
from espnet_bayeslm.rescoring.features import FIRST_WINS
from espnet_bayeslm.rescoring.scales import NOT_USED, read_scales
from espnet_bayeslm.utils.files import read_yaml_mapping
from espnet_bayeslm.workflows.adapt_data import Parts
from espnet_bayeslm.workflows.adapt_systems import Plan, System
from espnet_bayeslm.workflows.commands import TUNED_FIRST_PASS, read_perplexity

MOST = 0.75
"""Bootstrap probability of more errors than a simpler LM, above which an LM is not used."""
RULE = (
    "Each row replaces the simpler one before it, unless it has more errors than one without an LM,"
    f" or more than a simpler LM with a probability (bootstrap) above {MOST}; an LM whose weight is"
    " 0 replaces none."
)


class Result(NamedTuple):
    """A row of the table.

    Attributes:
        name: Its name.
        errors: Errors of lists that its weights were not tuned on.
        wer: The same in %.
        p: Of the test against the row before; None of the first.
        system: The system; None for the first pass and the control.
        perplexity: Of the references, per word; None where it is not measured.
        unused: Why no LM is used; empty where one is.
        more: Name of a row before -> probability (bootstrap) of more errors than it has.
    """

    name: str
    errors: int
    wer: float
    p: Optional[float] = None
    system: Optional[System] = None
    perplexity: Optional[float] = None
    unused: str = ""
    more: Mapping[str, float] = {}

    @property
    def config(self) -> Optional[str]:
        """Configuration of its adapter; None without one."""
        return None if self.system is None else self.system.config


def read_results(plan: Plan, systems: Sequence[System], scores: Scores) -> List[Result]:
    """Rows of the table: the first pass, its scores tuned, and the systems."""
    of_names: Dict[str, Optional[System]] = {FIRST_PASS: None, TUNED_FIRST_PASS: None}
    of_names.update((system.name, system) for system in systems)
    rows: List[Result] = []
    for name, system in of_names.items():
        counts = scores.errors[name]
        pairs = {pair.a: pair for pair in scores.pairs if pair.b == name and pair.a in of_names}
        more = {other: pair.interval.worsening or 0.0 for other, pair in pairs.items()}
        p = pairs[rows[-1].name].test.p if rows else None
        row = Result(name, counts.errors, 100 * counts.rate, p, system, more=more)
        if system is not None:
            row = row._replace(unused=why_unused(plan, system))
            # that of the LM as it is stands in its first row alone
            if system.config is not None or not system.in_context:
                perplexity = read_perplexity(plan.mixture(system.config).weights)
                row = row._replace(perplexity=perplexity)
        rows.append(row)
    return rows


def why_unused(plan: Plan, system: System) -> str:
    """Reason why the weights of all lists use no LM; empty where they use one."""
    path = plan.rescored(system) / SCALES
    if read_scales(path).uses_lm:
        return ""
    said = read_yaml_mapping(path)["tuning"].get("unused", "")
    return f"{NOT_USED} ({said})" if said else NOT_USED


def chosen_row(rows: Sequence[Result]) -> Result:
    """The row that is used, by `RULE`."""
    plain = [row for row in rows if row.system is None]
    used = min(plain, key=lambda row: row.errors)
    fewest = used.errors
    for row in rows:
        if row.system is None or row.unused or row.errors > fewest:
            continue
        if used.system is None or row.more[used.name] <= MOST:
            used = row
    return used


def gains_table(
    rows: Sequence[Result], used: Result, parts: Parts, counted: Optional[Counted]
) -> str:
    """Table in Markdown, and what is used and why, in words."""
    cells = []
    for row in rows:
        perplexity = "" if row.perplexity is None else f"{row.perplexity:.1f}"
        p = "" if row.p is None else f"{row.p:.2g}"
        lm = "" if row.system is None else "not used" if row.unused else "used"
        cells.append([row.name, perplexity, f"{row.wer:.2f}", p, lm])
    header = ("held-out lists", "perplexity", "WER %", "p against the row above", "LM")
    return "\n".join(
        [
            Table("", header, cells, counted=counted).markdown(),
            f"Each of {len(parts.part_of)} lists is scored by an LM that did not see its reference"
            f" (adapters of {parts.number} parts, by {parts.units}), and rescored with weights that"
            " were tuned on others. Perplexity per word of sentences by themselves, </s> counted.",
            *notes(rows, used),
            f"Used: {used.name}." if used.system else f"Used: {used.name}; {why_none(rows)}.",
            RULE,
            "",
        ]
    )


def notes(rows: Sequence[Result], used: Result) -> List[str]:
    """Lines that explain rows which a reader may wonder at."""
    without = f"its lists are weighed as those of {TUNED_FIRST_PASS}"
    lines = [f"{row.name}: {row.unused}; {without}." for row in rows if row.unused]
    measured = [row for row in rows if row.perplexity is not None]
    lowest = min(measured, key=lambda row: row.perplexity or 0.0)
    if lowest.name != used.name and lowest.config != used.config:
        lines.append(
            f"{lowest.name} has the lowest perplexity, and that does not decide: the lists hold no"
            " better hypotheses that it prefers, or other scores find them already."
        )
    return lines


def why_none(rows: Sequence[Result]) -> str:
    """Line that says why no LM is used."""
    if all(row.unused for row in rows if row.system is not None):
        return NOT_USED
    return "no LM is used: held-out lists have more errors with it"


def kept_scales(plan: Plan, rows: Sequence[Result], used: Result) -> Dict[str, Any]:
    """Content of the scales.yaml of the row that is used."""
    first = next(row.system for row in rows if row.system is not None)
    content: Dict[str, Any] = read_yaml_mapping(plan.rescored(used.system or first) / SCALES)
    content.pop("files", None)
    if used.system is None:
        own = {"features": dict(FIRST_WINS)} if used.name == FIRST_PASS else content["control"]
        kept = {"tuned_on", "counted"} & content.keys()
        content = {**own, **{name: content[name] for name in kept}}
    return content
