#!/usr/bin/env python3
"""Tables of the systems of a plan: word errors, tests against other rows, seconds.

Rows whose output does not exist are left out. Two rows are compared utterance by utterance, and by
MAPSSWE.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import yaml

from espnet_bayeslm.evaluation.bias_lists import BiasLists, read_bias
from espnet_bayeslm.evaluation.biased_words import BIASED, UNBIASED, score_parts
from espnet_bayeslm.evaluation.comparison import ScoredSet, compare_segments, score_set
from espnet_bayeslm.evaluation.normalization import Normalization
from espnet_bayeslm.evaluation.wer import NO_WORDS, ErrorCounts, read_transcripts
from espnet_bayeslm.utils.cli import Tool
from espnet_bayeslm.utils.files import write_text

Texts = Mapping[str, Sequence[str]]


class Outputs(NamedTuple):
    """References, rows of the plan whose outputs exist, and outputs by row; normalised."""

    refs: Texts
    rows: List[Dict[str, Any]]
    texts: Dict[str, Texts]
    decoys: Dict[str, Texts]


def read_outputs(plan: Path, exp: Path, ref: Path, normalize: str) -> Outputs:
    """Read the outputs."""
    normalization = Normalization(normalize)

    def read(path: Path) -> Texts:
        return normalization.text(read_transcripts(path))

    rows = yaml.safe_load(plan.read_text("utf-8"))
    rows = [row for row in rows if (exp / row["text"]).exists()]
    texts = {row["system"]: read(exp / row["text"]) for row in rows}
    others = {row["system"]: exp / row["decoys"] for row in rows if "decoys" in row}
    decoys = {system: read(path) for system, path in others.items() if path.exists()}
    return Outputs(read(ref), rows, texts, decoys)


def total(errors: Mapping[str, ErrorCounts], within: Optional[re.Pattern] = None) -> ErrorCounts:
    """Errors of all utterances, or of those whose ids a pattern finds."""
    counts = (count for utt, count in errors.items() if within is None or within.search(utt))
    return sum(counts, NO_WORDS)


def percent(count: ErrorCounts) -> str:
    """Error rate; nothing without words."""
    return f"{100 * count.rate:.2f}" if count.words else ""


def comparison(found: ScoredSet, one: str, other: str) -> Tuple[int, int, str]:
    """Utterances in which the first system has fewer errors, and more; p of the difference."""
    pairs = [
        (found.errors[one][utt].errors, count.errors) for utt, count in found.errors[other].items()
    ]
    key = (one, other) if (one, other) in found.segments else (other, one)
    p = compare_segments(found.segments[key]).p
    return sum(a < b for a, b in pairs), sum(a > b for a, b in pairs), f"{p:.2g}"


def main_table(outputs: Outputs, found: ScoredSet) -> List[List[str]]:
    """Errors of each system, against those of the first."""
    first = outputs.rows[0]["system"]
    lines = [["", "system", "errors", "WER in %", "better in", "worse in", "p"]]
    for number, system in enumerate(outputs.texts, 1):
        cells = ["", "", ""]
        if system != first:
            cells = [str(value) for value in comparison(found, system, first)]
        count = total(found.errors[system])
        lines.append([str(number), system, str(count.errors), percent(count), *cells])
    return lines


def steps_table(outputs: Outputs, found: ScoredSet, bias: BiasLists) -> List[List[str]]:
    """Tests of each system against a simpler one; errors outside and inside of the lists."""
    parts = score_parts(found, outputs.refs, outputs.texts, bias)
    numbers = {row["system"]: n for n, row in enumerate(outputs.rows, 1)}
    lines = [["", "system", "than row", "p", UNBIASED, BIASED, f"p, {BIASED}"]]
    for system, number in numbers.items():
        against = outputs.rows[number - 1].get("against")
        known = against in numbers
        p, p_biased = (
            comparison(scored, system, against)[2] if known else ""
            for scored in (found, parts[BIASED])
        )
        rates = [percent(total(parts[name].errors[system])) for name in (UNBIASED, BIASED)]
        lines.append([str(number), system, str(numbers.get(against, "")), p, *rates, p_biased])
    return lines


def costs_table(
    outputs: Outputs, found: ScoredSet, within: Optional[re.Pattern], exp: Path
) -> List[List[str]]:
    """Errors of each system in populations and with decoys, and its seconds."""
    others = score_set(outputs.refs, outputs.decoys).errors if outputs.decoys else {}
    split = [f"`{within.pattern}`", "others"] if within else []
    lines = [["", "system", *split, "decoys", "s"]]
    for number, row in enumerate(outputs.rows, 1):
        system = row["system"]
        errors, shares = found.errors[system], []
        if within:
            rest = {utt: count for utt, count in errors.items() if not within.search(utt)}
            shares = [percent(total(errors, within)), percent(total(rest))]
        shares.append(percent(total(others[system])) if system in others else "")
        spent = sum(seconds(exp, name) for name in row["seconds"])
        each = f"{spent / len(outputs.refs):.2f}" if spent else ""
        lines.append([str(number), system, *shares, each])
    return lines


def seconds(exp: Path, name: str) -> float:
    """CPU seconds of a job, or of its parts."""
    files = [exp / "seconds" / name, *(exp / "seconds").glob(f"{name}.*")]
    return sum(float(path.read_text().split()[-1]) for path in files if path.exists())


def markdown(lines: Sequence[Sequence[str]]) -> str:
    """Table with a header; numbers are on the right."""
    rule = ["---" if n == 1 else "---:" for n in range(len(lines[0]))]
    return "".join(f"| {' | '.join(row)} |\n" for row in (lines[0], rule, *lines[1:]))


def write_tables(
    *, plan: Path, exp: Path, ref: Path, bias: Path, normalize: str, population: str, output: Path
) -> None:
    """Write the tables."""
    outputs = read_outputs(plan, exp, ref, normalize)
    found = score_set(outputs.refs, outputs.texts)
    lists = read_bias(bias, Normalization(normalize), utts=outputs.refs)
    within = re.compile(population) if population else None
    words = sum(map(len, outputs.refs.values()))
    about = f"{len(outputs.refs)} utterances, {words} words. Seconds of one CPU for each.\n\n"
    tables = [main_table(outputs, found), steps_table(outputs, found, lists)]
    tables.append(costs_table(outputs, found, within, exp))
    write_text(output, about + "\n".join(map(markdown, tables)))


def main(cmd: Optional[Sequence[str]] = None) -> None:
    """Write the tables of the command line's files."""
    tool = Tool("table", __doc__.splitlines()[0], write_tables)
    parser = tool.parser()
    parser.prog = "local/table.py"
    for name, help in (
        ("plan", "The plan"),
        ("exp", "The folder of its outputs"),
        ("ref", "References, a Kaldi text"),
        ("bias", "Bias lists of the references"),
        ("output", "The file to write"),
    ):
        parser.add_argument(f"--{name}", type=Path, required=True, help=help)
    parser.add_argument("--normalize", default="lower,punct", help="What is done to texts")
    parser.add_argument(
        "--population", default="", help="Pattern of ids of utterances that are counted apart"
    )
    tool.main(cmd, parser)


if __name__ == "__main__":
    main()
