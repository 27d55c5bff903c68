"""The report's tables of word error rates, their significance, and perplexities."""

from __future__ import annotations

import dataclasses
import logging
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from espnet_bayeslm.evaluation.perplexity import perplexity_text
from espnet_bayeslm.evaluation.wer import RATES
from espnet_bayeslm.report.html_input import expecting, mapping, number, read_json
from espnet_bayeslm.report.page import Section
from espnet_bayeslm.report.scores import FIRST_PASS, IDENTICAL, RESERVED, marks
from espnet_bayeslm.report.table import MISSING, Cell, Row, Table, fixed, typeset
from espnet_bayeslm.utils.errors import InputError

COUNTS = ("wer", "substitutions", "deletions", "insertions", "words")
PAIRS = "Every two systems: bootstrap and MAPSSWE"
SCORE = "Make it with `bayeslm score --output FILE`."
PERPLEXITY = "Make it with `bayeslm perplexity --output FILE`."


@dataclasses.dataclass(frozen=True)
class ErrorTable:
    """What `bayeslm score` found on one condition, or on all of them pooled.

    Attributes:
        systems: System -> its `COUNTS`.
        baseline: The system with which marks compare, where there is one.
        pairs: The tests of every two systems.
        unit: Unit that errors were counted in, "word" or "char".
    """

    systems: Dict[str, Dict[str, float]]
    baseline: Optional[str]
    pairs: List[Mapping[str, Any]]
    unit: str = "word"

    @property
    def reference(self) -> Optional[str]:
        """System from which changes count: the first pass, else the baseline."""
        return FIRST_PASS if FIRST_PASS in self.systems else self.baseline

    @property
    def level(self) -> str:
        """Name of the column of bootstrap intervals."""
        levels = [100 * pair["bootstrap"]["level"] for pair in self.pairs]
        return f"{levels[0] if levels else 95:g} % interval"

    def rate(self, system: str) -> Cell:
        """Word error rate, marked where it differs significantly from the baseline's."""
        return Cell(
            fixed(self.systems[system]["wer"], 2), marks(self.pairs, self.baseline).get(system, "")
        )

    def change(self, system: str) -> List[str]:
        """Change of the rate from the reference's, its bootstrap interval, and relative."""
        before, after = (self.systems[name]["wer"] for name in (str(self.reference), system))
        if system == self.reference:
            return [MISSING] * 3
        ends = [
            (-pair["bootstrap"]["high"], -pair["bootstrap"]["low"])
            if pair["a"] == self.reference
            else (pair["bootstrap"]["low"], pair["bootstrap"]["high"])
            for pair in self.pairs
            if {pair["a"], pair["b"]} == {self.reference, system}
        ]
        interval = " to ".join(map(typeset, ends[0])) if ends else MISSING
        relative = typeset(100 * (after - before) / before, 1) if before > 0 else MISSING
        return [typeset(after - before), interval, relative]


@dataclasses.dataclass(frozen=True)
class ScoreFile:
    """What `bayeslm score` wrote.

    Attributes:
        pooled: The errors of all conditions together.
        conditions: Condition -> its errors, where there are several.
        average: System -> mean word error rate over the conditions, where there are several.
    """

    pooled: ErrorTable
    conditions: Dict[str, ErrorTable]
    average: Dict[str, float]


@dataclasses.dataclass(frozen=True)
class Perplexities:
    """What `bayeslm perplexity` wrote of one text.

    Attributes:
        system: What tables call the mixture, or the only component.
        text: The text.
        rows: A row for each component, the mixture's last.
    """

    system: str
    text: str
    rows: List[Mapping[str, Any]]

    @property
    def last(self) -> float:
        """Perplexity per word of the last row, unknown words left out."""
        return float(self.rows[-1]["perplexity_without_oov"]["word"])


def read_scores(path: str) -> ScoreFile:
    """Word errors of a file.

    Raises:
        InputError: `bayeslm score` did not write it.
    """
    content = read_json(path, remedy=SCORE)
    with expecting("word errors of systems", path=path, remedy=SCORE):
        pooled = _error_table(mapping(content))
        conditions = mapping(content.get("conditions", {}))
        tables = {name: _error_table(mapping(part)) for name, part in conditions.items()}
        if any(part.systems.keys() != pooled.systems.keys() for part in tables.values()):
            raise ValueError("not all conditions have the same systems")
        if pooled.baseline not in (None, *pooled.systems):
            raise ValueError(f"no system {str(pooled.baseline)[:40]!r}, which is the baseline")
        average = {
            name: number(value, infinite=True)
            for name, value in mapping(content.get("average_wer", {})).items()
        }
        if tables:
            average = {name: average[name] for name in pooled.systems}
    return ScoreFile(pooled, tables, average)


