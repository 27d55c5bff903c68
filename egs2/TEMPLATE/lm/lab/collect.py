"""Collects what a table's stages left in exp/SIZE/seedN and the folders in it."""

from __future__ import annotations

import dataclasses
import logging
import math
import re
from pathlib import Path
from typing import Dict, List, Mapping, Optional, Sequence, Set, Tuple

import numpy as np
import torch
import yaml

from espnet_bayeslm.bayes.base_kinds import NOISE_STEP
from espnet_bayeslm.evaluation.signal_to_noise import BIN_EDGES, SnrSummary
from espnet_bayeslm.kinds.architectures import shares
from espnet_bayeslm.kinds.bayes import LOG_STD, PRIOR_MEAN, START_STD
from espnet_bayeslm.loading.experiment import load_state, read_checkpoint
from espnet_bayeslm.report.score_results import read_perplexities
from espnet_bayeslm.report.search_results import describe_choices, read_search
from espnet_bayeslm.report.weight_noise import SNR, read_snr
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.espnet_versions import epoch_seconds
from espnet_bayeslm.utils.files import read_lines, write_json
from lab.cells import mean
from lab.paper import MIXTURE, UNCERTAIN
from lab.plan import POINT, UNIT, Entry, Settings, backbone, chosen_lines, entry_of
from lab.results import Epoch, Ranked, Results, Run, Search, System, Training
from lab.train import BEST
from lab.word_errors import Lists, Rescored, list_errors, read_lists

CHECKPOINT = "checkpoint.pth"
# The stages that make what may be missing.
TRAINING, PERPLEXITY, RESCORING = 4, 5, 6


def collect(settings: Settings) -> Results:
    """Collect the results of a table, and write them to `settings.results`."""
    lists = read_lists(settings.data / "nbest", settings.sets)
    parts = [
        part
        for seed in settings.seeds
        for part in find_parts(settings.seed_folder(seed), seed, settings.study)
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
        self.controls = find_controls(part.path, settings.ngram, own)
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
            searches=read_searches(self.part.path),
        )

    def _trained(self) -> List[str]:
        """LMs that are trained: those of the lines, and the first halves."""
        lms = [line for line in self.lines if line.kind != MIXTURE]
        halves = sorted({f"half_{line.lm}" for line in lms})
        every = dict.fromkeys([*halves, *(line.name for line in lms)])
        return [name for name in every if is_trained(self.part.path / name)]

    def _lm(self, name: str) -> Training:
        found = read_training(self.part.path / name, self.part.path / "snr" / name)
        # the width of a study is given to the training beside its configuration
        if self.part.study == UNIT:
            found.unit = self.part.value
        return found

    def _system(self, name: str) -> System:
        """Figures of a system, and which stage makes what is missing."""
        path = self.part.path
        found = System(read_perplexity(path, name, self.settings.sets))
        if found.perplexity is None:
            lms = [path / lm for lm in name.split("+") if lm != self.settings.ngram]
            found.missing = "evaluated" if all(map(is_trained, lms)) else "trained"
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


@dataclasses.dataclass(frozen=True)
class Part:
    """A folder of experiments: all of the training text, a share of it, or another width.

    Attributes:
        seed: The seed of its trainings.
        study: `all`, `train` (a share of the training text) or `unit` (another width).
        value: The share in % of `train`, the width of `unit`, 0 of `all`.
        path: The folder.
    """

    seed: int
    study: str
    value: int
    path: Path


def find_parts(folder: Path, seed: int, study: Optional[str]) -> List[Part]:
    """Folders of a seed: its own and, of a study, the trainP or unitU in it that exist."""
    found = [Part(seed, "all", 0, folder)]
    for path in folder.glob(f"{study}*"):
        match = re.fullmatch(rf"{study}(\d+)", path.name)
        if study and match and path.is_dir():
            found.append(Part(seed, study, int(match[1]), path))
    return sorted(found, key=lambda part: part.value)


def is_trained(folder: Path) -> bool:
    """True if a training is complete."""
    return (folder / BEST).exists() and (folder / CHECKPOINT).exists()


