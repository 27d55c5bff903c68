"""Collects what a table's stages left, for tables, figures and report."""

from __future__ import annotations

import dataclasses
import logging
from typing import List, Mapping, Optional, Sequence

from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import read_lines, write_json
from lab import outputs
from lab.cells import mean
from lab.outputs import PERPLEXITY, RESCORING, TRAINING, Part
from lab.paper import MIXTURE, UNCERTAIN
from lab.plan import POINT, UNIT, Entry, Settings, backbone, chosen_lines, entry_of
from lab.results import Results, Run, System, Training
from lab.word_errors import Lists, Rescored, list_errors, read_lists


def collect(settings: Settings) -> Results:
    """Collect the results of a table, and write them to `settings.results`."""
    lists = read_lists(settings.data / "nbest", settings.sets)
    parts = [
        part
        for seed in settings.seeds
        for part in outputs.find_parts(settings.seed_folder(seed), seed, settings.study)
    ]
    runs = [Collector(settings, part, lists).run() for part in parts]
    check_any(settings, runs)
    statistics = settings.data / "statistics.txt"
    results = Results(
        table=settings.table,
        study=settings.study,
        size=settings.size,
        seeds=list(settings.seeds),
        sets=list(settings.sets),
        order=settings.plan.order,
        ngram=settings.ngram,
        paper=settings.plan.paper,
        conditions=lists.conditions if lists else [],
        statistics=[line for _, line in read_lines(statistics)] if statistics.exists() else [],
        lists={name: list_errors(lists, name) for name in settings.sets} if lists else {},
        lines=[entry_of(settings, line) for line in settings.lines],
        runs=runs,
    )
    add_chosen(settings, results, lists)
    write_json(settings.results, dataclasses.asdict(results))
    return results


def check_any(settings: Settings, runs: Sequence[Run]) -> None:
    """Check that one of the table's LMs has been evaluated."""
    if any(s.perplexity for run in runs for n, s in run.systems.items() if n != settings.ngram):
        return
    trained = any(run.lms for run in runs)
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
        settings: The table.
        part: The folder.
        lists: References of the N-best lists, where there are lists.
    """

    def __init__(self, settings: Settings, part: Part, lists: Optional[Lists]):
        self.settings, self.part = settings, part
        self.lines = chosen_lines(settings.lines, "both", (), part.seed, mixtures=True)
        self.entries = [entry_of(settings, line) for line in self.lines]
        self.rescored = Rescored(part.path, lists, settings.sets) if lists else None
        own = {name for entry in self.entries for name in entry.systems.values()}
        self.controls = outputs.find_controls(part.path, settings.ngram, own)
        self.names = [settings.ngram, *sorted(own), *self.controls]

    def run(self) -> Run:
        """Collect LMs, systems, tests and searches of the folder."""
        logging.info(f"Reading {self.part.path}")
        systems = {name: self._system(name) for name in self.names}
        self._add_tests(systems)
        return Run(
            seed=self.part.seed,
            study=self.part.study,
            value=self.part.value,
            lms={name: self._lm(name) for name in self._trained()},
            systems=systems,
            controls=self.controls,
            searches=outputs.read_searches(self.part.path),
        )

    def _trained(self) -> List[str]:
        """LMs that are trained: those of the lines, and the first halves."""
        lms = [line for line in self.lines if line.kind != MIXTURE]
        halves = sorted({f"half_{line.lm}" for line in lms})
        every = dict.fromkeys([*halves, *(line.name for line in lms)])
        return [name for name in every if outputs.is_trained(self.part.path / name)]

    def _lm(self, name: str) -> Training:
        found = outputs.read_training(self.part.path / name, self.part.path / "snr" / name)
        # the width of a study is given to the training beside its configuration
        if self.part.study == UNIT:
            found.unit = self.part.value
        return found

    def _system(self, name: str) -> System:
        """Figures of a system, and which stage makes what is missing."""
        path = self.part.path
        found = System(outputs.read_perplexity(path, name, self.settings.sets))
        if found.perplexity is None:
            lms = [path / lm for lm in name.split("+") if lm != self.settings.ngram]
            found.missing = "evaluated" if all(map(outputs.is_trained, lms)) else "trained"
        if self.rescored is None or self.settings.ngram not in name.split("+"):
            return found
        if self.rescored.is_complete(name):
            found.errors = self.rescored.errors(name)
        else:
            found.missing = found.missing or "rescored"
        return found

    def _add_tests(self, systems: Mapping[str, System]) -> None:
        """Test each system against its base."""
        if self.rescored is None:
            return
        for entry in self.entries:
            for name in entry.systems.values():
                add_test(self.rescored, systems, name, entry.base)
        for name in self.controls:
            lm = backbone(name.partition("+")[0])
            add_test(self.rescored, systems, name, f"point_{lm}+{self.settings.ngram}")


def add_test(
    rescored: Rescored, systems: Mapping[str, System], name: str, other: Optional[str]
) -> None:
    """Test two systems, if both have been rescored."""
    if other is None or other == name or not {name, other} <= systems.keys():
        return
    if systems[name].errors and systems[other].errors:
        systems[name].tests[other] = rescored.test(name, other)


def add_chosen(settings: Settings, results: Results, lists: Optional[Lists]) -> None:
    """Name the best uncertain line of each backbone, and test it against lines without uncertainty.

    The best line's mixture with n-gram and point-estimate LM has the lowest perplexity of the dev
    set, mean over the seeds: the test set has no say in it.
    """
    for lm in results.backbones():
        best = best_line(results, lm)
        if best is None:
            continue
        results.chosen[lm] = best.line.number
        if lists is None:
            continue
        for seed, run in results.whole.items():
            rescored = Rescored(settings.seed_folder(seed), lists, settings.sets)
            for other in results.control_systems(run, lm):
                add_test(rescored, run.systems, best.systems[POINT], other)


def best_line(results: Results, lm: str) -> Optional[Entry]:
    """Best uncertain line of a backbone; None where no uncertain line was evaluated."""
    found = []
    for entry in results.of_backbone(lm):
        values = results.ppl(entry.systems.get(POINT), results.dev)
        if values and entry.line.kind in UNCERTAIN and not is_point(results, entry):
            # lines of the most seeds first: a mean of fewer is not comparable
            found.append((-len(values), mean(values), entry.line.number, entry))
    return min(found, key=lambda item: item[:3])[3] if found else None


def is_point(results: Results, entry: Entry) -> bool:
    """True if the search left an uncertain line no uncertain location at any seed."""
    found = [lm.uncertainty for lm in results.lms(entry.name).values()]
    return bool(found) and all(value == {} for value in found)