def _error_table(content: Mapping[str, Any]) -> ErrorTable:
    systems = {
        name: {key: number(mapping(counts)[key], infinite=key == "wer") for key in COUNTS}
        for name, counts in content.items()
        if name not in RESERVED
    }
    if not systems:
        raise ValueError("there is no system")
    unit = content[next(iter(systems))].get("unit", "word")
    if unit not in RATES:
        raise ValueError(f"the unit {str(unit)[:40]!r} is none of {', '.join(RATES)}")
    tests = mapping(content.get("significance", {}))
    pairs = [_checked_pair(pair) for pair in tests.get("pairs", [])]
    return ErrorTable(systems, tests.get("baseline"), pairs, unit)


def _checked_pair(pair: Any) -> Mapping[str, Any]:
    """Pair whose numbers are numbers."""
    for name in ("difference", "low", "high", "level", "improvement"):
        number(pair["bootstrap"][name])
    for name in ("segments", "mean", "z", "p"):
        number(pair["mapsswe"][name], infinite=name == "z")
    if not all(isinstance(pair[key], str) for key in ("a", "b")):
        raise ValueError("a pair of systems without names")
    return mapping(pair)


def read_perplexities(pairs: Sequence[Tuple[str, str]]) -> List[Perplexities]:
    """Perplexities of (system, file), each of one text.

    Raises:
        InputError: `bayeslm perplexity` did not write a file, or a system has two of a text.
    """
    found: Dict[Tuple[str, str], Perplexities] = {}
    for system, path in pairs:
        content = read_json(path, remedy=PERPLEXITY)
        with expecting("perplexities of components", path=path, remedy=PERPLEXITY):
            text, rows = content["text"], content["components"]
            for row in rows:
                for key in ("perplexity", "perplexity_without_oov"):
                    number(row[key]["word"], infinite=True)
                if not isinstance(row["name"], str) or not isinstance(text, str):
                    raise ValueError("a component or a text without a name")
                number(row["oovs"])
            if not rows:
                raise ValueError("there is no component")
        if (system, text) in found:
            raise InputError(
                f"{system} has perplexities of {text} already",
                path=path,
                remedy="Give --perplexity NAME=FILE, each with its own NAME or text.",
            )
        found[system, text] = Perplexities(system, text, rows)
    return list(found.values())


def scores_section(
    scores: Optional[ScoreFile], perplexities: Sequence[Perplexities]
) -> Optional[Section]:
    """Tables of what is given; None where nothing is."""
    if scores is None and not perplexities:
        return None
    systems = list(dict.fromkeys(item.system for item in perplexities))
    others = [name for name in systems if scores is None or name not in scores.pooled.systems]
    if scores is not None and others:
        logging.warning("--score has no system %s: perplexities have their own table", others[0])
    tables = []
    if scores is not None:
        tables.append(error_table(scores, [] if others else perplexities))
    if others:
        tables.append(perplexity_table(systems, perplexities))
    details = [component_table(perplexities)] if any(len(p.rows) > 1 for p in perplexities) else []
    values: Dict[str, Any] = {"tables": tables, "perplexities": bool(perplexities)}
    values.update(baseline=None, reference=None, pairs=[], details=details)
    if scores is not None and scores.pooled.pairs:
        pooled = scores.pooled
        parts = [pair_table(part, f"{PAIRS} ({name})") for name, part in scores.conditions.items()]
        values.update(baseline=pooled.baseline, reference=pooled.reference)
        values.update(pairs=[pair_table(pooled, PAIRS)], details=[*parts, *details])
    title = "Perplexity" if scores is None else "Word error rate"
    title += " and perplexity" if scores is not None and perplexities else ""
    return Section("scores", title, values)


