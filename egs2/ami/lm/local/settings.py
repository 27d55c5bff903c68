"""What is collected of a table: where it is, its lines, and the systems of each."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Iterator, Optional, Tuple

import paper
from lines import MIXTURE, Line, read_table, system_name
from outputs import Json, backbone

# What an LM is interpolated with: nothing, the n-gram, the n-gram and the point-estimate LM.
ALONE, NGRAM, POINT = "alone", "ngram", "point"
# Studies, over the share of the training text and over the LMs' width, and their tables.
TRAIN, UNIT = "train", "unit"
STUDIES = {"data_size": TRAIN, "model_size": UNIT}


@dataclasses.dataclass(frozen=True)
class Settings:
    """What is collected.

    Attributes:
        table: The table's name.
        size: Size of its LMs.
        seeds: Seeds of their trainings.
        exp: The folder that has the sizes.
        data: The recipe's data folder.
        sets: Names of the dev set and of the test set.
        order: Order of the n-gram.
    """

    table: str
    size: str
    seeds: Tuple[int, ...]
    exp: Path
    data: Path
    sets: Tuple[str, str]
    order: int

    @property
    def ngram(self) -> str:
        """Return the n-gram's name in systems."""
        return f"{self.order}g"

    @property
    def folder(self) -> Path:
        """Return the folder of the size."""
        return self.exp / self.size

    @property
    def results(self) -> Path:
        """Return the file that is written."""
        return self.folder / f"results_{self.table}.json"


def line_entry(settings: Settings, line: Line) -> Json:
    """Return what is known of a line without its outputs."""
    point_ppl, point_wer = paper.with_point(
        line.table, line.lm, line.kind, line.where, line.options
    )
    seed = line.options.get("seed")
    return {
        "number": line.number,
        "name": line.name,
        "label": line.label,
        "lm": line.lm,
        "kind": line.kind,
        "where": line.where,
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
    """Yield (role, folder) of the systems in which a line is evaluated."""
    for system in line.systems(ngram):
        if len(system) == 1:
            yield ALONE, system_name(system)
        else:
            mixed = len(system) == 2 or line.kind == MIXTURE
            yield (NGRAM if mixed else POINT), system_name(system)


def base_of(settings: Settings, line: Line) -> Optional[str]:
    """Return the system that a line is compared with: point-estimate LM(s) + n-gram.

    Of a mixture of both backbones it is the table's mixture of the two point-estimate LMs, as in
    Table V; None where there is no such line.
    """
    if line.kind != MIXTURE:
        return f"{line.base}+{settings.ngram}"
    lms = {backbone(name) for name in line.where.split("+")}
    if len(lms) == 1:
        return f"point_{lms.pop()}+{settings.ngram}"
    wanted = {f"point_{lm}" for lm in lms}
    for other in read_table(settings.table):
        if other.kind == MIXTURE and set(other.where.split("+")) == wanted:
            return system_name(other.systems(settings.ngram)[0])
    return None
