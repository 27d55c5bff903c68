"""The LM lines of result tables, and the training configuration of each (paper.yaml)."""

from __future__ import annotations

import copy
import functools
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, Optional, Union

import yaml

from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.options import as_numbers

Config = Dict[str, Any]
FILE = Path(__file__).with_name("paper.yaml")

# The paper's tables by their numbers.
NUMERALS = {"1": "I", "3": "III", "4": "IV", "5": "V", "6": "VI"}
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
# Kinds whose prior's mean is the point-estimate LM.
WITH_PRIOR = ("map", "bayes", "gp")
# A line that only interpolates LMs of other lines; `where` has their names, joined by +.
MIXTURE = "mix"
# `where` of an LM whose locations the architecture search chooses.
SEARCHED = "nas"
# Variance of the prior of each backbone (the paper, IV-A).
PRIOR_VARIANCE = {"lstm": 1.0, "transformer": 1.0e-3}
# A line's options that are the LM's, and those that are in no configuration; the rest is the
# model's.
LM_OPTIONS = ("prior_variance", "init_std", "init_std_unit", "dropout_rate")
NOT_TRAINING = ("nas", "seed", "prior_mean")
# In the order in which a configuration has them.
FIRST_KEYS = ("lm", "lm_conf", "model", "model_conf", "seed", "optim", "optim_conf", "grad_clip")


@dataclass(frozen=True)
class Line:
    """A line of a table.

    Attributes:
        table: The table's name.
        number: The line's number there.
        lm: `lstm` or `transformer`; `-` of a mixture.
        kind: Kind or regularisation of the LM: `point`, `l1`, `l2`, `map`, `bayes`, `gp`,
            `variational`, `ivon` or `mix`.
        where: The location, `POSITION@LAYERS`, or several, a space between; `nas`; the LMs of a
            mixture; `-` in every other line.
        options: Options of the line: of the search (`nas`, its rank), the only `seed` that it is
            trained with, `prior_mean: 0` for a prior whose mean is not the point-estimate LM, else
            of `lm_conf` or `model_conf`.
        ppl: The paper's perplexities with the n-gram, `dev/eval`, or `-`.
        wer: The paper's average WERs in % with the n-gram, `dev/eval`, or `-`.
        mixed_ppl: The paper's perplexities with n-gram and point-estimate LM.
        mixed_wer: The paper's average WERs with n-gram and point-estimate LM.
        given_name: The LM's folder, where the line says it.
    """

    table: str
    number: int
    lm: str
    kind: str
    where: str = "-"
    options: Dict[str, Any] = field(default_factory=dict)
    ppl: str = "-"
    wer: str = "-"
    mixed_ppl: str = "-"
    mixed_wer: str = "-"
    given_name: str = ""

    @property
    def name(self) -> str:
        """The LM's folder; the same LM in two tables is trained once."""
        if self.given_name or self.kind == MIXTURE:
            return self.given_name or self.where
        parts = [self.kind, self.lm, *([] if self.where == "-" else [self.where])]
        parts += [f"{key}{value}" for key, value in self.options.items() if key != "seed"]
        return re.sub("[@, ]", "_", "_".join(parts)).replace("nas_nas", "nas")

    @property
    def label(self) -> str:
        """Text of the table's first column."""
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


def merged(base: Mapping[str, Any], *changes: Optional[Mapping[str, Any]]) -> Config:
    """A configuration with changes: mappings are merged, None takes away, the rest is replaced."""
    result = copy.deepcopy(dict(base))
    for change in changes:
        for key, value in (change or {}).items():
            old = result.get(key)
            if value is None:
                result.pop(key, None)
            elif isinstance(value, Mapping) and isinstance(old, Mapping):
                result[key] = merged(old, value)
            else:
                result[key] = copy.deepcopy(value)
    return result


