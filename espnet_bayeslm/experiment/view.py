"""What tables and figures ask of a results file: values by seed, and how they are written."""

from __future__ import annotations

from typing import Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from espnet_bayeslm.configs.tables import MIXTURE, NAMES, UNCERTAIN
from espnet_bayeslm.experiment.cells import NOTHING, Values
from espnet_bayeslm.experiment.outputs import Json
from espnet_bayeslm.experiment.plan import ALONE, NGRAM, backbone
from espnet_bayeslm.experiment.word_errors import POOLED

DAGGER, PARTLY, WORSE = "†", "(†)", "‡"
# Seed -> what was collected of its folder.
Runs = Mapping[int, Json]


def ppl_of(runs: Runs, name: Optional[str], text: str) -> Values:
    """System's perplexities by seed, unknown words left out."""
    return _of(runs, name, lambda s: s["perplexity"] and s["perplexity"][text]["ppl"])


def wer_of(runs: Runs, name: Optional[str], text: str, condition: str = POOLED) -> Values:
    """System's word error rates in % by seed, of a condition or pooled."""
    return _of(runs, name, lambda s: s["errors"][text][condition]["wer"] if s["errors"] else None)


def _of(runs: Runs, name: Optional[str], value: Callable[[Json], Optional[float]]) -> Values:
    """Value of a system by seed, where it has one."""
    systems = {seed: run["systems"][name] for seed, run in runs.items() if name in run["systems"]}
    found = {seed: value(system) for seed, system in systems.items()}
    return {seed: number for seed, number in found.items() if number is not None}


class View:
    """A results file.

    Args:
        content: What `collect` returned.
    """

    def __init__(self, content: Json):
        self.content = content
        self.table: str = content["table"]
        # the study that the table is of, `train` or `unit`
        self.study: Optional[str] = content["study"]
        self.seeds: List[int] = content["seeds"]
        self.dev, self.test = content["sets"]
        self.sets: List[str] = content["sets"]
        self.conditions: List[str] = content["conditions"]
        self.lines: List[Json] = content["lines"]
        self.ngram: str = content["ngram"]
        self.ngram_label = f"{content['order']}-gram"
        self.whole = {run["seed"]: run for run in content["runs"] if run["study"] == "all"}
        # of one condition the pool is that condition
        self.columns = [*self.conditions, *([POOLED] if len(self.conditions) > 1 else [])]

    def backbones(self) -> List[str]:
        """Backbones that the lines have."""
        return [lm for lm in NAMES if any(line["lm"] == lm for line in self.lines)]

    def of_backbone(self, lm: str) -> List[Json]:
        """Lines of a backbone."""
        return [line for line in self.lines if line["lm"] == lm]

    def by_number(self, number: int) -> Json:
        """Line of a number."""
        return next(line for line in self.lines if line["number"] == number)

    def label(self, line: Json) -> str:
        """Line's name."""
        if self.is_mixture(line):
            return " + ".join(map(self._component_label, line["where"].split("+")))
        seed = "" if line["seed"] is None else f", seed {line['seed']}"
        return f"{line['label']}{seed}"

    def numbered(self, line: Json) -> str:
        """Line's number and name."""
        return f"{line['number']}. {self.label(line)}"

    def system_label(self, system: str) -> str:
        """What a system is called, from its line or its components."""
        for line in self.lines:
            for role, name in line["systems"].items():
                if name == system:
                    return self.role_label(line, role)
        parts = [self._component_label(name) for name in system.split("+")]
        return " + ".join(parts)

    def role_label(self, line: Json, role: str) -> str:
        """Name of a line's system."""
        added = {ALONE: [], NGRAM: [self.ngram_label]}.get(role)
        if added is None:
            added = [NAMES[line["lm"]], self.ngram_label]
        return " + ".join([self.label(line), *added])

    def _component_label(self, name: str) -> str:
        if name == self.ngram:
            return self.ngram_label
        base, dot, seed = name.rpartition(".seed")
        if dot:
            return f"{self._component_label(base)} of seed {seed}"
        own = [line for line in self.lines if line["name"] == name and not self.is_mixture(line)]
        if own:
            return self.label(own[0])
        label = {"point": "{}", "half": "half-trained {}"}.get(name.partition("_")[0], name)
        return label.format(NAMES.get(backbone(name), name))

    def system(self, seed: int, name: Optional[str]) -> Optional[Json]:
        """Figures of a system."""
        return self.whole.get(seed, {"systems": {}})["systems"].get(name)

    def lms(self, name: str) -> Dict[int, Json]:
        """What is known of an LM's trainings, by seed."""
        return {seed: run["lms"][name] for seed, run in self.whole.items() if name in run["lms"]}

    def ppl(self, name: Optional[str], text: str) -> Values:
        """System's perplexities by seed, unknown words left out."""
        return ppl_of(self.whole, name, text)

    def wer(self, name: Optional[str], text: str, condition: str = POOLED) -> Values:
        """System's word error rates in % by seed, of a condition or pooled."""
        return wer_of(self.whole, name, text, condition)

    def tests_of(
        self, name: Optional[str], other: Optional[str], seeds: Optional[Sequence[int]] = None
    ) -> Dict[int, Json]:
        """Tests of a system against another by seed, of all seeds or of some."""
        wanted = self.seeds if seeds is None else seeds
        systems = {seed: self.system(seed, name) for seed in wanted}
        return {seed: s["tests"][other] for seed, s in systems.items() if s and other in s["tests"]}

    def mark(self, name: Optional[str], line: Json) -> str:
        """Mark of a system's significance against its line's base, empty for none."""
        tests = self.tests_of(name, line["base"], line["seeds"]).values()
        better = [test["better"] for test in tests]
        if better and all(better):
            return DAGGER
        if any(better):
            return PARTLY
        worse = [test["worse"] for test in tests]
        return WORSE if worse and all(worse) else NOTHING

    def control_systems(self, run: Json, lm: str) -> List[str]:
        """Backbone's systems without an uncertain LM that is of the paper's families."""
        lines = [line for line in self.of_backbone(lm) if line["kind"] not in UNCERTAIN]
        found = [name for x in lines for role, name in x["systems"].items() if role != ALONE]
        mixtures = [name for name in run["controls"] if backbone(name.split("+")[0]) == lm]
        return [name for name in [*found, *mixtures] if name in run["systems"]]

    def not_run(self) -> Iterator[Tuple[Json, str]]:
        """Lines of which something is missing, with what it is."""
        for line in self.lines:
            reasons: Dict[str, List[int]] = {}
            for seed in line["seeds"]:
                reason = self._missing(line, seed)
                if reason is not None:
                    reasons.setdefault(reason, []).append(seed)
            for reason, seeds in reasons.items():
                if line["seeds"] != self.seeds or seeds != self.seeds:
                    reason = f"seed {', '.join(map(str, seeds))}: {reason}"
                yield line, reason

    def _missing(self, line: Json, seed: int) -> Optional[str]:
        """What the first incomplete system of a line lacks."""
        if seed not in self.whole:
            return "a seed that was not asked for"
        for name in line["systems"].values():
            system = self.system(seed, name)
            if system is not None and system["missing"] is not None:
                return str(system["missing"])
        return None

    def is_mixture(self, line: Json) -> bool:
        """Whether a line only interpolates LMs of other lines."""
        return bool(line["kind"] == MIXTURE)