def error_table(scores: ScoreFile, perplexities: Sequence[Perplexities]) -> Table:
    """One row for each system: perplexities, word errors with marks, change from the first pass."""
    names, cells_of = _perplexity_columns(perplexities)
    pooled, conditions = scores.pooled, scores.conditions
    changed = [] if pooled.reference is None else ["change", pooled.level, "relative %"]
    rates = [*conditions, "average", "pooled"] if conditions else [f"{RATES[pooled.unit]} %"]
    rows: List[Row] = []
    for system, counts in pooled.systems.items():
        cells = [part.rate(system) for part in conditions.values()]
        cells += [Cell(fixed(scores.average[system], 2))] if conditions else []
        change = pooled.change(system) if changed else []
        errors = [f"{counts[key]:.0f}" for key in COUNTS[1:]]
        rows.append([system, *cells_of(system), *cells, pooled.rate(system), *change, *errors])
    header = ["system", *names, *rates, *changed, "sub", "del", "ins", f"{pooled.unit}s"]
    caption = "Word error rates in %" if pooled.unit == "word" else "Character error rates in %"
    return Table(caption, header, rows)


def perplexity_table(systems: Sequence[str], perplexities: Sequence[Perplexities]) -> Table:
    """One row for each system, a column for each text."""
    names, cells_of = _perplexity_columns(perplexities)
    rows = [[system, *cells_of(system)] for system in systems]
    return Table("Perplexity per word", ["system", *names], rows)


def _perplexity_columns(
    perplexities: Sequence[Perplexities],
) -> Tuple[List[str], Callable[[str], List[str]]]:
    """Names of a column for each text, and the cells of a system in them."""
    texts = list(dict.fromkeys(item.text for item in perplexities))
    values = {(item.system, item.text): item.last for item in perplexities}
    names = [f"ppl {name}" for name in short_names(texts)]
    return names, lambda system: [perplexity_text(values.get((system, text)), 1) for text in texts]


def short_names(paths: Sequence[str]) -> List[str]:
    """Folders and names of each path that are not those of all the others too.

    Of a single one the last: of `data/dev/text`, as Kaldi names them, `dev`.
    """
    parts = [path.split("/") for path in paths]
    if len(parts) == 1:
        *folders, name = parts[0]
        return [folders[-1] if folders and name == "text" else name]
    while len(parts) > 1 and min(map(len, parts)) > 1 and len({part[0] for part in parts}) == 1:
        parts = [part[1:] for part in parts]
    while len(parts) > 1 and min(map(len, parts)) > 1 and len({part[-1] for part in parts}) == 1:
        parts = [part[:-1] for part in parts]
    return ["/".join(part) for part in parts]


def pair_table(errors: ErrorTable, caption: str) -> Table:
    """One row for every two systems: bootstrap interval and MAPSSWE."""
    header = ["A", "B", f"{RATES[errors.unit]} A\u00a0−\u00a0B", errors.level, "P(B better)"]
    header += ["segments", "mean", "Z", "p"]
    rows: List[Row] = []
    for pair in errors.pairs:
        interval, test = pair["bootstrap"], pair["mapsswe"]
        systems = [pair["a"], Cell(pair["b"], marks([pair], pair["a"]).get(pair["b"], ""))]
        ends = f"{typeset(interval['low'])} to {typeset(interval['high'])}"
        better = f"{interval['improvement']:.3f}"
        if pair.get("identical"):
            ends, better = IDENTICAL, MISSING
        bootstrap = [typeset(interval["difference"]), ends, better]
        mapsswe = [f"{test['segments']:.0f}", typeset(test["mean"], 4), typeset(test["z"], 3)]
        rows.append([*systems, *bootstrap, *mapsswe, f"{test['p']:.2g}"])
    return Table(caption, header, rows, words=(1,))


def component_table(perplexities: Sequence[Perplexities]) -> Table:
    """Perplexities of the components that mixtures are made of."""
    rows = [
        [
            item.system,
            item.text,
            row["name"],
            perplexity_text(row["perplexity_without_oov"]["word"], 2),
            perplexity_text(row["perplexity"]["word"], 2),
            f"{row['oovs']:.0f}",
        ]
        for item in perplexities
        for row in item.rows
    ]
    header = ["system", "text", "component", "ppl", "ppl, unknown words too", "unknown words"]
    return Table("Perplexity per word of the components", header, rows, words=(1, 2))
