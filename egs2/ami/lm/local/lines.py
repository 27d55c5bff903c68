"""The lines of the tables: which LM each is, and the paper's figures of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Dict, List, Sequence, Tuple

from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import read_lines

# The recipe's own configurations: as everything in a recipe relative to its folder, where it runs.
CONF = Path("conf")
PAPER = Path(__file__).resolve().parents[4] / "conf" / "tuning" / "lines.txt"

NAMES = {"lstm": "LSTM", "transformer": "Transformer"}
LABELS = {
    "point": "{lm}",
    "l1": "{lm}, L1",
    "l2": "{lm}, L2",
    "map": "{lm}, MAP",
    "bayes": "Bayesian {lm}",
    "gp": "GP {lm}",
    "variational": "Variational {lm}",
    "ivon": "{lm}, IVON",
}
UNCERTAIN = ("bayes", "gp", "variational")
# A line that only interpolates LMs of other lines; `where` has their names, joined by +.
MIXTURE = "mix"
# `where` of an LM whose locations the architecture search chooses.
SEARCHED = "nas"


@dataclass(frozen=True)
class Line:
    """A line of a table.

    Attributes:
        table: The table's name.
        number: The line's number there.
        lm: `lstm` or `transformer`; `-` of a mixture.
        kind: What is done to it: `point`, `l1`, `l2`, `map`, `bayes`, `gp`, `variational`, `ivon`
            or `mix`.
        where: The location, `POSITION@LAYERS`; `nas`; or the mixture's LMs.
        options: Options of the line: of the search (`nas`, its rank), the only `seed` that it is
            trained with, `prior_mean=0` for a prior whose mean is not the point-estimate LM, else
            of `lm_conf` (see configs.py) or `model_conf`.
        ppl: The paper's perplexities, `dev/eval`, or `-`.
        wer: The paper's average WERs in %, `dev/eval`, or `-`.
    """

    table: str
    number: int
    lm: str
    kind: str
    where: str
    options: Dict[str, str] = field(default_factory=dict)
    ppl: str = "-"
    wer: str = "-"

    @property
    def name(self) -> str:
        """The LM's folder; the same LM in two tables is trained once."""
        if self.kind == MIXTURE:
            return self.where
        parts = [self.kind, self.lm, *([] if self.where == "-" else [self.where])]
        parts += [f"{key}{value}" for key, value in self.options.items() if key != "seed"]
        return "_".join(parts).replace("@", "_").replace(",", "_").replace("nas_nas", "nas")

    @property
    def label(self) -> str:
        """What stands in the table's first column."""
        if self.kind == MIXTURE:
            return " + ".join(self.where.split("+"))
        where = {"-": "", SEARCHED: f", searched (top {self.options.get('nas', '1')})"}
        options = "".join(
            f", {key} {value}" for key, value in self.options.items() if key not in ("nas", "seed")
        )
        return (
            LABELS[self.kind].format(lm=NAMES[self.lm])
            + where.get(self.where, f", {self.where}")
            + options
        )

    @property
    def base(self) -> str:
        """The point-estimate LM that it is compared and interpolated with."""
        return f"point_{self.lm}"

    def systems(self, ngram: str = "3g") -> List[Tuple[str, ...]]:
        """Return the mixtures in which it is evaluated: names of LMs, and the n-gram's."""
        if self.kind == MIXTURE:
            return [(*self.where.split("+"), ngram)]
        alone: List[Tuple[str, ...]] = [(self.name,), (self.name, ngram)]
        return alone if self.kind == "point" else [*alone, (self.name, self.base, ngram)]


def system_name(system: Sequence[str]) -> str:
    """Return the folder of a mixture's outputs."""
    return "+".join(system)


def table_files() -> List[Path]:
    """Return the files of lines: the paper's list, and the recipe's own."""
    return [PAPER, *sorted((CONF / "tables").glob("*.txt"))]


def read_table(table: str) -> List[Line]:
    """Return the lines of a table, by their numbers.

    Raises:
        InputError: No table has that name, or a line of a file is broken.
    """
    lines = [line for path in table_files() for line in read_file(path) if line.table == table]
    if not lines:
        raise InputError(f"--table {table}: unknown; valid are {', '.join(known_tables())}")
    return sorted(lines, key=lambda line: line.number)


def read_file(path: Path) -> List[Line]:
    """Return the lines of a file.

    Raises:
        InputError: A line is broken.
    """
    lines = []
    for number, row in read_lines(path):
        if row.startswith("#") or not row.strip():
            continue
        fields = row.split()
        if len(fields) != 8 or not fields[1].isdigit():
            raise InputError(
                f"expected `table line lm kind where options ppl wer`, got {row!r}",
                path=path,
                line=number,
            )
        table, index, lm, kind, where, options, ppl, wer = fields
        pairs = dict(o.split("=", 1) for o in options.split(",")) if options != "-" else {}
        where = SEARCHED if "nas" in pairs else where
        lines.append(Line(table, int(index), lm, kind, where, pairs, ppl, wer))
    return lines


def known_tables() -> List[str]:
    """Return the names of the tables that this recipe can make."""
    return sorted({line.table for path in table_files() for line in read_file(path)})
