"""Tables and JSON of `bayeslm score`: word error rates, with daggers as in the papers' tables."""

from __future__ import annotations

import dataclasses
import sys
from typing import Any, Dict, Mapping, Optional, Sequence, Set

from espnet_bayeslm.evaluation.comparison import Scores, SystemPair
from espnet_bayeslm.evaluation.wer import ERRORS_HEADER, ErrorCounts, format_errors

# Keys of the JSON beside the names of the systems.
RESERVED = ("significance", "conditions", "average_wer")


def print_scores(
    conditions: Mapping[str, Scores], pooled: Scores, *, baseline: Optional[str]
) -> None:
    """Print word error rates and what is significant of their differences.

    Args:
        conditions: Name of the condition -> results.
        pooled: The results of all conditions together.
        baseline: The system with which daggers compare (None: there is only one system).
    """
    mark = dagger()
    if len(conditions) > 1:
        for name, scores in conditions.items():
            print(f"{name}:")
            print_errors(scores, baseline, mark)
            print()
        print("all conditions, pooled:")
    print_errors(pooled, baseline, mark)
    if len(conditions) > 1:
        print()
        print_conditions(conditions, pooled, baseline, mark)
    if pooled.pairs:
        print("\nA - B: WER of A less WER of B; P(B<A): bootstrap probability that B is better")
        print(f"{mark} fewer errors than {baseline}: significant at 0.05 by MAPSSWE")


def print_errors(scores: Scores, baseline: Optional[str], mark: str) -> None:
    """Print a table of word errors, and one of the pairs of systems where there are any."""
    better = better_systems(scores, baseline)
    print(ERRORS_HEADER)
    for name, counts in scores.errors.items():
        print(format_errors(name, counts, mark=mark if name in better else " "))
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
        ends = f"[{100 * interval.low:.2f}, {100 * interval.high:.2f}]"
        print(f"{pair.a:<{width}} {pair.b:<{width}} {100 * interval.difference:8.2f}", end=" ")
        print(f"{ends:>17} {interval.improvement:7.3f}", end=" ")
        print(f"{test.segments:8d} {test.mean:8.4f} {test.z:8.3f} {test.p:9.2g}")


def print_conditions(
    conditions: Mapping[str, Scores], pooled: Scores, baseline: Optional[str], mark: str
) -> None:
    """Print word error rates, a column for each condition, for their average, and pooled."""
    columns = {**conditions, "average": None, "pooled": pooled}
    widths = [max(8, len(name)) for name in columns]
    better = [better_systems(scores, baseline) for scores in columns.values()]
    print(f"{'WER %':<24}", *(f"{name:>{w}}" for name, w in zip(columns, widths, strict=True)))
    for system in pooled.errors:
        print(f"{system:<24}", end="")
        for scores, width, names in zip(columns.values(), widths, better, strict=True):
            rate = scores.errors[system].rate if scores else average_rate(conditions, system)
            print(f" {100 * rate:{width}.2f}", end=mark if system in names else " ")
        print()


def dagger() -> str:
    """Return a dagger, or a plus sign where the output's encoding has none."""
    try:
        "†".encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return "+"
    return "†"


def better_systems(scores: Optional[Scores], baseline: Optional[str]) -> Set[str]:
    """Return the systems that are marked."""
    return set() if scores is None or baseline is None else scores.better_than(baseline)


def average_rate(conditions: Mapping[str, Scores], system: str) -> float:
    """Return the mean of a system's word error rates over conditions, as the papers give it."""
    return sum(scores.errors[system].rate for scores in conditions.values()) / len(conditions)


def scores_json(
    conditions: Mapping[str, Scores], pooled: Scores, *, baseline: Optional[str]
) -> Dict[str, Any]:
    """Return all numbers: pooled ones, and where there are several conditions those of each.

    Args:
        conditions: Name of the condition -> results.
        pooled: The results of all conditions together.
        baseline: The system with which the others are compared.
    """
    found = _scores_json(pooled, baseline)
    if len(conditions) > 1:
        found["conditions"] = {
            name: _scores_json(scores, baseline) for name, scores in conditions.items()
        }
        found["average_wer"] = {
            system: 100 * average_rate(conditions, system) for system in pooled.errors
        }
    return found


def _scores_json(scores: Scores, baseline: Optional[str]) -> Dict[str, Any]:
    """Return {system: counts} and, where there are several systems, "significance"."""
    found: Dict[str, Any] = {name: errors_json(counts) for name, counts in scores.errors.items()}
    if scores.pairs:
        found["significance"] = {
            "baseline": baseline,
            "better": [name for name in found if name in better_systems(scores, baseline)],
            "pairs": [_pair_json(pair) for pair in scores.pairs],
        }
    return found


def errors_json(counts: ErrorCounts) -> Dict[str, float]:
    """Return the counts and the rate in percent."""
    return {**dataclasses.asdict(counts), "errors": counts.errors, "wer": 100 * counts.rate}


def _pair_json(pair: SystemPair) -> Dict[str, Any]:
    """Return the tests of two systems; rates in percent, as `wer` is."""
    interval = pair.interval
    return {
        "a": pair.a,
        "b": pair.b,
        "mapsswe": {**dataclasses.asdict(pair.test), "significant": pair.test.significant},
        "bootstrap": {
            "difference": 100 * interval.difference,
            "low": 100 * interval.low,
            "high": 100 * interval.high,
            "level": interval.level,
            "improvement": interval.improvement,
        },
    }
