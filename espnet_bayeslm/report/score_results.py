"""Results of `bayeslm score` and `perplexity`: printed, written and read, and their tables.

Daggers mark significant differences, as in the papers' tables.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from espnet_bayeslm.evaluation.comparison import Mapsswe, Scores, SystemPair, WerDifference
from espnet_bayeslm.evaluation.wer import FIRST_PASS, RATES, Counted, ErrorCounts
from espnet_bayeslm.report.inputs import json_content, typed
from espnet_bayeslm.report.page import Section
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
from espnet_bayeslm.scoring.perplexity import perplexity_text
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.log import LOG

# Keys of the JSON beside the names of the systems.
RESERVED = ("significance", "conditions", "average_wer", "bias", "counted")
PAIRS = "Every two systems: bootstrap and MAPSSWE"
REMEDY = "Make it with `bayeslm score --output FILE`."
PERPLEXITY_REMEDY = "Make it with `bayeslm perplexity --output FILE`."
# Of a bootstrap interval these are in percent in the JSON, as `wer` is
IN_PERCENT = ("difference", "low", "high")
# Counts of an `ErrorCounts` but the last, which is of words or characters
COUNTS = ("sub", "del", "ins")


class SystemScores(NamedTuple):
    """Results of `bayeslm score`: of each condition, of all of them, and how they are shown.

    `parts` has the same of some words only, by the names of their rates: U-WER and B-WER. Such a
    part has its name as `own_rate`.
    """

    conditions: Mapping[str, Scores]
    pooled: Scores
    baseline: Optional[str]
    unit: str = "word"
    counted: Optional[Counted] = None
    parts: Mapping[str, SystemScores] = {}
    own_rate: str = ""

    @property
    def rate(self) -> str:
        """Name of the error rate."""
        return self.own_rate or RATES[self.unit]

    @property
    def reference(self) -> Optional[str]:
        """System from which changes count: the first pass, else the baseline."""
        return FIRST_PASS if FIRST_PASS in self.pooled.errors else self.baseline


@dataclasses.dataclass(frozen=True)
class ComponentPerplexity:
    """Perplexities of one component, by unit, and counts of the text.

    `excluded` words are unknown to a component of the mixture. Older files lack some counts.
    """

    name: str
    oovs: float
    perplexity: Dict[str, Optional[float]]
    perplexity_without_oov: Dict[str, Optional[float]]
    perplexity_of_known_sentences: Dict[str, Optional[float]] = dataclasses.field(
        default_factory=dict
    )
    sentences: int = 0
    words: int = 0
    excluded: int = 0
    known_sentences: int = 0

    @property
    def per_word(self) -> Optional[float]:
        """Perplexity per word, unknown words left out."""
        return self.perplexity_without_oov["word"]


class Perplexities(NamedTuple):
    """Perplexities that `bayeslm perplexity` wrote of one text."""

    system: str
    text: str
    rows: List[ComponentPerplexity]


def print_scores(found: SystemScores) -> None:
    """Print error rates and the significance of their differences."""
    for part in (found, *found.parts.values()):
        _print_tables(part)
    if found.parts:
        print("\nU-WER: words outside the utterance's bias list; B-WER: words inside")
    if found.pooled.pairs:
        rate = found.rate
        print(f"\nA - B: {rate} of A less {rate} of B; P(B better): by the bootstrap")
        what = f"{BETTER} fewer, {WORSE} more errors than {found.baseline}"
        print(printed(f"{what}: significant at 0.05 by MAPSSWE; beside B: than A"))


def _print_tables(found: SystemScores) -> None:
    """Print the tables of all words, or those of a part."""
    conditions, pooled, baseline, _, counted = found[:5]
    if found.own_rate:
        print()
    several = len(conditions) > 1
    parts = {f"{name}:": scores for name, scores in conditions.items()} if several else {}
    for title, scores in {**parts, "all conditions, pooled:": pooled}.items():
        if several:
            print(title)
        of = marks(scores.pairs, baseline)
        print(error_text(scores.errors, found.unit, of, counted, rate=found.rate))
        if scores.pairs:
            print(f"\n{pair_table(scores, '', found.rate).text()}")
        if several:
            print()
    if several:
        header = [f"{found.rate} %", *conditions, "average", "pooled"]
        rows: List[Row] = [[name, *rates(found, name)] for name in pooled.errors]
        print(Table("", header, rows, counted=counted).text())


def error_text(
    errors: Mapping[str, ErrorCounts],
    unit: str = "word",
    marks: Mapping[str, str] = {},
    counted: Optional[Counted] = None,
    rate: str = "",
) -> str:
    """Table of error counts, with marks after some rates and the line that says what counts."""
    rows: List[Row] = [
        [
            name,
            Cell(f"{100 * counts.rate:.2f}", marks.get(name, "")),
            *map(str, dataclasses.astuple(counts)),
        ]
        for name, counts in errors.items()
    ]
    header = ["", f"{rate or RATES[unit]} %", *COUNTS, f"{unit}s"]
    return Table("", header, rows, counted=counted).text()


def pair_table(scores: Scores, caption: str, rate: str) -> Table:
    """One row for every two systems: bootstrap interval and MAPSSWE."""
    header = ["A", "B", f"{rate} A\u00a0−\u00a0B", level_of(scores), "P(B better)"]
    header += ["segments", "mean", "Z", "p"]
    rows: List[Row] = []
    for pair in scores.pairs:
        interval, test = pair.interval, pair.test
        ends = _ends(interval.low, interval.high), f"{interval.improvement:.3f}"
        if pair.identical:
            ends = "identical outputs", MISSING
        other = Cell(pair.b, marks([pair], pair.a).get(pair.b, ""))
        mapsswe = [f"{test.segments}", typeset(test.mean, 4), typeset(test.z, 3), f"{test.p:.2g}"]
        rows.append([pair.a, other, typeset(100 * interval.difference), *ends, *mapsswe])
    return Table(caption, header, rows, words=(1,))


def _ends(low: float, high: float) -> str:
    return f"{typeset(100 * low)} to {typeset(100 * high)}"


def level_of(scores: Scores) -> str:
    """Name of the column of bootstrap intervals."""
    return f"{100 * scores.pairs[0].interval.level if scores.pairs else 95:g} % interval"


def rates(found: SystemScores, system: str) -> List[Cell]:
    """Error rates of a system in each condition, their mean, and the pooled one.

    Rates that differ significantly from the baseline's have a mark.
    """
    conditions, pooled, baseline = found[:3]
    cells = [
        Cell(fixed(100 * part.errors[system].rate, 2), marks(part.pairs, baseline).get(system, ""))
        for part in (*conditions.values(), pooled)
    ]
    average = [Cell(f"{100 * average_rate(conditions, system):.2f}")] if conditions else []
    return [*cells[:-1], *average, cells[-1]]


def marks(pairs: Sequence[SystemPair], baseline: Optional[str]) -> Dict[str, str]:
    """Systems with significantly fewer or more errors than another, and the mark of which."""
    mark_of = {}
    for pair in pairs:
        if baseline in (pair.a, pair.b) and pair.test.significant:
            other_is_better = pair.test.b_is_better == (baseline == pair.a)
            mark_of[pair.b if baseline == pair.a else pair.a] = BETTER if other_is_better else WORSE
    return mark_of


def average_rate(conditions: Mapping[str, Scores], system: str) -> float:
    """Mean of a system's word error rates over conditions, as the papers give it."""
    return sum(scores.errors[system].rate for scores in conditions.values()) / len(conditions)


