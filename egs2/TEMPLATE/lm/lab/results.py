"""Results of a table: what its trainings and evaluations left, and values of it by seed."""

from __future__ import annotations

import dataclasses
from typing import Callable, Dict, List, Mapping, Optional, Sequence

from espnet_bayeslm.evaluation.signal_to_noise import SnrSummary
from espnet_bayeslm.evaluation.wer import ErrorCounts
from lab.cells import NOTHING, Values
from lab.paper import NAMES, UNCERTAIN
from lab.plan import ALONE, NGRAM, Entry, backbone

DAGGER, PARTLY, WORSE = "†", "(†)", "‡"
POOLED = "pooled"
# Condition, or POOLED -> word errors.
Errors = Dict[str, ErrorCounts]


@dataclasses.dataclass(frozen=True)
class Epoch:
    """An epoch: training NLL and KL in nats per token, perplexity of the validation text."""

    train_nll: float
    train_kl: float
    valid_ppl: float


@dataclasses.dataclass
class Training:
    """A trained LM.

    Attributes:
        epochs: Figures of each epoch.
        minutes: Time of training and validation.
        parameters: Number of parameters, without standard deviations.
        random: Number of random parameters.
        unit: Width of the LM.
        uncertainty: Location -> kind; empty for a point estimate, None if not known.
        snr: Signal-to-noise ratios by location.
        median_snr: Median ratio of all locations together, or None.
    """

    epochs: List[Epoch]
    minutes: float
    parameters: int
    random: int
    unit: Optional[int]
    uncertainty: Optional[Dict[str, str]]
    snr: List[SnrSummary] = dataclasses.field(default_factory=list)
    median_snr: Optional[float] = None


@dataclasses.dataclass(frozen=True)
class Test:
    """A system against another on the pooled test lists.

    Attributes:
        p: Two-sided probability of MAPSSWE.
        z: Statistic of MAPSSWE.
        segments: Number of segments.
        better: True if the system makes significantly fewer errors.
        worse: True if it makes significantly more.
        difference: WER of the other less that of the system, in points.
        low: Lower end of the bootstrap interval of the difference.
        high: Upper end.
    """

    p: float
    z: float
    segments: int
    better: bool
    worse: bool
    difference: float
    low: float
    high: float


@dataclasses.dataclass
class System:
    """An LM or a mixture.

    Attributes:
        perplexity: {set: perplexity}, or None where one is missing.
        errors: {set: word errors}; empty if the lists were not rescored.
        tests: {other system: test against it}.
        missing: Step that was not made: `trained`, `evaluated`, `rescored`, or None.
    """

    perplexity: Optional[Dict[str, float]] = None
    errors: Dict[str, Errors] = dataclasses.field(default_factory=dict)
    tests: Dict[str, Test] = dataclasses.field(default_factory=dict)
    missing: Optional[str] = None


@dataclasses.dataclass(frozen=True)
class Ranked:
    """An architecture of a search."""

    rank: int
    architecture: str
    probability: float


@dataclasses.dataclass(frozen=True)
class Search:
    """An architecture search.

    Attributes:
        shares: Of each run, {location: {kind: share of its path}}.
        ranking: The most probable architectures.
    """

    shares: List[Dict[str, Dict[str, float]]]
    ranking: List[Ranked]


@dataclasses.dataclass
class Run:
    """A folder of trainings and evaluations.

    Attributes:
        seed: The seed.
        study: `all`, `train` (a share of the training text) or `unit` (another width).
        value: The share in % or the width; 0 of `all`.
        lms: {name: training}.
        systems: {name: system}.
        controls: Mixtures of point-estimate LMs of one backbone.
        searches: {folder: search}.
    """

    seed: int
    study: str
    value: int
    lms: Dict[str, Training]
    systems: Dict[str, System]
    controls: List[str]
    searches: Dict[str, Search]


# Seed -> its folder.
Runs = Mapping[int, Run]


def ppl_of(runs: Runs, name: Optional[str], text: str) -> Values:
    """Perplexities of a system by seed."""
    return _of(runs, name, lambda s: s.perplexity[text] if s.perplexity else None)


def wer_of(runs: Runs, name: Optional[str], text: str, condition: str = POOLED) -> Values:
    """Word error rates of a system in % by seed, of a condition or pooled."""
    return _of(runs, name, lambda s: 100 * s.errors[text][condition].rate if s.errors else None)


def _of(runs: Runs, name: Optional[str], value: Callable[[System], Optional[float]]) -> Values:
    systems = {seed: run.systems[name] for seed, run in runs.items() if name in run.systems}
    found = {seed: value(system) for seed, system in systems.items()}
    return {seed: number for seed, number in found.items() if number is not None}


