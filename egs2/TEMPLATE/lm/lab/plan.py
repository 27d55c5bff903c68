"""The plan of a corpus's experiments, a yaml file, and the lines of its tables."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import read_yaml_mapping
from lab.paper import (
    MIXTURE,
    NAMES,
    NUMERALS,
    SEARCHED,
    WITH_PRIOR,
    Line,
    Tables,
    merged,
    paper_content,
    paper_tables,
    parse_lines,
)

# Studies, over the share of the training text and over the LMs' width.
TRAIN, UNIT = "train", "unit"
# Roles: an LM alone, with the n-gram, with the n-gram and the point-estimate LM.
ALONE, NGRAM, POINT = "alone", "ngram", "point"
KEYS = ("like", "sets", "order", "paper", "table", "tables", "studies", "sizes", "text", "lists")
NEEDED = ("sets", "tables")


@dataclasses.dataclass(frozen=True)
class Plan:
    """A plan.

    Attributes:
        sets: Names of the dev set, on which all is tuned, and of the test set.
        order: Order of the n-gram.
        tables: The tables' lines, and the sizes of their LMs.
        table: The table that is made where none is named.
        studies: {table: {`parts`: shares of the training text in %} or {`units`: widths}}.
        paper: The corpus whose figures of the paper stand beside the results.
        text: The command that makes the texts, given --output.
        lists: The command that makes the N-best lists, given --output and --sets.
    """

    sets: Tuple[str, str]
    order: int
    tables: Tables
    table: str
    studies: Dict[str, Mapping[str, Any]]
    paper: Optional[str]
    text: str
    lists: str

    @property
    def ngram(self) -> str:
        """Name of the n-gram in the names of systems."""
        return f"{self.order}g"


def read_plan(path: Path) -> Plan:
    """Plan of a file."""
    content = read_content(path)
    try:
        return _plan(content, path)
    except InputError:
        raise
    except (AttributeError, TypeError, ValueError, KeyError, StopIteration) as error:
        raise InputError(
            f"cannot be read as a plan ({type(error).__name__}: {error})",
            path=path,
            remedy="Compare it with egs2/ami/lm/conf/plan.yaml (docs/howto/experiments.md).",
        ) from error


def _plan(content: Mapping[str, Any], path: Path) -> Plan:
    missing = [key for key in NEEDED if key not in content]
    unknown = [key for key in content if key not in KEYS]
    if missing or unknown:
        what = f"unknown: {', '.join(unknown)}" if unknown else f"no {', '.join(missing)}"
        raise InputError(f"{what}; a plan has {', '.join(KEYS)}", path=path)
    sets = content["sets"]
    if not isinstance(sets, dict) or set(sets) != {"dev", "test"}:
        raise InputError(f"sets: expected {{dev: NAME, test: NAME}}, got {sets!r}", path=path)
    tables = read_tables(content, path)
    corpora = paper_content()["corpora"]
    paper = content.get("paper")
    if paper is not None and paper not in corpora:
        raise InputError(f"paper: {paper}; valid are {', '.join(corpora)}", path=path)
    # a plan that is like another may leave tables of it out
    named = {str(name): study for name, study in content.get("studies", {}).items()}
    studies = {name: study for name, study in named.items() if name in tables.lines}
    for name, study in studies.items():
        if len({"parts", "units"} & set(study)) != 1:
            what = "expected `parts` or `units`"
            raise InputError(f"studies: {name}: {study!r}: {what}", path=path)
        check_parts(study.get("parts", ()), path=path)
    return Plan(
        (sets["dev"], sets["test"]),
        int(content.get("order", 3)),
        tables,
        str(content.get("table", next(iter(tables.lines)))),
        studies,
        paper,
        content.get("text", "local/data.sh"),
        content.get("lists", "local/nbest.sh"),
    )


def check_parts(parts: Sequence[Any], *, path: Optional[Path] = None) -> None:
    """Raise an InputError where parts of a text are no numbers from 1 to 100, in %."""
    for part in parts:
        if isinstance(part, bool) or not (isinstance(part, int) and 0 < part <= 100):
            raise InputError(f"parts: {part!r}: expected 1 to 100, in % of the text", path=path)


def read_content(path: Path, *, above: Tuple[Path, ...] = ()) -> Dict[str, Any]:
    """Content of a plan; what it does not say is that of the plan that it is `like`."""
    if path.resolve() in above:
        raise InputError("a plan that is `like` itself", path=path)
    content = read_yaml_mapping(path)
    like = content.pop("like", None)
    if like is None:
        return content
    above = (*above, path.resolve())
    return merged(read_content(path.parent / str(like), above=above), content)


def read_tables(content: Mapping[str, Any], path: Path) -> Tables:
    """Tables of a plan: its own lines, or the name of a table of the paper's; and their sizes."""
    paper = paper_tables()
    lines: Dict[str, List[Line]] = {}
    for key, rows in content["tables"].items():
        name = str(key)
        if isinstance(rows, str):
            lines[name] = [
                dataclasses.replace(
                    line, table=name, where=SEARCHED if "nas" in line.options else line.where
                )
                for line in paper.table(NUMERALS.get(rows, rows))
            ]
        else:
            lines[name] = parse_lines(name, rows, path)
    return Tables(lines, {**paper.sizes, **content.get("sizes", {})}, paper.shared)


