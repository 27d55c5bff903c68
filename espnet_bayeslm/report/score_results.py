"""Results of `bayeslm score`: printed with daggers as in the papers' tables, written and read."""

from __future__ import annotations

import dataclasses
import sys
from typing import Any, Dict, Mapping, NamedTuple, Optional, Sequence

from espnet_bayeslm.evaluation.bootstrap import WerDifference
from espnet_bayeslm.evaluation.comparison import Scores, SystemPair
from espnet_bayeslm.evaluation.mapsswe import Mapsswe
from espnet_bayeslm.evaluation.wer import RATES, ErrorCounts, errors_header, format_errors
from espnet_bayeslm.report.inputs import expecting, read_json, typed
from espnet_bayeslm.report.table import BETTER, WORSE

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
        print_conditions(conditions, pooled, baseline, unit)
    if pooled.pairs:
        rate = RATES[unit]
        legend = f"A - B: {rate} of A less {rate} of B"
        print(f"\n{legend}; P(B<A): bootstrap probability that B is better")
        what = f"{sign[BETTER]} fewer, {sign[WORSE]} more errors than {baseline}"
        print(f"{what}: significant at 0.05 by MAPSSWE")


def print_errors(scores: Scores, baseline: Optional[str], unit: str) -> None:
    """Print a table of errors, and one of the pairs of systems where there are any."""
    found, sign = marks(scores.pairs, baseline), signs()
    print(errors_header(unit))
    for name, counts in scores.errors.items():
        print(format_errors(name, counts, mark=sign[found.get(name, "")]))
    if scores.pairs:
        print()
        print_pairs(scores.pairs)


def print_pairs(pairs: Sequence[SystemPair]) -> None:
    """Print one row for every two systems: bootstrap interval and MAPSSWE."""
    width = max(24, *(len(name) for pair in pairs for name in (pair.a, pair.b)))
    level = f"{100 * pairs[0].interval.level:g} % interval"
    print(f"{'A':<{width}} {'B':<{width}} {'A - B %':>8} {level:>17} {'P(B<A)':>7}", end=" ")
    print(f"{'segments':>8} {'mean':>8} {'Z':>8} {'p':>9}")
    for pair in pairs:
        test, interval = pair.test, pair.interval
        ends, better = f"[{100 * interval.low:.2f}, {100 * interval.high:.2f}]", "-"
        if pair.identical:
            ends = IDENTICAL
        else:
            better = f"{interval.improvement:.3f}"
        print(f"{pair.a:<{width}} {pair.b:<{width}} {100 * interval.difference:8.2f}", end=" ")
        print(f"{ends:>17} {better:>7}", end=" ")
        print(f"{test.segments:8d} {test.mean:8.4f} {test.z:8.3f} {test.p:9.2g}")


def print_conditions(
    conditions: Mapping[str, Scores], pooled: Scores, baseline: Optional[str], unit: str
) -> None:
    """Print error rates, a column for each condition, for their average, and pooled."""
    columns = {**conditions, "average": None, "pooled": pooled}
    widths = [max(8, len(name)) for name in columns]
    found = [marks(scores.pairs, baseline) if scores else {} for scores in columns.values()]
    sign = signs()
    print(
        f"{RATES[unit] + ' %':<24}",
        *(f"{name:>{w}}" for name, w in zip(columns, widths, strict=True)),
    )
    for system in pooled.errors:
        print(f"{system:<24}", end="")
        for scores, width, names in zip(columns.values(), widths, found, strict=True):
            rate = scores.errors[system].rate if scores else average_rate(conditions, system)
            print(f" {100 * rate:{width}.2f}", end=sign[names.get(system, "")])
        print()


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
    """Results that `bayeslm score` wrote.

    Attributes:
        conditions: Condition -> results, where there are several conditions.
        pooled: The results of all conditions together.
        baseline: The system with which marks compare, where there is one.
        unit: Unit that errors were counted in, "word" or "char".
    """

    conditions: Dict[str, Scores]
    pooled: Scores
    baseline: Optional[str]
    unit: str


def read_scores(path: str) -> ScoreFile:
    """Results of a file.

    Raises:
        InputError: `bayeslm score` did not write it.
    """
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