def read_training(folder: Path, snr: Path) -> Training:
    """Figures of a trained LM.

    Args:
        folder: The experiment of the LM.
        snr: Folder of its signal-to-noise ratios, if there are any.
    """
    reporter = read_checkpoint(folder / CHECKPOINT)["reporter"]["stats"]
    stats = [reporter[epoch] for epoch in sorted(reporter) if "valid" in reporter[epoch]]
    seconds = [epoch_seconds(part["time"]) for s in stats for part in s.values() if "time" in part]
    config = folder / "train.yaml"
    content = yaml.safe_load(config.read_text(encoding="utf-8")) if config.exists() else {}
    lm_conf = content.get("lm_conf") or {}
    ratios = read_ratios(snr / SNR)
    return Training(
        [_epoch(part["train"], part["valid"]) for part in stats],
        sum(seconds) / 60,
        *count_parameters(load_state(folder / BEST)),
        lm_conf.get("unit"),
        lm_conf.get("uncertainty"),
        ratios,
        pooled_median(ratios) if ratios else None,
    )


def count_parameters(state: Mapping[str, torch.Tensor]) -> Tuple[int, int]:
    """Number of an LM's parameters, without standard deviations, and of its random ones.

    Args:
        state: Its state_dict. Tensors that share their memory are one; buffers of the prior and of
            the noise are none.
    """
    found: Dict[bool, Dict[int, int]] = {True: {}, False: {}}
    for key, tensor in state.items():
        if not key.endswith((PRIOR_MEAN, START_STD, NOISE_STEP)):
            found[key.endswith(LOG_STD)][tensor.data_ptr()] = tensor.numel()
    return sum(found[False].values()), sum(found[True].values())


def _epoch(train: Mapping[str, float], valid: Mapping[str, float]) -> Epoch:
    return Epoch(float(train["nll"]), float(train.get("kl", 0.0)), float(valid["ppl"]))


def read_ratios(path: Path) -> List[SnrSummary]:
    """Signal-to-noise ratios of an LM by location; empty if there is no file."""
    if not path.exists():
        return []
    lms, _ = read_snr([str(path)])
    return [row.summary for rows in lms.values() for row in rows if row.summary]


def pooled_median(summaries: Sequence[SnrSummary]) -> float:
    """Median ratio of several locations together, from their histograms.

    Within the bin of the median, of which there are 20 a decade, it is interpolated.
    """
    if len(summaries) == 1:
        return summaries[0].median
    counts = np.sum([summary.histogram for summary in summaries], axis=0)
    below = np.concatenate([[0], np.cumsum(counts)])
    half = below[-1] / 2
    place = int(np.searchsorted(below, half, side="left")) - 1
    share = (half - below[place]) / counts[place]
    low, high = np.log10(BIN_EDGES[place : place + 2])
    return float(10 ** (low + share * (high - low)))


def read_perplexity(folder: Path, system: str, sets: Sequence[str]) -> Optional[Dict[str, float]]:
    """{set: perplexity} of a system, None where one is missing.

    It is that of the mixture or the only LM, out-of-vocabulary words left out.
    """
    paths = {name: folder / "perplexity" / system / f"{name}.json" for name in sets}
    if not all(path.exists() for path in paths.values()):
        return None
    rows = {name: read_perplexities([(system, str(path))])[0].rows for name, path in paths.items()}
    return {name: row[-1].perplexity_without_oov["word"] or math.nan for name, row in rows.items()}


def read_searches(folder: Path) -> Dict[str, Search]:
    """{folder: search} of the architecture searches."""
    found = {}
    for path in sorted(folder.glob("search_*/search.json")):
        search = read_search(str(path.parent))
        ranking = [
            Ranked(rank, describe_choices(item.choices), math.exp(item.mean_log_prob))
            for rank, item in enumerate(search.ranking, 1)
        ]
        found[path.parent.name] = Search([shares(run.weights) for run in search.runs], ranking)
    return found


def find_controls(folder: Path, ngram: str, known: Set[str]) -> List[str]:
    """Mixtures of point-estimate LMs of one backbone that are no line's own.

    Args:
        folder: A folder of experiments.
        ngram: Name of the n-gram.
        known: Systems of the lines.
    """
    found = []
    for path in sorted((folder / "perplexity").glob(f"*+{ngram}")):
        lms = [name for name in path.name.split("+") if name != ngram]
        of_points = all(name.startswith("point_") for name in lms)
        several = len(lms) > 1 and len(set(map(backbone, lms))) == 1
        if path.name not in known and of_points and several:
            found.append(path.name)
    return found