def scores_json(scores: SystemScores) -> Dict[str, Any]:
    """Numbers of the table, pooled, and for each condition where there are several.

    Where characters are counted, each system has them as `unit`, and `wer` is the CER.
    """
    conditions, pooled, baseline, unit, counted, parts, _ = scores
    more = {} if unit == "word" else {"unit": unit}
    content: Dict[str, Any] = {
        name: {**dataclasses.asdict(c), "errors": c.errors, "wer": 100 * c.rate, **more}
        for name, c in pooled.errors.items()
    }
    if pooled.pairs:
        better = [n for n in content if marks(pooled.pairs, baseline).get(n) == BETTER]
        pairs = [*map(_pair_json, pooled.pairs)]
        content["significance"] = {"baseline": baseline, "better": better, "pairs": pairs}
    if len(conditions) > 1:
        content["conditions"] = {
            name: scores_json(SystemScores({}, part, baseline, unit))
            for name, part in conditions.items()
        }
        content["average_wer"] = {
            system: 100 * average_rate(conditions, system) for system in pooled.errors
        }
    if parts:
        content["bias"] = {rate: scores_json(part) for rate, part in parts.items()}
    if counted is not None:
        content["counted"] = dataclasses.asdict(counted)
    return content


def _pair_json(pair: SystemPair) -> Dict[str, Any]:
    """Two systems compared, rates in percent."""
    interval = dataclasses.asdict(pair.interval)
    return {
        "a": pair.a,
        "b": pair.b,
        **({"identical": True} if pair.identical else {}),
        "mapsswe": {**dataclasses.asdict(pair.test), "significant": pair.test.significant},
        "bootstrap": {**interval, **{key: 100 * interval[key] for key in IN_PERCENT}},
    }