@dataclasses.dataclass
class Results:
    """Results of a table.

    Attributes:
        table: Name of the table.
        study: `train` or `unit` where the table studies the share of the text or the width.
        size: Size of the LMs.
        seeds: Seeds of the trainings.
        sets: Names of the dev set and of the test set.
        order: Order of the n-gram.
        ngram: Name of the n-gram in systems.
        paper: Corpus of the paper whose figures stand beside the results, or None.
        conditions: Conditions of the lists; empty if there are no lists.
        statistics: Lines about the text.
        lists: {set: {`first_pass` or `oracle`: word errors}} of the lists.
        lines: The lines.
        runs: The folders.
        chosen: {backbone: number of its best uncertain line}.
    """

    table: str
    study: Optional[str]
    size: str
    seeds: List[int]
    sets: List[str]
    order: int
    ngram: str
    paper: Optional[str]
    conditions: List[str]
    statistics: List[str]
    lists: Dict[str, Dict[str, Errors]]
    lines: List[Entry]
    runs: List[Run]
    chosen: Dict[str, int] = dataclasses.field(default_factory=dict)

    @property
    def dev(self) -> str:
        """Name of the dev set."""
        return self.sets[0]

    @property
    def test(self) -> str:
        """Name of the test set."""
        return self.sets[1]

    @property
    def ngram_label(self) -> str:
        """Name of the n-gram in tables."""
        return f"{self.order}-gram"

    @property
    def whole(self) -> Dict[int, Run]:
        """{seed: folder} of the LMs of all of the text, in the size's own width."""
        return {run.seed: run for run in self.runs if run.study == "all"}

    @property
    def columns(self) -> List[str]:
        """Columns of word error rates: the conditions, and the pool of several."""
        return [*self.conditions, *([POOLED] if len(self.conditions) > 1 else [])]

    def backbones(self) -> List[str]:
        """Backbones of the lines."""
        return [lm for lm in NAMES if self.of_backbone(lm)]

    def of_backbone(self, lm: str) -> List[Entry]:
        """Lines of a backbone."""
        return [entry for entry in self.lines if entry.line.lm == lm]

    def by_number(self, number: int) -> Entry:
        """Line of a number."""
        return next(entry for entry in self.lines if entry.line.number == number)

    def label(self, entry: Entry) -> str:
        """Name of a line in tables."""
        if entry.is_mixture:
            return " + ".join(map(self._component_label, entry.line.where.split("+")))
        seed = entry.line.options.get("seed")
        return entry.line.label + ("" if seed is None else f", seed {seed}")

    def numbered(self, entry: Entry) -> str:
        """Number and name of a line."""
        return f"{entry.line.number}. {self.label(entry)}"

    def system_label(self, system: str) -> str:
        """Name of a system in tables, from its line or its components."""
        for entry in self.lines:
            for role, name in entry.systems.items():
                if name == system:
                    return self.role_label(entry, role)
        return " + ".join(map(self._component_label, system.split("+")))

    def role_label(self, entry: Entry, role: str) -> str:
        """Name of a line's system in tables."""
        added = {ALONE: [], NGRAM: [self.ngram_label]}.get(role)
        if added is None:
            added = [NAMES[entry.line.lm], self.ngram_label]
        return " + ".join([self.label(entry), *added])

    def _component_label(self, name: str) -> str:
        if name == self.ngram:
            return self.ngram_label
        base, dot, seed = name.rpartition(".seed")
        if dot:
            return f"{self._component_label(base)} of seed {seed}"
        own = [entry for entry in self.lines if entry.name == name and not entry.is_mixture]
        if own:
            return self.label(own[0])
        label = {"point": "{}", "half": "half-trained {}"}.get(name.partition("_")[0], name)
        return label.format(NAMES.get(backbone(name), name))

    def system(self, seed: int, name: Optional[str]) -> Optional[System]:
        """Figures of a system, or None."""
        run = self.whole.get(seed)
        return run.systems.get(name) if run and name else None

    def lms(self, name: str) -> Dict[int, Training]:
        """Trainings of an LM by seed."""
        return {seed: run.lms[name] for seed, run in self.whole.items() if name in run.lms}

    def ppl(self, name: Optional[str], text: str) -> Values:
        """Perplexities of a system by seed."""
        return ppl_of(self.whole, name, text)

    def wer(self, name: Optional[str], text: str, condition: str = POOLED) -> Values:
        """Word error rates of a system in % by seed, of a condition or pooled."""
        return wer_of(self.whole, name, text, condition)

    def tests_of(
        self, name: Optional[str], other: Optional[str], seeds: Optional[Sequence[int]] = None
    ) -> Dict[int, Test]:
        """Tests of a system against another by seed, of all seeds or of some."""
        wanted = self.seeds if seeds is None else seeds
        systems = {seed: self.system(seed, name) for seed in wanted}
        return {seed: s.tests[other] for seed, s in systems.items() if s and other in s.tests}

    def mark(self, name: Optional[str], entry: Entry) -> str:
        """Mark of a system's significance against its line's base, empty for none."""
        tests = self.tests_of(name, entry.base, entry.seeds).values()
        better = [test.better for test in tests]
        if better and all(better):
            return DAGGER
        if any(better):
            return PARTLY
        return WORSE if tests and all(test.worse for test in tests) else NOTHING

    def control_systems(self, run: Run, lm: str) -> List[str]:
        """Systems of a backbone without an uncertain LM of the paper's families."""
        entries = [entry for entry in self.of_backbone(lm) if entry.line.kind not in UNCERTAIN]
        found = [name for e in entries for role, name in e.systems.items() if role != ALONE]
        mixtures = [name for name in run.controls if backbone(name.split("+")[0]) == lm]
        return [name for name in [*found, *mixtures] if name in run.systems]

    def missing(self, entry: Entry, seed: int) -> Optional[str]:
        """First step that was not made for a line: `trained`, `evaluated`, `rescored`, or None."""
        if seed not in self.whole:
            return "in --seeds"
        systems = (self.system(seed, name) for name in entry.systems.values())
        return next((s.missing for s in systems if s and s.missing), None)
