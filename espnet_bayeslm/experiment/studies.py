"""The studies of a results file: over the share of the training text, over the LMs' width."""

from __future__ import annotations

import dataclasses
from typing import Callable, Dict, List, Optional, Tuple

from espnet_bayeslm.configs.tables import NAMES, UNCERTAIN
from espnet_bayeslm.experiment.cells import Values, cell, change, table
from espnet_bayeslm.experiment.outputs import Json
from espnet_bayeslm.experiment.plan import NGRAM, POINT, TRAIN, UNIT, backbone
from espnet_bayeslm.experiment.view import View
from espnet_bayeslm.experiment.word_errors import POOLED

TITLES = {TRAIN: "Over the share of the training text", UNIT: "Over the width"}
# What the widths are of.
UNITS = {"lstm": "embedding and hidden layers", "transformer": "feed-forward modules"}


@dataclasses.dataclass(frozen=True)
class Curve:
    """A system over a study.

    Attributes:
        label: What it is called.
        kind: Kind of its line.
        role: What it is interpolated with.
        name: The system.
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
        view: The results.
        study: `train` or `unit`.
        lm: The backbone.
    """

    def __init__(self, view: View, study: str, lm: str):
        self.view, self.study, self.lm = view, study, lm
        self.runs: Dict[int, Dict[int, Json]] = {}
        for run in [*view.parts(study), *view.whole.values()]:
            place = self._place(run)
            if place is not None:
                self.runs.setdefault(place, {})[run["seed"]] = run
        self.places = sorted(self.runs)
        self.curves = [curve for curve in self._curves() if self._is_studied(curve)]

    def __bool__(self) -> bool:
        """Whether there is something beside the LMs of the tables."""
        return len(self.places) > 1 and bool(self.curves)

    def _place(self, run: Json) -> Optional[int]:
        """Where a folder stands on the axis; None where it has nothing of the backbone."""
        point = f"point_{self.lm}"
        if not run["systems"].get(f"{point}+{self.view.ngram}", {"perplexity": None})["perplexity"]:
            return None
        if run["study"] != "all":
            return int(run["value"])
        if self.study == TRAIN:
            return 100
        unit = run["lms"].get(point, {"unit": None})["unit"]
        return None if unit is None else int(unit)

    def _curves(self) -> List[Curve]:
        found = []
        for line in self.view.lines:
            kind = self._kind(line)
            for role in (NGRAM, POINT) if kind else ():
                if role in line["systems"]:
                    label = self.view.role_label(line, role)
                    name = line["systems"][role]
                    found.append(Curve(label, kind, role, name, line["base"]))
        return found

    def _kind(self, line: Json) -> str:
        """Kind that a line is drawn as; empty where it is not of the backbone alone.

        A mixture is drawn as the first of its LMs.
        """
        if not self.view.is_mixture(line):
            return str(line["kind"]) if line["lm"] == self.lm else ""
        names = line["where"].split("+")
        if {backbone(name) for name in names} != {self.lm}:
            return ""
        kind = names[0].partition("_")[0]
        return "point" if kind == "half" else kind

    def _is_studied(self, curve: Curve) -> bool:
        """Whether a system was evaluated at another place than the tables' LMs."""
        others = [run for seeds in self.runs.values() for run in seeds.values()]
        return any(
            run["systems"].get(curve.name, {"perplexity": None})["perplexity"]
            for run in others
            if run["study"] == self.study
        )

    def values(self, name: str, value: Callable[[Json], Optional[float]]) -> Dict[int, Values]:
        """{place: {seed: value}} of a system."""
        found: Dict[int, Values] = {}
        for place in self.places:
            for seed, run in self.runs[place].items():
                system = run["systems"].get(name)
                number = None if system is None else value(system)
                if number is not None:
                    found.setdefault(place, {})[seed] = number
        return found

    def ppl(self, name: str) -> Dict[int, Values]:
        """Perplexities of the test set."""
        text = self.view.test
        return self.values(name, lambda s: s["perplexity"] and s["perplexity"][text]["ppl"])

    def wer(self, name: str) -> Dict[int, Values]:
        """Pooled word error rates of the test set in %."""
        text = self.view.test
        return self.values(
            name, lambda s: s["errors"][text][POOLED]["wer"] if s["errors"] else None
        )

    def change(self, curve: Curve) -> Dict[int, Values]:
        """Change of a system's perplexity against its base there, in %."""
        values, base = self.ppl(curve.name), self.ppl(curve.base)
        return {n: change(values[n], base[n]) for n in values if n in base}

    def significant(self, curve: Curve, place: int) -> bool:
        """Whether a system makes significantly fewer errors at every seed."""
        systems = [run["systems"].get(curve.name) for run in self.runs[place].values()]
        tests = [s["tests"].get(curve.base) for s in systems if s and s["errors"]]
        return bool(tests) and all(test is not None and test["better"] for test in tests)

    def snr(self) -> List[Tuple[Json, Dict[int, Values]]]:
        """Uncertain lines, each with {place: {seed: median signal-to-noise ratio}}."""
        found = []
        for line in self.view.of_backbone(self.lm):
            values: Dict[int, Values] = {}
            for place in self.places if line["kind"] in UNCERTAIN else []:
                for seed, run in self.runs[place].items():
                    rows = run["lms"].get(line["name"], {"snr": []})["snr"]
                    if rows:  # the last is of all locations
                        values.setdefault(place, {})[seed] = rows[-1]["median"]
            if len(values) > 1:
                found.append((line, values))
        return found


def studies(view: View, study: str) -> Dict[str, Study]:
    """{backbone: study} of those that were made."""
    found = {lm: Study(view, study, lm) for lm in view.backbones()}
    return {lm: value for lm, value in found.items() if value}


def study_tables(view: View, study: str) -> str:
    """Tables of a study of all backbones; nothing where there is none."""
    parts = []
    for lm, found in studies(view, study).items():
        what = "share of the training text in %" if study == TRAIN else f"width of {UNITS[lm]}"
        parts.append(f"{NAMES[lm]}, {what}. Perplexity of {view.test}:\n")
        parts.append(_table(found, found.ppl, digits=1))
        parts.append(
            "Change of that perplexity against the point-estimate LM + n-gram there, in %:\n"
        )
        parts.append(_change_table(found))
        if any(map(found.wer, (curve.name for curve in found.curves))):
            parts.append(f"Pooled word error rate of {view.test} in %, † as above:\n")
            parts.append(_table(found, found.wer, digits=2))
    return "\n".join(parts)


def _table(study: Study, values: Callable[[str], Dict[int, Values]], *, digits: int) -> str:
    view = study.view
    names = {view.ngram: view.ngram_label, **{c.name: c.label for c in study.curves}}
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