def chosen_lines(
    lines: Sequence[Line], lm: str, only: Sequence[str], seed: int, *, mixtures: bool = False
) -> List[Line]:
    """Lines of one backbone (`both`: all), of some names (none: all), of this seed.

    Those that only mix others' LMs are left out, unless `mixtures` says otherwise.
    """
    return [
        line
        for line in lines
        if (mixtures if line.kind == MIXTURE else lm in ("both", line.lm))
        and (not only or line.name in only)
        and int(line.options.get("seed", seed)) == seed
    ]


@dataclasses.dataclass(frozen=True)
class Settings:
    """A table of a plan in one size.

    Attributes:
        plan: The plan.
        table: The table's name.
        size: Size of its LMs.
        seeds: Seeds of their trainings.
        exp: The folder that has the sizes.
        data: The corpus's data folder.
    """

    plan: Plan
    table: str
    size: str
    seeds: Tuple[int, ...]
    exp: Path
    data: Path

    @property
    def lines(self) -> List[Line]:
        """The table's lines."""
        return self.plan.tables.table(self.table)

    @property
    def sets(self) -> Tuple[str, str]:
        """Names of the dev set and of the test set."""
        return self.plan.sets

    @property
    def study(self) -> Optional[str]:
        """Study of the table, `train` or `unit`, or None."""
        study = self.plan.studies.get(self.table)
        return None if study is None else TRAIN if "parts" in study else UNIT

    @property
    def ngram(self) -> str:
        """The n-gram's name in systems."""
        return self.plan.ngram

    @property
    def folder(self) -> Path:
        """The folder of the size."""
        return self.exp / self.size

    def seed_folder(self, seed: int) -> Path:
        """The folder of a seed's LMs."""
        return self.folder / f"seed{seed}"

    @property
    def results(self) -> Path:
        """The file in which the results are collected."""
        return self.folder / f"results_{self.table}.json"


@dataclasses.dataclass(frozen=True)
class Figures:
    """Perplexity and WER in % as the paper prints them, `dev/eval`, or `-`."""

    ppl: str = "-"
    wer: str = "-"


@dataclasses.dataclass(frozen=True)
class Entry:
    """A line of a table with its systems.

    Attributes:
        line: The line.
        seeds: Seeds of its trainings.
        systems: {role: name of the system}.
        base: The system that the line is compared with, or None.
        paper: {role: figures of the paper}.
    """

    line: Line
    seeds: List[int]
    systems: Dict[str, str]
    base: Optional[str]
    paper: Dict[str, Figures]

    @property
    def name(self) -> str:
        """Name of the line's LM."""
        return self.line.name

    @property
    def is_mixture(self) -> bool:
        """True if the line only interpolates LMs of other lines."""
        return self.line.kind == MIXTURE


def entry_of(settings: Settings, line: Line) -> Entry:
    """Line of a table with its systems."""
    seed = line.options.get("seed")
    paper = {NGRAM: Figures(line.ppl, line.wer), POINT: Figures(line.mixed_ppl, line.mixed_wer)}
    return Entry(
        line,
        list(settings.seeds) if seed is None else [int(seed)],
        {role: "+".join(system) for role, system in systems_of(line, settings.ngram).items()},
        base_of(settings, line),
        paper,
    )


def systems_of(line: Line, ngram: str) -> Dict[str, Tuple[str, ...]]:
    """{role: names of LMs and n-gram} of the mixtures in which a line is evaluated."""
    if line.kind == MIXTURE:
        return {NGRAM: (*line.where.split("+"), ngram)}
    found: Dict[str, Tuple[str, ...]] = {ALONE: (line.name,), NGRAM: (line.name, ngram)}
    return found if line.kind == "point" else {**found, POINT: (line.name, point_of(line), ngram)}


def point_of(line: Line) -> str:
    """Name of the point-estimate LM that a line is compared and interpolated with."""
    return f"point_{line.lm}"


def has_point_prior(line: Line) -> bool:
    """True if the mean of a line's prior is the point-estimate LM, and not zero."""
    mean = line.options.get("prior_mean")
    if str(mean) not in ("None", "0"):
        raise InputError(
            f"line {line.number} of table {line.table}: prior_mean={mean}; valid is 0",
            remedy="Without the option the prior's mean is the point-estimate LM.",
        )
    return line.kind in WITH_PRIOR and mean is None


def paper_figures(corpus: Optional[str], name: str) -> Figures:
    """Figures of the `ngram` or the `oracle` of a corpus."""
    return Figures(**(paper_content()["corpora"][corpus][name] if corpus else {}))


def base_of(settings: Settings, line: Line) -> Optional[str]:
    """The system that a line is compared with: point-estimate LM(s) + n-gram.

    Of a mixture of both backbones it is the table's mixture of the two point-estimate LMs, as in
    Table V; None where there is no such line.
    """
    if line.kind != MIXTURE:
        return f"{point_of(line)}+{settings.ngram}"
    lms = {backbone(name) for name in line.where.split("+")}
    if len(lms) == 1:
        return f"point_{lms.pop()}+{settings.ngram}"
    wanted = {f"point_{lm}" for lm in lms}
    for other in settings.lines:
        if other.kind == MIXTURE and set(other.where.split("+")) == wanted:
            return "+".join(systems_of(other, settings.ngram)[NGRAM])
    return None


def backbone(name: str) -> str:
    """`lstm` or `transformer`, of an LM's name; empty for another name."""
    words = re.split(r"[_.]", name)
    return next((lm for lm in NAMES if lm in words), "")
