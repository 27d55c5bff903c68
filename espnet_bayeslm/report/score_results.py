"""Results of `bayeslm score`: printed with daggers as in the papers' tables, written and read."""

from __future__ import annotations

import dataclasses
import sys
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence

from espnet_bayeslm.evaluation.bootstrap import WerDifference
from espnet_bayeslm.evaluation.comparison import Scores, SystemPair
from espnet_bayeslm.evaluation.mapsswe import Mapsswe
from espnet_bayeslm.evaluation.wer import RATES, ErrorCounts
from espnet_bayeslm.report.inputs import expecting, read_json, typed
from espnet_bayeslm.report.table import BETTER, WORSE, columns

# Keys of the JSON beside the names of the systems.
RESERVED = ("significance", "conditions", "average_wer")
IDENTICAL = "identical outputs"
ORACLE, FIRST_PASS = "oracle", "first pass"
REMEDY = "Make it with `bayeslm score --output FILE`."
# Of a bootstrap interval these are in percent in the JSON, as `wer` is
IN_PERCENT = ("difference", "low", "high")
NO_MARKS: Mapping[str, str] = {}


def print_scores(
    conditions: Mapping[str, Scores],
    pooled: Scores,
    *,
    baseline: Optional[str],
    unit: str = "word",
) -> None:
    """Print error rates and the significance of their differences."""
    sign = signs()
    if len(conditions) > 1:
        for name, scores in conditions.items():
            print(f"{name}:")
            print_errors(scores, baseline, unit)
            print()
        print("all conditions, pooled:")
    print_errors(pooled, baseline, unit)
    if len(conditions) > 1:
        print()
        print(columns(condition_rows(conditions, pooled, baseline, unit)))
    if pooled.pairs:
        rate = RATES[unit]
        legend = f"A - B: {rate} of A less {rate} of B"
        print(f"\n{legend}; P(B<A): bootstrap probability that B is better")
        what = f"{sign[BETTER]} fewer, {sign[WORSE]} more errors than {baseline}"
        print(f"{what}: significant at 0.05 by MAPSSWE")


def print_errors(scores: Scores, baseline: Optional[str], unit: str) -> None:
    """Print a table of errors, and one of the pairs of systems where there are any."""
    found, sign = marks(scores.pairs, baseline), signs()
    print(error_text(scores.errors, unit, {name: sign[mark] for name, mark in found.items()}))
    if scores.pairs:
        print(f"\n{columns(pair_rows(scores.pairs), words=(0, 1))}")


def error_text(
    errors: Mapping[str, ErrorCounts], unit: str = "word", marks: Mapping[str, str] = NO_MARKS
) -> str:
    """Table of error counts, with a mark of one character after some rates."""
    rows = [["", f"{RATES[unit]} % ", "sub", "del", "ins", f"{unit}s"]]
    for name, c in errors.items():
        rate = f"{100 * c.rate:.2f}{marks.get(name, ' ')}"
        rows.append([name, rate, *map(str, (c.substitutions, c.deletions, c.insertions, c.words))])
    return columns(rows)


def pair_rows(pairs: Sequence[SystemPair]) -> List[List[str]]:
    """One row for every two systems: bootstrap interval and MAPSSWE."""
    level = f"{100 * pairs[0].interval.level:g} % interval"
    rows = [["A", "B", "A - B %", level, "P(B<A)", "segments", "mean", "Z", "p"]]
    for pair in pairs:
        test, interval = pair.test, pair.interval
        ends = f"[{100 * interval.low:.2f}, {100 * interval.high:.2f}]"
        bootstrap = [IDENTICAL, "-"] if pair.identical else [ends, f"{interval.improvement:.3f}"]
        mapsswe = [f"{test.segments}", f"{test.mean:.4f}", f"{test.z:.3f}", f"{test.p:.2g}"]
        rows.append([pair.a, pair.b, f"{100 * interval.difference:.2f}", *bootstrap, *mapsswe])
    return rows


def condition_rows(
    conditions: Mapping[str, Scores], pooled: Scores, baseline: Optional[str], unit: str
) -> List[List[str]]:
    """Error rates, a column for each condition, for their average, and pooled."""
    sign = signs()

    def rate(scores: Scores, system: str) -> str:
        mark = sign[marks(scores.pairs, baseline).get(system, "")]
        return f"{100 * scores.errors[system].rate:.2f}{mark}"

    rows = [[f"{RATES[unit]} %", *conditions, "average", "pooled"]]
    for system in pooled.errors:
        average = f"{100 * average_rate(conditions, system):.2f} "
        rates = [rate(scores, system) for scores in conditions.values()]
        rows.append([system, *rates, average, rate(pooled, system)])
    return rows


def signs() -> Dict[str, str]:
    """Marks as they are printed: plus and minus where the output's encoding has no daggers."""
    try:
        f"{BETTER}{WORSE}".encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return {BETTER: "+", WORSE: "-", "": " "}
    return {BETTER: BETTER, WORSE: WORSE, "": " "}


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
    content = read_json(path, remedy=REMEDY)
    with expecting("word errors of systems", path=path, remedy=REMEDY):
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
