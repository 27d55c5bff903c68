"""The plan of a corpus's experiments, a yaml file, and what is asked of it."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

import yaml

from espnet_bayeslm.configs.tables import (
    MIXTURE,
    NAMES,
    NUMERALS,
    SEARCHED,
    Line,
    Tables,
    merged,
    mixed_figures,
    paper_content,
    paper_tables,
    parse_lines,
)
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import read_lines

# Studies, over the share of the training text and over the LMs' width.
TRAIN, UNIT = "train", "unit"
# What an LM is interpolated with: nothing, the n-gram, the n-gram and the point-estimate LM.
ALONE, NGRAM, POINT = "alone", "ngram", "point"
KEYS = (
    *("like", "sets", "order", "ngram", "paper", "table", "tables", "systems", "studies"),
    *("sizes", "flat", "text", "lists"),
)
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
        lists: The command that makes the N-best lists, given --nbest, --output and --sets.
        ngram: The n-gram's name in systems.
        systems: {name: LMs and n-gram} of the mixtures that are evaluated; none: each line's.
        flat: Whether the LMs, of one size and seed, stand in the folder of experiments itself.
    """

    sets: Tuple[str, str]
    order: int
    tables: Tables
    table: str
    studies: Dict[str, Mapping[str, Any]]
    paper: Optional[str]
    text: str
    lists: str
    ngram: str
    systems: Dict[str, Tuple[str, ...]]
    flat: bool


def read_plan(path: Path) -> Plan:
    """Plan of a file.

    Raises:
        InputError: It is not there, or says something else than expected.
    """
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
    order = int(content.get("order", 3))
    return Plan(
        (sets["dev"], sets["test"]),
        order,
        tables,
        str(content.get("table", next(iter(tables.lines)))),
        studies,
        paper,
        content.get("text", "local/data.sh"),
        content.get("lists", "local/nbest.sh"),
        content.get("ngram", f"{order}g"),
        {str(name): tuple(parts) for name, parts in content.get("systems", {}).items()},
        bool(content.get("flat", False)),
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
    try:
        content = yaml.safe_load("\n".join(line for _, line in read_lines(path)))
    except yaml.YAMLError as error:
        raise InputError(f"not a yaml file ({error})", path=path) from error
    if not isinstance(content, dict):
        raise InputError("expected a plan as a yaml mapping", path=path)
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
        """What the table's LMs are studied over, `train` or `unit`."""
        study = self.plan.studies.get(self.table)
        return None if study is None else TRAIN if "parts" in study else UNIT

    @property
    def ngram(self) -> str:
        """The n-gram's name in systems."""
        return self.plan.ngram

    @property
    def folder(self) -> Path:
        """The folder of the size."""
        return self.exp if self.plan.flat else self.exp / self.size

    def seed_folder(self, seed: int) -> Path:
        """The folder of a seed's LMs."""
        return self.folder if self.plan.flat else self.folder / f"seed{seed}"

    @property
    def results(self) -> Path:
        """The file in which the results are collected."""
        return self.folder / f"results_{self.table}.json"


def line_entry(settings: Settings, line: Line) -> Dict[str, Any]:
    """What is known of a line without its outputs."""
    point_ppl, point_wer = mixed_figures(settings.plan.paper, line)
    seed = line.options.get("seed")
    return {
        **{k: getattr(line, k) for k in ("number", "name", "label", "lm", "kind", "where")},
        "seeds": list(settings.seeds) if seed is None else [int(seed)],
        "seed": None if seed is None else int(seed),
        "systems": dict(line_systems(line, settings.ngram)),
        "base": base_of(settings, line),
        "paper": {
            NGRAM: {"ppl": line.ppl, "wer": line.wer},
            POINT: {"ppl": point_ppl, "wer": point_wer},
        },
    }


def line_systems(line: Line, ngram: str) -> Iterator[Tuple[str, str]]:
    """(role, folder) of the systems in which a line is evaluated."""
    for system in line.systems(ngram):
        if len(system) == 1:
            yield ALONE, "+".join(system)
        else:
            mixed = len(system) == 2 or line.kind == MIXTURE
            yield (NGRAM if mixed else POINT), "+".join(system)


def base_of(settings: Settings, line: Line) -> Optional[str]:
    """The system that a line is compared with: point-estimate LM(s) + n-gram.

    Of a mixture of both backbones it is the table's mixture of the two point-estimate LMs, as in
    Table V; None where there is no such line.
    """
    if line.kind != MIXTURE:
        return f"{line.base}+{settings.ngram}"
    lms = {backbone(name) for name in line.where.split("+")}
    if len(lms) == 1:
        return f"point_{lms.pop()}+{settings.ngram}"
    wanted = {f"point_{lm}" for lm in lms}
    for other in settings.lines:
        if other.kind == MIXTURE and set(other.where.split("+")) == wanted:
            return "+".join(other.systems(settings.ngram)[0])
    return None


def backbone(name: str) -> str:
    """`lstm` or `transformer`, of an LM's name; empty for another name."""
    words = re.split(r"[_.]", name)
    return next((lm for lm in NAMES if lm in words), "")
