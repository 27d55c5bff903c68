"""The studies of a results file: over the share of the training text, over the LMs' width."""

from __future__ import annotations

import dataclasses
from typing import Callable, Dict, List, Optional, Tuple

from lab.cells import Values, cell, change, table
from lab.paper import NAMES, UNCERTAIN
from lab.plan import NGRAM, POINT, TRAIN, UNIT, Entry, backbone
from lab.results import Results, Run, Runs, ppl_of, wer_of

TITLES = {TRAIN: "Over the share of the training text", UNIT: "Over the width"}
# What the widths are of.
UNITS = {"lstm": "embedding and hidden layers", "transformer": "feed-forward modules"}


@dataclasses.dataclass(frozen=True)
class Curve:
    """A system over a study.

    Attributes:
        label: Name of the system in tables.
        kind: Kind of its line.
        role: Role of the system.
        name: Name of the system.
        base: The system that it is compared with.
    """

    label: str
    kind: str
    role: str
    name: str
    base: str


class Study:
    """One study of one backbone.

    Args:
        results: The results.
        study: `train` or `unit`.
        lm: The backbone.
    """

    def __init__(self, results: Results, study: str, lm: str):
        self.results, self.study, self.lm = results, study, lm
        self.runs: Dict[int, Dict[int, Run]] = {}
        parts = [run for run in results.runs if run.study == study]
        for run in [*parts, *results.whole.values()]:
            place = self._place(run)
            if place is not None:
                self.runs.setdefault(place, {})[run.seed] = run
        self.places = sorted(self.runs)
        self.curves = [curve for curve in self._curves() if self._is_studied(curve)]

    def __bool__(self) -> bool:
        """True if there is something beside the LMs of the tables."""
        return len(self.places) > 1 and bool(self.curves)

    def _place(self, run: Run) -> Optional[int]:
        """Place of a folder on the axis; None if it has nothing of the backbone."""
        point = f"point_{self.lm}"
        if not ppl_of({0: run}, f"{point}+{self.results.ngram}", self.results.test):
            return None
        if run.study != "all":
            return int(run.value)
        if self.study == TRAIN:
            return 100
        unit = run.lms[point].unit if point in run.lms else None
        return None if unit is None else int(unit)

    def _curves(self) -> List[Curve]:
        found = []
        for entry in self.results.lines:
            kind = self._kind(entry)
            for role in (NGRAM, POINT) if kind else ():
                if role in entry.systems:
                    label = self.results.role_label(entry, role)
                    name = entry.systems[role]
                    found.append(Curve(label, kind, role, name, entry.base or ""))
        return found

    def _kind(self, entry: Entry) -> str:
        """Kind that a line is drawn as; empty where it is not of the backbone alone.

        A mixture is drawn as the first of its LMs.
        """
        if not entry.is_mixture:
            return str(entry.line.kind) if entry.line.lm == self.lm else ""
        names = entry.line.where.split("+")
        if {backbone(name) for name in names} != {self.lm}:
            return ""
        kind = names[0].partition("_")[0]
        return "point" if kind == "half" else kind

    def _is_studied(self, curve: Curve) -> bool:
        """True if a system was evaluated at another place than the tables' LMs."""
        runs = (run for seeds in self.runs.values() for run in seeds.values())
        others = [{0: run} for run in runs if run.study == self.study]
        return any(ppl_of(run, curve.name, self.results.test) for run in others)

    def _values(self, value: Callable[..., Values], *of: str) -> Dict[int, Values]:
        """{place: {seed: value}}, where there is one."""
        found = {place: value(self.runs[place], *of) for place in self.places}
        return {place: values for place, values in found.items() if values}

    def ppl(self, name: str) -> Dict[int, Values]:
        """Perplexities of the test set."""
        return self._values(ppl_of, name, self.results.test)

    def wer(self, name: str) -> Dict[int, Values]:
        """Pooled word error rates of the test set in %."""
        return self._values(wer_of, name, self.results.test)

    def change(self, curve: Curve) -> Dict[int, Values]:
        """Change of a system's perplexity against its base there, in %."""
        values, base = self.ppl(curve.name), self.ppl(curve.base)
        return {n: change(values[n], base[n]) for n in values if n in base}

    def significant(self, curve: Curve, place: int) -> bool:
        """True if a system makes significantly fewer errors at every seed."""
        systems = [run.systems.get(curve.name) for run in self.runs[place].values()]
        tests = [s.tests.get(curve.base) for s in systems if s and s.errors]
        return bool(tests) and all(test is not None and test.better for test in tests)

    def snr(self) -> List[Tuple[Entry, Dict[int, Values]]]:
        """Uncertain lines, each with {place: {seed: median signal-to-noise ratio}}."""
        entries = self.results.of_backbone(self.lm)
        uncertain = [entry for entry in entries if entry.line.kind in UNCERTAIN]
        found = [(entry, self._values(snr_of, entry.name)) for entry in uncertain]
        return [(entry, values) for entry, values in found if len(values) > 1]


def snr_of(runs: Runs, name: str) -> Values:
    """Median signal-to-noise ratio of an LM by seed."""
    lms = {seed: run.lms[name] for seed, run in runs.items() if name in run.lms}
    return {seed: lm.median_snr for seed, lm in lms.items() if lm.median_snr is not None}


def studies(results: Results, study: str) -> Dict[str, Study]:
    """{backbone: study} of those that were made."""
    found = {lm: Study(results, study, lm) for lm in results.backbones()}
    return {lm: value for lm, value in found.items() if value}


def study_tables(results: Results, study: str) -> str:
    """Tables of a study of all backbones; nothing where there is none."""
    parts = []
    for lm, found in studies(results, study).items():
        what = "share of the training text in %" if study == TRAIN else f"width of {UNITS[lm]}"
        parts.append(f"{NAMES[lm]}, {what}. Perplexity of {results.test}:\n")
        parts.append(_table(found, found.ppl, digits=1))
        parts.append(
            "Change of that perplexity against the point-estimate LM + n-gram there, in %:\n"
        )
        parts.append(_change_table(found))
        if any(map(found.wer, (curve.name for curve in found.curves))):
            parts.append(f"Pooled word error rate of {results.test} in %, † as above:\n")
            parts.append(_table(found, found.wer, digits=2))
    return "\n".join(parts)


def _table(study: Study, values: Callable[[str], Dict[int, Values]], *, digits: int) -> str:
    results = study.results
    names = {results.ngram: results.ngram_label, **{c.name: c.label for c in study.curves}}
    marked = {c.name: c for c in study.curves} if digits == 2 else {}
    rows = []
    for name, label in names.items():
        found = values(name)
        cells = []
        for place in study.places:
            mark = " †" if name in marked and study.significant(marked[name], place) else ""
            cells.append(cell(found.get(place, {}), list(study.runs[place]), digits) + mark)
        rows.append([label, *cells])
    return table(["", *map(str, study.places)], rows)


def _change_table(study: Study) -> str:
    rows = []
    for curve in (c for c in study.curves if c.name != c.base):
        values = study.change(curve)
        cells = (cell(values.get(n, {}), list(study.runs[n]), 2) for n in study.places)
        rows.append([curve.label, *cells])
    return table(["", *map(str, study.places)], rows)