def read_scores(path: str) -> SystemScores:
    """Results of a file."""
    with json_content(path, "word errors of systems", remedy=REMEDY) as content:
        return _system_scores(content)


def _system_scores(content: Any, own_rate: str = "") -> SystemScores:
    """Results of JSON, or of a part of it."""
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
    # older files have none
    counted = typed(Counted, content["counted"]) if "counted" in content else None
    words = typed(Dict[str, Any], content.get("bias", {}))
    of_words = {rate: _system_scores(part, rate) for rate, part in words.items()}
    return SystemScores(conditions, pooled, baseline, unit, counted, of_words, own_rate)


def _scores(content: Any) -> Scores:
    """Results of JSON."""
    systems = {k: v for k, v in typed(Dict[str, Any], content).items() if k not in RESERVED}
    if not systems:
        raise ValueError("there is no system")
    pairs = []
    for pair in typed(Dict[str, Any], content.get("significance", {})).get("pairs", []):
        interval = typed(WerDifference, pair["bootstrap"])
        fractions = {key: getattr(interval, key) / 100 for key in IN_PERCENT}
        a, b = (typed(str, pair[key]) for key in "ab")
        interval = dataclasses.replace(interval, **fractions)
        test, identical = typed(Mapsswe, pair["mapsswe"]), bool(pair.get("identical"))
        pairs.append(SystemPair(a, b, test, interval, identical))
    return Scores(typed(Dict[str, ErrorCounts], systems), pairs)


def read_perplexities(pairs: Sequence[Tuple[str, str]]) -> List[Perplexities]:
    """Perplexities of (system, file), each of one text."""
    perplexities: Dict[Tuple[str, str], Perplexities] = {}
    for system, path in pairs:
        with json_content(path, "perplexities of components", remedy=PERPLEXITY_REMEDY) as content:
            text = typed(str, content["text"])
            rows = typed(List[ComponentPerplexity], content["components"])
            if not rows or any("word" not in row.perplexity for row in rows):
                raise ValueError("there is no component with a perplexity per word")
        if (system, text) in perplexities:
            raise InputError(
                f"{system} has perplexities of {text} already",
                path=path,
                remedy="Give --perplexity NAME=FILE, each with its own NAME or text.",
            )
        perplexities[system, text] = Perplexities(system, text, rows)
    return list(perplexities.values())


def scores_section(scores: Optional[SystemScores], perplexities: Sequence[Perplexities]) -> Section:
    """Tables of scores and perplexities, or of one of both."""
    systems = list(dict.fromkeys(item.system for item in perplexities))
    columns = perplexity_columns(systems, perplexities)
    tables, details = [], []
    values: Dict[str, Any] = {"baseline": None, "reference": None}
    others = [name for name in systems if scores is None or name not in scores.pooled.errors]
    if scores is not None:
        if others:
            LOG.warning("--score has no system %s: perplexities have their own table", others[0])
        tables.append(error_table(scores, {} if others else columns))
        tables += [error_table(part, {}) for part in scores.parts.values()]
        if scores.pooled.pairs:
            values = {"baseline": scores.baseline, "reference": scores.reference}
        for part in (scores, *scores.parts.values()):
            named = {f"{PAIRS} ({name})": of for name, of in part.conditions.items()}
            for title, of in {PAIRS: part.pooled, **named}.items():
                if of.pairs:
                    title += f", {part.own_rate}" * bool(part.own_rate)
                    details.append(pair_table(of, title, part.rate))
    if others:
        rows = [[name, *(of[name] for of in columns.values())] for name in systems]
        tables.append(Table("Perplexity per word", ["system", *columns], rows))
    if any(len(item.rows) > 1 for item in perplexities):
        details.append(component_table(perplexities))
    values.update(tables=tables, details=details, perplexities=bool(perplexities))
    title = "Perplexity" if scores is None else "Word error rate"
    title += " and perplexity" if scores is not None and perplexities else ""
    return Section("scores", title, values)


