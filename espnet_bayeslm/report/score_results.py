"""Results of `bayeslm score`: printed with daggers as in the papers' tables, written and read."""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence

from espnet_bayeslm.evaluation.comparison import Mapsswe, Scores, SystemPair, WerDifference
from espnet_bayeslm.evaluation.wer import RATES, ErrorCounts
from espnet_bayeslm.report.inputs import json_content, typed
from espnet_bayeslm.report.table import (
    BETTER,
    MISSING,
    WORSE,
    Cell,
    Row,
    Table,
    fixed,
    printed,
    typeset,
)

# Keys of the JSON beside the names of the systems.
RESERVED = ("significance", "conditions", "average_wer")
IDENTICAL = "identical outputs"
ORACLE, FIRST_PASS = "oracle", "first pass"
REMEDY = "Make it with `bayeslm score --output FILE`."
# Of a bootstrap interval these are in percent in the JSON, as `wer` is
IN_PERCENT = ("difference", "low", "high")


def print_scores(
    conditions: Mapping[str, Scores],
    pooled: Scores,
    *,
    baseline: Optional[str],
    unit: str = "word",
) -> None:
    """Print error rates and the significance of their differences."""
    several = len(conditions) > 1
    parts = {f"{name}:": scores for name, scores in conditions.items()} if several else {}
    for title, scores in {**parts, "all conditions, pooled:": pooled}.items():
        if several:
            print(title)
        print(error_text(scores.errors, unit, marks(scores.pairs, baseline)))
        if scores.pairs:
            print(f"\n{pair_table(scores, '', unit).text()}")
        if several:
            print()
    if several:
        header = [f"{RATES[unit]} %", *conditions, "average", "pooled"]
        rows: List[Row] = [
            [name, *rates(conditions, pooled, name, baseline)] for name in pooled.errors
        ]
        print(Table("", header, rows).text())
    if pooled.pairs:
        rate = RATES[unit]
        print(f"\nA - B: {rate} of A less {rate} of B; P(B better): by the bootstrap")
        what = f"{BETTER} fewer, {WORSE} more errors than {baseline}"
        print(printed(f"{what}: significant at 0.05 by MAPSSWE; beside B: than A"))


def error_text(
    errors: Mapping[str, ErrorCounts], unit: str = "word", marks: Optional[Mapping[str, str]] = None
) -> str:
    """Table of error counts, with marks after some rates."""
    rows: List[Row] = []
    for name, c in errors.items():
        rate = Cell(f"{100 * c.rate:.2f}", (marks or {}).get(name, ""))
        rows.append([name, rate, *map(str, (c.substitutions, c.deletions, c.insertions, c.words))])
    return Table("", ["", f"{RATES[unit]} %", "sub", "del", "ins", f"{unit}s"], rows).text()


def pair_table(scores: Scores, caption: str, unit: str) -> Table:
    """One row for every two systems: bootstrap interval and MAPSSWE."""
    header = ["A", "B", f"{RATES[unit]} A\u00a0−\u00a0B", level_of(scores), "P(B better)"]
    header += ["segments", "mean", "Z", "p"]
    rows: List[Row] = []
    for pair in scores.pairs:
        interval, test = pair.interval, pair.test
        ends = f"{typeset(100 * interval.low)} to {typeset(100 * interval.high)}"
        better = f"{interval.improvement:.3f}"
        if pair.identical:
            ends, better = IDENTICAL, MISSING
        other = Cell(pair.b, marks([pair], pair.a).get(pair.b, ""))
        bootstrap = [typeset(100 * interval.difference), ends, better]
        mapsswe = [f"{test.segments}", typeset(test.mean, 4), typeset(test.z, 3), f"{test.p:.2g}"]
        rows.append([pair.a, other, *bootstrap, *mapsswe])
    return Table(caption, header, rows, words=(1,))


def level_of(scores: Scores) -> str:
    """Name of the column of bootstrap intervals."""
    return f"{100 * scores.pairs[0].interval.level if scores.pairs else 95:g} % interval"


def rates(
    conditions: Mapping[str, Scores], pooled: Scores, system: str, baseline: Optional[str]
) -> List[Cell]:
    """Error rates of a system in each condition, their mean, and the pooled one.

    Rates that differ significantly from the baseline's have a mark.
    """
    cells = [
        Cell(fixed(100 * part.errors[system].rate, 2), marks(part.pairs, baseline).get(system, ""))
        for part in (*conditions.values(), pooled)
    ]
    average = [Cell(f"{100 * average_rate(conditions, system):.2f}")] if conditions else []
    return [*cells[:-1], *average, cells[-1]]


