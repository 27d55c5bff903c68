"""The report's tables of word error rates, their significance, and perplexities."""

from __future__ import annotations

import dataclasses
import logging
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

from espnet_bayeslm.evaluation.comparison import Scores
from espnet_bayeslm.evaluation.perplexity import perplexity_text
from espnet_bayeslm.evaluation.wer import RATES
from espnet_bayeslm.report.inputs import json_content, typed
from espnet_bayeslm.report.page import Section
from espnet_bayeslm.report.score_results import FIRST_PASS, ScoreFile, level_of, pair_table, rates
from espnet_bayeslm.report.table import MISSING, Row, Table, typeset
from espnet_bayeslm.utils.errors import InputError

PAIRS = "Every two systems: bootstrap and MAPSSWE"
REMEDY = "Make it with `bayeslm perplexity --output FILE`."


@dataclasses.dataclass(frozen=True)
class ComponentPerplexity:
    """Perplexities of one component, by unit."""

    name: str
    oovs: float
    perplexity: Dict[str, Optional[float]]
    perplexity_without_oov: Dict[str, Optional[float]]


class Perplexities(NamedTuple):
    """Perplexities that `bayeslm perplexity` wrote of one text."""

    system: str
    text: str
    rows: List[ComponentPerplexity]


def read_perplexities(pairs: Sequence[Tuple[str, str]]) -> List[Perplexities]:
    """Perplexities of (system, file), each of one text."""
    found: Dict[Tuple[str, str], Perplexities] = {}
    for system, path in pairs:
        with json_content(path, "perplexities of components", remedy=REMEDY) as content:
            text = typed(str, content["text"])
            rows = typed(List[ComponentPerplexity], content["components"])
            if not rows or any("word" not in row.perplexity for row in rows):
                raise ValueError("there is no component with a perplexity per word")
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
    """Tables of scores and perplexities; None if there are neither."""
    if scores is None and not perplexities:
        return None
    systems = list(dict.fromkeys(item.system for item in perplexities))
    others = [name for name in systems if scores is None or name not in scores.pooled.errors]
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
        parts = [
            pair_table(part, f"{PAIRS} ({name})", scores.unit)
            for name, part in scores.conditions.items()
        ]
        values.update(baseline=scores.baseline, reference=reference_of(scores))
        pairs = [pair_table(scores.pooled, PAIRS, scores.unit)]
        values.update(pairs=pairs, details=[*parts, *details])
    title = "Perplexity" if scores is None else "Word error rate"
    title += " and perplexity" if scores is not None and perplexities else ""
    return Section("scores", title, values)


def error_table(scores: ScoreFile, perplexities: Sequence[Perplexities]) -> Table:
    """One row for each system: perplexities, word errors with marks, change from the first pass."""
    names, cells_of = _perplexity_columns(perplexities)
    pooled, conditions, baseline = scores.pooled, scores.conditions, scores.baseline
    reference = reference_of(scores)
    changed = [] if reference is None else ["change", level_of(pooled), "relative %"]
    columns = [*conditions, "average", "pooled"] if conditions else [f"{RATES[scores.unit]} %"]
    rows: List[Row] = []
    for system, counts in pooled.errors.items():
        change = [] if reference is None else _change(pooled, system, reference)
        errors = [counts.substitutions, counts.deletions, counts.insertions, counts.words]
        marked = rates(conditions, pooled, system, baseline)
        rows.append([system, *cells_of(system), *marked, *change, *map(str, errors)])
    header = ["system", *names, *columns, *changed, "sub", "del", "ins", f"{scores.unit}s"]
    caption = "Word error rates in %" if scores.unit == "word" else "Character error rates in %"
    return Table(caption, header, rows)


def reference_of(scores: ScoreFile) -> Optional[str]:
    """System from which changes count: the first pass, else the baseline."""
    return FIRST_PASS if FIRST_PASS in scores.pooled.errors else scores.baseline


def _change(scores: Scores, system: str, reference: str) -> List[str]:
    """Change of the rate from the reference's, its bootstrap interval, and relative."""
    before, after = (100 * scores.errors[name].rate for name in (reference, system))
    if system == reference:
        return [MISSING] * 3
    interval = MISSING
    for pair in scores.pairs:
        ends = 100 * pair.interval.low, 100 * pair.interval.high
        if (pair.a, pair.b) == (reference, system):
            interval = f"{typeset(-ends[1])} to {typeset(-ends[0])}"
        elif (pair.a, pair.b) == (system, reference):
            interval = f"{typeset(ends[0])} to {typeset(ends[1])}"
    relative = typeset(100 * (after - before) / before, 1) if before > 0 else MISSING
    return [typeset(after - before), interval, relative]


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
    values = {(item.system, item.text): _per_word(item.rows[-1]) for item in perplexities}
    names = [f"ppl {name}" for name in short_names(texts)]
    return names, lambda system: [perplexity_text(values.get((system, text)), 1) for text in texts]


def short_names(paths: Sequence[str]) -> List[str]:
    """Short name of each path: the folders and names that tell it from the other paths.

    A single path has its last name: `dev` for `data/dev/text`, as Kaldi names files.
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


def component_table(perplexities: Sequence[Perplexities]) -> Table:
    """Perplexities of the components that mixtures are made of."""
    rows = [
        [
            item.system,
            item.text,
            row.name,
            perplexity_text(_per_word(row), 2),
            perplexity_text(row.perplexity["word"], 2),
            f"{row.oovs:.0f}",
        ]
        for item in perplexities
        for row in item.rows
    ]
    header = ["system", "text", "component", "ppl", "ppl, unknown words too", "unknown words"]
    return Table("Perplexity per word of the components", header, rows, words=(1, 2))


def _per_word(row: ComponentPerplexity) -> Optional[float]:
    """Perplexity per word, unknown words left out."""
    return row.perplexity_without_oov["word"]
