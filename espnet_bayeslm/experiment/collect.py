"""Puts what a table's stages left into one file, from which tables, figures and report are made."""

from __future__ import annotations

import logging
from typing import Dict, List, Mapping, Optional, Sequence

from espnet_bayeslm.configs.tables import MIXTURE, UNCERTAIN
from espnet_bayeslm.experiment import outputs
from espnet_bayeslm.experiment.cells import mean
from espnet_bayeslm.experiment.outputs import PERPLEXITY, RESCORING, TRAINING, Json, Part
from espnet_bayeslm.experiment.plan import (
    POINT,
    UNIT,
    Settings,
    backbone,
    base_of,
    chosen_lines,
    line_entry,
    line_systems,
)
from espnet_bayeslm.experiment.view import View
from espnet_bayeslm.experiment.word_errors import (
    LISTS_STAGE,
    Lists,
    Rescored,
    list_errors,
    read_lists,
)
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import read_lines, write_json


def collect(settings: Settings) -> Json:
    """All results of a table, and write them to `settings.results`.

    Raises:
        InputError: An output is broken, the conditions of the lists differ between the sets, or no
            line has been evaluated.
    """
    lists = read_lists(settings.data / "nbest", settings.sets)
    study = settings.study
    folder = settings.seed_folder
    parts = [part for n in settings.seeds for part in outputs.find_parts(folder(n), n, study)]
    runs = [Collector(settings, part, lists).run() for part in parts]
    check_any(settings, runs)
    statistics = settings.data / "statistics.txt"
    content = {
        "table": settings.table,
        "study": study,
        "size": settings.size,
        "seeds": list(settings.seeds),
        "sets": list(settings.sets),
        "order": settings.plan.order,
        "paper": settings.plan.paper,
        "ngram": settings.ngram,
        "conditions": lists.conditions if lists else [],
        "missing_lists": None if lists else f"stage {LISTS_STAGE} makes them",
        "statistics": [line for _, line in read_lines(statistics)] if statistics.exists() else [],
        "lists": {name: list_errors(lists, name) for name in settings.sets} if lists else {},
        "lines": [line_entry(settings, line) for line in settings.lines],
        "runs": runs,
    }
    add_chosen(settings, content, lists)
    write_json(settings.results, content)
    return content


def check_any(settings: Settings, runs: Sequence[Json]) -> None:
    """Check that one of the table's LMs has been evaluated.

    Raises:
        InputError: None has; it says which stage is next.
    """
    ngram = settings.ngram
    if any(s["perplexity"] for run in runs for n, s in run["systems"].items() if n != ngram):
        return
    trained = any(run["lms"] for run in runs)
    what = "evaluated" if trained else "trained"
    stages = f"{PERPLEXITY} and {RESCORING}" if trained else f"{TRAINING} to {RESCORING}"
    raise InputError(
        f"no LM of table {settings.table} has been {what}"
        f" (size {settings.size}, seeds {', '.join(map(str, settings.seeds))})",
        path=settings.folder,
        remedy=f"Run stages {stages} first.",
    )