def marks(pairs: Sequence[SystemPair], baseline: Optional[str]) -> Dict[str, str]:
    """Systems with significantly fewer or more errors than another, and the mark of which."""
    found = {}
    for pair in pairs:
        if baseline in (pair.a, pair.b) and pair.test.significant:
            other_is_better = pair.test.b_is_better == (baseline == pair.a)
            found[pair.b if baseline == pair.a else pair.a] = BETTER if other_is_better else WORSE
    return found


def average_rate(conditions: Mapping[str, Scores], system: str) -> float:
    """Mean of a system's word error rates over conditions, as the papers give it."""
    return sum(scores.errors[system].rate for scores in conditions.values()) / len(conditions)


def scores_json(
    conditions: Mapping[str, Scores],
    pooled: Scores,
    *,
    baseline: Optional[str],
    unit: str = "word",
) -> Dict[str, Any]:
    """Numbers of the table, pooled, and for each condition where there are several.

    Args:
        conditions: Name of the condition -> results.
        pooled: The results of all conditions together.
        baseline: The system with which every other one is compared.
        unit: Unit that errors were counted in. Where it is "char", each system has it as `unit`,
            and `wer` is the CER.
    """
    found = _scores_json(pooled, baseline, unit)
    if len(conditions) > 1:
        found["conditions"] = {
            name: _scores_json(scores, baseline, unit) for name, scores in conditions.items()
        }
        found["average_wer"] = {
            system: 100 * average_rate(conditions, system) for system in pooled.errors
        }
    return found


def _scores_json(scores: Scores, baseline: Optional[str], unit: str) -> Dict[str, Any]:
    """{system: counts} and, where there are several systems, "significance"."""
    said = {} if unit == "word" else {"unit": unit}
    found: Dict[str, Any] = {
        name: {**errors_json(counts), **said} for name, counts in scores.errors.items()
    }
    if scores.pairs:
        found["significance"] = {
            "baseline": baseline,
            "better": [n for n in found if marks(scores.pairs, baseline).get(n) == BETTER],
            "pairs": [_pair_json(pair) for pair in scores.pairs],
        }
    return found


def errors_json(counts: ErrorCounts) -> Dict[str, float]:
    """Counts and the rate in percent."""
    return {**dataclasses.asdict(counts), "errors": counts.errors, "wer": 100 * counts.rate}


def _pair_json(pair: SystemPair) -> Dict[str, Any]:
    """Tests of two systems; rates in percent, as `wer` is."""
    interval = dataclasses.asdict(pair.interval)
    return {
        "a": pair.a,
        "b": pair.b,
        **({"identical": True} if pair.identical else {}),
        "mapsswe": {**dataclasses.asdict(pair.test), "significant": pair.test.significant},
        "bootstrap": {**interval, **{key: 100 * interval[key] for key in IN_PERCENT}},
    }


class ScoreFile(NamedTuple):
    """Results that `bayeslm score` wrote."""

    conditions: Dict[str, Scores]
    pooled: Scores
    baseline: Optional[str]
    unit: str


def read_scores(path: str) -> ScoreFile:
    """Results of a file."""
    with json_content(path, "word errors of systems", remedy=REMEDY) as content:
        pooled = _scores(content)
        parts = typed(Dict[str, Any], content.get("conditions", {}))
        conditions = {name: _scores(part) for name, part in parts.items()}
        if any(part.errors.keys() != pooled.errors.keys() for part in conditions.values()):
            raise ValueError("not all conditions have the same systems")
        baseline = content.get("significance", {}).get("baseline")
        if baseline not in (None, *pooled.errors):
            raise ValueError(f"no system {str(baseline)[:40]!r}, which is the baseline")
        unit = content[next(iter(pooled.errors))].get("unit", "word")
        if unit not in RATES:
            raise ValueError(f"the unit {str(unit)[:40]!r} is none of {', '.join(RATES)}")
    return ScoreFile(conditions, pooled, baseline, unit)


def _scores(content: Any) -> Scores:
    """Results of JSON."""
    systems = {k: v for k, v in typed(Dict[str, Any], content).items() if k not in RESERVED}
    if not systems:
        raise ValueError("there is no system")
    tests = typed(Dict[str, Any], content.get("significance", {}))
    pairs = [_pair(pair) for pair in tests.get("pairs", [])]
    return Scores(typed(Dict[str, ErrorCounts], systems), pairs)


def _pair(content: Dict[str, Any]) -> SystemPair:
    """Tests of two systems, of JSON."""
    interval = typed(WerDifference, content["bootstrap"])
    fractions = {key: getattr(interval, key) / 100 for key in IN_PERCENT}
    return SystemPair(
        typed(str, content["a"]),
        typed(str, content["b"]),
        typed(Mapsswe, content["mapsswe"]),
        dataclasses.replace(interval, **fractions),
        bool(content.get("identical")),
    )