def error_table(scores: SystemScores, perplexities: Mapping[str, Mapping[str, str]]) -> Table:
    """One row for each system: perplexities, word errors with marks, change from the first pass."""
    pooled, conditions, reference = scores.pooled, scores.conditions, scores.reference
    changed = [] if reference is None else ["change", level_of(pooled), "relative %"]
    columns = [*conditions, "average", "pooled"] if conditions else [f"{scores.rate} %"]
    rows: List[Row] = []
    for system, counts in pooled.errors.items():
        of_texts = [column.get(system, MISSING) for column in perplexities.values()]
        change = [] if reference is None else _change(pooled, system, reference)
        marked = rates(scores, system)
        rows.append([system, *of_texts, *marked, *change, *map(str, dataclasses.astuple(counts))])
    header = ["system", *perplexities, *columns, *changed, *COUNTS, f"{scores.unit}s"]
    caption = f"{'Word' if scores.unit == 'word' else 'Character'} error rates in %"
    caption += f", {scores.own_rate}" * bool(scores.own_rate)
    return Table(caption, header, rows, counted=scores.counted)


def _change(scores: Scores, system: str, reference: str) -> List[str]:
    """Change of the rate from the reference's, its bootstrap interval, and relative."""
    before, after = (100 * scores.errors[name].rate for name in (reference, system))
    if system == reference:
        return [MISSING] * 3
    interval = MISSING
    for pair in scores.pairs:
        low, high = pair.interval.low, pair.interval.high
        if (pair.a, pair.b) == (reference, system):
            interval = _ends(-high, -low)
        elif (pair.a, pair.b) == (system, reference):
            interval = _ends(low, high)
    relative = typeset(100 * (after - before) / before, 1) if 0 < before < math.inf else MISSING
    change = typeset(after - before) if math.isfinite(after - before) else MISSING
    return [change, interval, relative]


def perplexity_columns(
    systems: Sequence[str], perplexities: Sequence[Perplexities]
) -> Dict[str, Dict[str, str]]:
    """Name of the column of each text -> its cell of each system."""
    texts = list(dict.fromkeys(item.text for item in perplexities))
    values = {(item.system, item.text): item.rows[-1].per_word for item in perplexities}
    return {
        f"ppl {name}": {s: perplexity_text(values.get((s, text)), 1) for s in systems}
        for name, text in zip(short_names(texts), texts, strict=True)
    }


def short_names(paths: Sequence[str]) -> List[str]:
    """Short name of each path: the folders and names that tell it from the other paths.

    A single path has its last name: `dev` for `data/dev/text`, as Kaldi names files.
    """
    parts = [path.split("/") for path in paths]
    if len(parts) == 1:
        *folders, name = parts[0]
        return [folders[-1] if folders and name == "text" else name]
    for end, rest in ((0, slice(1, None)), (-1, slice(-1))):
        while parts and min(map(len, parts)) > 1 and len({part[end] for part in parts}) == 1:
            parts = [part[rest] for part in parts]
    return ["/".join(part) for part in parts]


def component_table(perplexities: Sequence[Perplexities]) -> Table:
    """Perplexities of the components that mixtures are made of."""
    rows = []
    for item in perplexities:
        for row in item.rows:
            cells = map(perplexity_text, (row.per_word, row.perplexity["word"]))
            rows.append([item.system, item.text, row.name, *cells, f"{row.oovs:.0f}"])
    header = ["system", "text", "component", "ppl", "ppl, unknown words too", "unknown words"]
    return Table("Perplexity per word of the components", header, rows, words=(1, 2))
