"""Systems on lists that were held out: their errors, which of them is used, and why."""

from __future__ import annotations

import copy
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence

from espnet_bayeslm.evaluation.comparison import Scores
from espnet_bayeslm.evaluation.wer import FIRST_PASS, Counted
from espnet_bayeslm.report.counted_outputs import SCALES
from espnet_bayeslm.report.score_results import SystemScores
from espnet_bayeslm.report.table import Table
from espnet_bayeslm.rescoring.features import FIRST_WINS
from espnet_bayeslm.rescoring.scales import NOT_USED, read_scales
from espnet_bayeslm.utils.files import read_yaml_mapping
from espnet_bayeslm.workflows.adapt_data import Parts
from espnet_bayeslm.workflows.adapt_systems import Plan, System
from espnet_bayeslm.workflows.commands import TUNED_FIRST_PASS, read_perplexity

WEIGHTS = ("features", "lmwt", "word_penalty", "posterior", "subtracted")
"""What weighs a list in scales.yaml."""
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


class Biased(NamedTuple):
    """The system that is used, with the bias list.

    Attributes:
        row: Its row, with the test against the system.
        before: Name of the system.
        rates: U-WER and B-WER of both, in %.
    """

    row: Result
    before: str
    rates: Mapping[str, Sequence[float]]

    def line(self) -> str:
        """Line that tells what the bias list changes."""
        rates = (f"{name} {old:.2f} -> {new:.2f} %" for name, (old, new) in self.rates.items())
        unused = f" {self.row.unused}." if self.row.unused else ""
        return f"{self.row.name}: tested against {self.before}; {', '.join(rates)}.{unused}"


def read_biased(scores: SystemScores, before: str, system: System) -> Biased:
    """Row of a system with the bias list, from the errors of both."""
    pooled, name = scores.pooled, system.name
    old, new = pooled.errors[before], pooled.errors[name]
    (test,) = (pair.test for pair in pooled.pairs if (pair.a, pair.b) == (before, name))
    row = Result(name, new.errors, 100 * new.rate, test.p, system)
    if new.errors > old.errors:
        row = row._replace(unused="The bias list is not used: held-out lists have more errors")
    rates = {
        rate: [100 * part.pooled.errors[which].rate for which in (before, name)]
        for rate, part in scores.parts.items()
    }
    return Biased(row, before, rates)


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
    rows: Sequence[Result],
    used: Result,
    parts: Parts,
    counted: Optional[Counted],
    biased: Optional[Biased] = None,
) -> str:
    """Table in Markdown, and what is used and why, in words."""
    cells, name = [], used.name
    if biased is not None and not biased.row.unused:
        name = biased.row.name
    for row in [*rows, *([] if biased is None else [biased.row])]:
        perplexity = "" if row.perplexity is None else f"{row.perplexity:.1f}"
        p = "" if row.p is None else f"{row.p:.2g}"
        lm = "not used" if row.unused else "used"
        lm = lm if row.system is not None and row.system.has_lm else ""
        cells.append([row.name, perplexity, f"{row.wer:.2f}", p, lm])
    header = ("held-out lists", "perplexity", "WER %", "p against the row above", "LM")
    return "\n".join(
        [
            Table("", header, cells, counted=counted).markdown(),
            f"Each of {len(parts.part_of)} lists is scored by an LM that did not see its reference"
            f" (adapters of {parts.number} parts, by {parts.units}), and rescored with weights that"
            " were tuned on others. Perplexity per word of sentences by themselves, </s> counted.",
            *notes(rows, used),
            *([] if biased is None else [biased.line()]),
            f"Used: {name}." if used.system else f"Used: {name}; {why_none(rows)}.",
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


def kept_scales(
    plan: Plan, rows: Sequence[Result], used: Result, biased: Optional[Biased] = None
) -> Dict[str, Any]:
    """Content of the scales.yaml of the row that is used.

    Beside a bias list they have those for lists without one. Where it is not used its phrases have
    no weight.
    """
    if biased is not None and biased.row.system is not None:
        own = kept_scales(plan, rows, used)
        content = own if biased.row.unused else _content(plan, biased.row.system)
        # copies: yaml would write what stands in two places as a reference
        return {**content, "unbiased": {k: copy.deepcopy(own[k]) for k in WEIGHTS if k in own}}
    first = next(row.system for row in rows if row.system is not None)
    content = _content(plan, used.system or first)
    if used.system is None:
        own = {"features": dict(FIRST_WINS)} if used.name == FIRST_PASS else content["control"]
        kept = {"tuned_on", "counted"} & content.keys()
        content = {**own, **{name: content[name] for name in kept}}
    return content


def _content(plan: Plan, system: System) -> Dict[str, Any]:
    """Content of the scales.yaml of a system."""
    content: Dict[str, Any] = read_yaml_mapping(plan.rescored(system) / SCALES)
    content.pop("files", None)
    return content