class Collector:
    """Reads one folder of experiments.

    Args:
        settings: What is collected.
        part: The folder.
        lists: References of the N-best lists, where there are lists.
    """

    def __init__(self, settings: Settings, part: Part, lists: Optional[Lists]):
        self.settings, self.part = settings, part
        self.lines = chosen_lines(settings.lines, "both", (), part.seed, mixtures=True)
        self.rescored = Rescored(part.path, lists, settings.sets) if lists else None
        own = {name for line in self.lines for _, name in line_systems(line, settings.ngram)}
        self.controls = outputs.find_controls(part.path, settings.ngram, own)
        self.names = [settings.ngram, *sorted(own), *self.controls]

    def run(self) -> Json:
        """Folder's LMs, systems, tests and searches."""
        logging.info(f"Reading {self.part.path}")
        systems = {name: self._system(name) for name in self.names}
        self._add_alone(systems)
        self._add_tests(systems)
        return {
            "seed": self.part.seed,
            "study": self.part.study,
            "value": self.part.value,
            "lms": {name: self._lm(name) for name in self._trained()},
            "systems": systems,
            "controls": self.controls,
            "searches": outputs.read_searches(self.part.path),
        }

    def _trained(self) -> List[str]:
        """LMs that are trained: the lines' own, the first halves."""
        backbones = sorted({line.lm for line in self.lines if line.kind != MIXTURE})
        names = [line.name for line in self.lines if line.kind != MIXTURE]
        every = dict.fromkeys([*(f"half_{lm}" for lm in backbones), *names])
        return [name for name in every if outputs.is_trained(self.part.path / name)]

    def _lm(self, name: str) -> Json:
        found = outputs.read_lm(self.part.path / name)
        if self.part.study == UNIT:  # given to the training beside its configuration
            found["unit"] = self.part.value
        return {**found, "snr": outputs.read_snr_rows(self.part.path / "snr" / name)}

    def _system(self, name: str) -> Json:
        """Figures of a system, and what is missing of them and which stage makes it."""
        dev = self.settings.sets[0]
        found: Json = {
            "perplexity": outputs.read_perplexity(self.part.path, name, self.settings.sets),
            "weights": outputs.read_weights(self.part.path, name),
            "scales": {},
            "errors": {},
            "tests": {},
            "missing": None,
        }
        if found["perplexity"] is None:
            found["missing"] = self._missing_perplexity(name)
        if self.rescored is None or self.settings.ngram not in name.split("+"):
            return found
        texts = self.rescored.missing(name)
        if not texts:
            found["errors"] = self.rescored.errors(name)
            conditions = self.rescored.lists.conditions
            found["scales"] = outputs.read_tuned(self.part.path, name, dev, conditions)
        elif found["missing"] is None:
            found["missing"] = f"no {texts[0]} (stage {RESCORING})"
        return found

    def _missing_perplexity(self, name: str) -> str:
        lms = [lm for lm in name.split("+") if lm != self.settings.ngram]
        untrained = [lm for lm in lms if not outputs.is_trained(self.part.path / lm)]
        if untrained:
            return f"{untrained[0]} is not trained (stage {TRAINING})"
        return f"no perplexities (stage {PERPLEXITY})"

    def _add_alone(self, systems: Dict[str, Json]) -> None:
        """Take an LM's own perplexity from a mixture that it is in, where it has no file."""
        for name, system in systems.items():
            if system["perplexity"] is not None or "+" in name:
                continue
            for other in (systems[n] for n in systems if "+" in n):
                found = other["perplexity"]
                if found and all(name in part["components"] for part in found.values()):
                    system["perplexity"] = {
                        key: {"ppl": part["components"][name]} for key, part in found.items()
                    }
                    system["missing"] = None
                    break

    def _add_tests(self, systems: Dict[str, Json]) -> None:
        """Test each system against its base."""
        if self.rescored is None:
            return
        for line in self.lines:
            base = base_of(self.settings, line)
            for _, name in line_systems(line, self.settings.ngram):
                add_test(self.rescored, systems, name, base)
        for name in self.controls:
            lm = backbone(name.partition("+")[0])
            add_test(self.rescored, systems, name, f"point_{lm}+{self.settings.ngram}")


def add_test(
    rescored: Rescored, systems: Mapping[str, Json], name: str, other: Optional[str]
) -> None:
    """Test two systems, if both have been rescored."""
    if other is None or other == name or not {name, other} <= systems.keys():
        return
    if systems[name]["errors"] and systems[other]["errors"]:
        systems[name]["tests"][other] = rescored.test(name, other)


def add_chosen(settings: Settings, content: Json, lists: Optional[Lists]) -> None:
    """Name each backbone's best uncertain line, and test it against lines without uncertainty.

    It is the line whose mixture with n-gram and point-estimate LM has the lowest perplexity of the
    dev set, mean over the seeds: the test set has no say in it.
    """
    view = View(content)
    content["chosen"] = {}
    for lm in dict.fromkeys(line["lm"] for line in view.lines):
        best = best_line(view, lm)
        if best is None:
            continue
        content["chosen"][lm] = best["number"]
        if lists is None:
            continue
        for seed, run in view.whole.items():
            rescored = Rescored(settings.seed_folder(seed), lists, settings.sets)
            for other in view.control_systems(run, lm):
                add_test(rescored, run["systems"], best["systems"][POINT], other)


def best_line(view: View, lm: str) -> Optional[Json]:
    """Chosen line of a backbone; None where no uncertain line was evaluated."""
    found = []
    for line in view.of_backbone(lm):
        values = view.ppl(line["systems"].get(POINT), view.dev)
        if values and line["kind"] in UNCERTAIN and not is_point(view, line):
            # those of the most seeds first: a mean of fewer is not comparable
            found.append((-len(values), mean(values), line["number"], line))
    return min(found, key=lambda item: item[:3])[3] if found else None


def is_point(view: View, line: Json) -> bool:
    """Whether the search left an uncertain line no uncertain location at any seed."""
    found = [lm["uncertainty"] for lm in view.lms(line["name"]).values()]
    return bool(found) and all(value == {} for value in found)
