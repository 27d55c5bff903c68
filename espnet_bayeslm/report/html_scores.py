"""The report's tables of word error rates, their significance, and perplexities."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Dict, List, Mapping, Optional, Sequence, Set, Tuple

from espnet_bayeslm.report.html_input import expecting, mapping, number, read_json
from espnet_bayeslm.report.html_page import Html, Section, details, markup, paragraph, table
from espnet_bayeslm.report.scores import RESERVED
from espnet_bayeslm.utils.errors import InputError

COUNTS = ("wer", "substitutions", "deletions", "insertions", "words")
DAGGER = "†"
SCORE = "Make it with `bayeslm score --output FILE`."
PERPLEXITY = "Make it with `bayeslm perplexity --output FILE`."


@dataclasses.dataclass(frozen=True)
class ErrorTable:
    """What `bayeslm score` found on one condition, or on all of them pooled.

    Attributes:
        systems: System -> its `COUNTS`.
        baseline: The system with which `better` compares, where there is one.
        better: The systems that make significantly fewer errors.
        pairs: The tests of every two systems.
    """

    systems: Dict[str, Dict[str, float]]
    baseline: Optional[str]
    better: Set[str]
    pairs: List[Mapping[str, Any]]


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
        """Return the perplexity per word of the last row, unknown words left out."""
        return float(self.rows[-1]["perplexity_without_oov"]["word"])


def read_scores(path: str) -> ScoreFile:
    """Return the word errors of a file.

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
    tests = mapping(content.get("significance", {}))
    pairs = [_checked_pair(pair) for pair in tests.get("pairs", [])]
    return ErrorTable(systems, tests.get("baseline"), set(tests.get("better", [])), pairs)


def _checked_pair(pair: Any) -> Mapping[str, Any]:
    """Return a pair whose numbers are numbers."""
    for name in ("difference", "low", "high", "level", "improvement"):
        number(pair["bootstrap"][name])
    for name in ("segments", "mean", "z", "p"):
        number(pair["mapsswe"][name], infinite=name == "z")
    if not all(isinstance(pair[key], str) for key in ("a", "b")):
        raise ValueError("a pair of systems without names")
    return mapping(pair)