class Tables:
    """Tables of LM lines, and the sizes in which they are trained.

    Args:
        lines: {table: its lines, by number}.
        sizes: {size: {`both` or a backbone: {part: differences}}}.
        shared: Options that all configurations have.
    """

    def __init__(
        self, lines: Mapping[str, List[Line]], sizes: Mapping[str, Any], shared: Mapping[str, Any]
    ):
        self.lines, self.sizes, self.shared = dict(lines), as_numbers(sizes), dict(shared)

    def table(self, name: str) -> List[Line]:
        """Lines of a table."""
        if name not in self.lines:
            raise InputError(f"--table {name}: unknown; valid are {', '.join(self.lines)}")
        return self.lines[name]

    def check_size(self, size: str) -> None:
        """Raise an InputError where there is no such size."""
        if size not in self.sizes:
            raise InputError(f"--size {size}: unknown; valid are {', '.join(self.sizes)}")

    def config(self, size: str, line: Line, part: str = "second", where: Any = None) -> Config:
        """Training configuration of a line's LM.

        Args:
            size: The size.
            line: The line.
            part: `second`: the training goes on from half of one; else it is a whole one.
            where: `uncertainty`, where the line does not say it.
        """
        config = merged(self._parts(size, line.lm, part), *self._kind(size, line))
        options = {k: v for k, v in line.options.items() if k not in NOT_TRAINING}
        lm_conf: Config = {k: options.pop(k) for k in LM_OPTIONS if k in options}
        if line.kind in UNCERTAIN:
            kind: Any = line.kind
            lm_conf["uncertainty"] = dict(where or dict.fromkeys(line.where.split(), kind))
        if line.kind in WITH_PRIOR:
            lm_conf["prior_variance"] = self._prior_variance(line)
        if line.kind in ("l1", "l2", "map"):
            options["regularizer"] = line.kind
        seed = {"seed": line.options["seed"]} if "seed" in line.options else {}
        model = {} if line.kind == "point" else {"model": "bayes_lm"}
        changes = {**model, "model_conf": options} if options else model
        return ordered(merged(config, {"lm_conf": lm_conf, **changes, **seed}))

    def half(self, size: str, lm: str) -> Config:
        """Configuration of the first half of the training, from which all go on."""
        return ordered(self._parts(size, lm, "half"))

    def search(self, size: str, line: Line) -> Config:
        """Configuration of the super-network of a searched line."""
        config = self._parts(size, line.lm, "second")
        prior = {"prior_variance": self._prior_variance(line)} if line.kind in WITH_PRIOR else {}
        space = self._changes(size, line.lm, "search", f"search_{line.kind}")
        return ordered(merged(config, *self._kind(size, line), {"lm_conf": prior}, *space))

    def _parts(self, size: str, lm: str, part: str) -> Config:
        self.check_size(size)
        return merged(self.shared, *self._changes(size, lm, "base", part))

    def _changes(self, size: str, lm: str, *parts: str) -> Iterator[Config]:
        for part in parts:
            for backbone in ("both", lm):
                yield self.sizes[size].get(backbone, {}).get(part, {})

    def _kind(self, size: str, line: Line) -> Iterator[Config]:
        """Changes that a line's kind makes to the configuration."""
        own = any(line.kind in self.sizes[size].get(backbone, {}) for backbone in ("both", line.lm))
        if line.kind == "ivon" and not own:
            # the optimizer would be another
            raise InputError(f"size {size} says nothing of {line.lm} and {line.kind}")
        name = line.kind if own or line.kind not in UNCERTAIN else "uncertain"
        return self._changes(size, line.lm, name)

    def _prior_variance(self, line: Line) -> Union[float, str]:
        variance = line.options.get("prior_variance", PRIOR_VARIANCE[line.lm])
        return variance if isinstance(variance, str) else float(variance)


def ordered(config: Config) -> Config:
    """A configuration whose LM, model and optimizer come first."""
    first = {key: config[key] for key in FIRST_KEYS if key in config}
    return {**first, **config}


def parse_lines(table: str, rows: Mapping[Any, Mapping[str, Any]], path: Path) -> List[Line]:
    """Lines of a table as yaml has them, {number: {lm, kind, where, ppl, wer, option, ...}}."""
    return [parse_line(table, number, row, path) for number, row in sorted(rows.items())]


def parse_line(table: str, number: Any, row: Any, path: Path) -> Line:
    """A line as yaml has it."""
    place = f"line {number} of table {table}: expected"
    if not isinstance(number, int) or not isinstance(row, Mapping):
        raise InputError(f"{place} NUMBER: {{kind: KIND, ...}}, got {row!r}", path=path)
    options = dict(row)
    kind, lm = options.pop("kind", None), options.pop("lm", "-")
    where = ("" if kind == MIXTURE else " ").join(str(options.pop("where", "-")).split())
    if kind not in (*LABELS, MIXTURE):
        raise InputError(f"{place} a kind of {', '.join(LABELS)}, {MIXTURE}, got {kind}", path=path)
    if lm not in NAMES and kind != MIXTURE:
        raise InputError(f"{place} an lm of {', '.join(NAMES)}, got {lm}", path=path)
    if (where == "-") == (kind in (*UNCERTAIN, MIXTURE)):
        raise InputError(f"{place} `where` of what is uncertain or mixed, no other", path=path)
    figures = {key: str(options.pop(key, "-")) for key in ("ppl", "wer", "mixed_ppl", "mixed_wer")}
    name = str(options.pop("name", ""))
    return Line(table, number, lm, kind, where, as_numbers(options), **figures, given_name=name)


@functools.cache
def paper_content() -> Config:
    """Content of paper.yaml."""
    return dict(yaml.safe_load(FILE.read_text(encoding="utf-8")))


@functools.cache
def paper_tables() -> Tables:
    """The paper's tables, in the sizes of the recipes of its corpora."""
    content = paper_content()
    lines = {name: parse_lines(name, rows, FILE) for name, rows in content["tables"].items()}
    return Tables(lines, content["sizes"], content["shared"])