def read_perplexities(pairs: Sequence[Tuple[str, str]]) -> List[Perplexities]:
    """Return the perplexities of (system, file), each of one text.

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
    """Return the tables of what is given; None where nothing is."""
    parts: List[str] = []
    if scores is not None or perplexities:
        parts.append(main_table(scores, perplexities))
    if scores is not None and scores.pooled.pairs:
        parts.append(
            paragraph(
                f"{DAGGER} significantly fewer errors than {scores.pooled.baseline} (MAPSSWE, two"
                " sides, 0.05)."
            )
        )
        parts.append(pair_table(scores.pooled, "Every two systems"))
        parts += [
            details(f"Every two systems: {name}", pair_table(part, f"Every two systems: {name}"))
            for name, part in scores.conditions.items()
            if part.pairs
        ]
    if any(len(item.rows) > 1 for item in perplexities):
        parts.append(details("Perplexities of the components", component_table(perplexities)))
    if not parts:
        return None
    title = "Perplexity" if scores is None else "Word error rate"
    title += " and perplexity" if scores is not None and perplexities else ""
    return Section("scores", title, markup(*parts))


def main_table(scores: Optional[ScoreFile], perplexities: Sequence[Perplexities]) -> Html:
    """Return one row for each system: perplexities, and word errors with daggers."""
    texts = list(dict.fromkeys(item.text for item in perplexities))
    values = {(item.system, item.text): item.last for item in perplexities}
    systems = [*(scores.pooled.systems if scores else []), *(i.system for i in perplexities)]
    names = short_names(texts)
    header = ["", *(f"ppl {name}" for name in names), *(_error_header(scores) if scores else [])]
    rows = []
    for system in dict.fromkeys(systems):
        cells = [_value(values.get((system, text)), 1) for text in texts]
        rows.append([system, *cells, *(_error_cells(scores, system) if scores else [])])
    notes = ["word error rates in %"] if scores else []
    notes += ["perplexity per word, </s> counted, unknown words left out"] if texts else []
    caption = "; ".join(notes)
    return table(header, rows, caption=caption[0].upper() + caption[1:])


def short_names(paths: Sequence[str]) -> List[str]:
    """Return of each path the folders and names that are not those of all the others too."""
    parts = [path.split("/") for path in paths]
    while len(parts) > 1 and min(map(len, parts)) > 1 and len({part[0] for part in parts}) == 1:
        parts = [part[1:] for part in parts]
    while len(parts) > 1 and min(map(len, parts)) > 1 and len({part[-1] for part in parts}) == 1:
        parts = [part[:-1] for part in parts]
    return ["/".join(part) for part in parts]


def _error_header(scores: ScoreFile) -> List[str]:
    rates = [*scores.conditions, "average", "pooled"] if scores.conditions else ["WER %"]
    return [*rates, "sub", "del", "ins", "words"]


def _error_cells(scores: ScoreFile, system: str) -> List[str]:
    """Return the cells of a system; none in them where it has perplexities only."""
    if system not in scores.pooled.systems:
        return [""] * len(_error_header(scores))
    counts = scores.pooled.systems[system]
    cells = [_marked(part, system) for part in scores.conditions.values()]
    if cells:
        cells.append(_value(scores.average[system], 2))
    return [*cells, _marked(scores.pooled, system), *(f"{counts[key]:.0f}" for key in COUNTS[1:])]


def _marked(errors: ErrorTable, system: str) -> str:
    """Return a word error rate, with a dagger where the system is significantly better."""
    rate = _value(errors.systems[system]["wer"], 2)
    # as wide as the dagger, so that the figures stand below each other
    return rate + (DAGGER if system in errors.better else "\u2007" if errors.pairs else "")


def _value(value: Optional[float], digits: int) -> str:
    if value is None:
        return ""
    return f"{value:.{digits}f}" if math.isfinite(value) else "∞"


def pair_table(errors: ErrorTable, caption: str) -> Html:
    """Return one row for every two systems: bootstrap interval and MAPSSWE."""
    level = f"{100 * errors.pairs[0]['bootstrap']['level']:g} % interval"
    header = ["A", "B", "WER A\u00a0−\u00a0B", level, "P(B better)", "segments", "mean", "Z", "p"]
    rows = []
    for pair in errors.pairs:
        interval, test = pair["bootstrap"], pair["mapsswe"]
        mark = DAGGER if test.get("significant") else "\u2007"
        rows.append(
            [
                pair["a"],
                pair["b"],
                _signed(interval["difference"]),
                f"{_signed(interval['low'])} to {_signed(interval['high'])}",
                f"{interval['improvement']:.3f}",
                f"{test['segments']:.0f}",
                _signed(test["mean"], 4),
                _signed(test["z"], 3),
                f"{test['p']:.2g}{mark}",
            ]
        )
    return table(header, rows, caption=f"{caption}: bootstrap and MAPSSWE", words=(1,))


def _signed(value: float, digits: int = 2) -> str:
    """Return a number with its sign, none where it is zero as it is shown."""
    text = f"{value:+.{digits}f}".replace("-", "−")
    return text[1:] if set(text[1:]) <= set("0.") else text


def component_table(perplexities: Sequence[Perplexities]) -> Html:
    """Return the perplexities of the components that mixtures are made of."""
    rows = [
        [
            item.system,
            item.text,
            row["name"],
            _value(row["perplexity_without_oov"]["word"], 2),
            _value(row["perplexity"]["word"], 2),
            f"{row['oovs']:.0f}",
        ]
        for item in perplexities
        for row in item.rows
    ]
    header = ["system", "text", "component", "ppl", "ppl, unknown words too", "unknown words"]
    return table(header, rows, caption="Perplexity per word of the components", words=(1, 2))
