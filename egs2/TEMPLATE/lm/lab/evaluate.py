"""The `bayeslm` commands that evaluate a table's LMs: of what is not there yet.

Interpolation weights (EM on the dev text), perplexities, rescored lists (LMWT and word penalty
with the fewest errors on the dev lists, for each condition) and signal-to-noise ratios.
"""

from __future__ import annotations

from pathlib import Path
from typing import Iterator, List, Optional, Sequence, Tuple

import yaml

from lab.paper import UNCERTAIN, Line
from lab.plan import Settings, chosen_lines, systems_of
from lab.texts import is_older, need, read_conditions
from lab.train import BEST, Place

# A command line; what is no string yet becomes one at the end.
Words = List[object]
System = Tuple[str, ...]


class Evaluation:
    """The commands for one folder of LMs.

    Args:
        settings: The table.
        place: The folder.
    """

    def __init__(self, settings: Settings, place: Place):
        self.settings, self.place = settings, place
        self.data, self.exp, self.ngram = settings.data, place.exp, place.ngram
        self.dev, self.test = settings.sets
        need({self.ngram: 2}, "n-gram")
        self.conditions = read_conditions(settings.data / "nbest")

    def folder(self, component: str) -> Path:
        """An LM's folder; `NAME.seed2` is another seed's."""
        name, dot, seed = component.rpartition(".seed")
        return self.exp.parent / f"seed{seed}" / name if dot else self.exp / component

    def trained(self, system: Sequence[str]) -> bool:
        """True if all LMs of a mixture are trained."""
        lms = (name for name in system if not self.is_ngram(name))
        return all((self.folder(name) / BEST).exists() for name in lms)

    def is_ngram(self, component: str) -> bool:
        """True if a component is the n-gram."""
        return component == self.settings.ngram

    def _missing(self, output: Path, system: Sequence[str], *inputs: Path) -> bool:
        """True if an output is missing, or older than an LM or an input."""
        models = [self.ngram if self.is_ngram(c) else self.folder(c) / BEST for c in system]
        return is_older(output, *models, *inputs)

    def _components(self, system: Sequence[str]) -> Words:
        words: Words = []
        for name in system:
            is_ngram = self.is_ngram(name)
            words += ["--ngram", self.ngram] if is_ngram else ["--lm", self.folder(name)]
        return [*words, "--cache", self.exp / "cache"]

    def _weights(self, system: System) -> Path:
        return self.exp / "weights" / f"{'+'.join(system)}.yaml"

    def perplexities(self, system: System) -> Iterator[Words]:
        """Commands for a mixture's weights and perplexities, or an LM's by itself."""
        components, weights = self._components(system), self._weights(system)
        anew = False
        if len(system) > 1:
            dev = self.data / self.dev / "text.plain"
            anew = self._missing(weights, system, dev)
            if anew:
                words = ["interpolate", "--text", dev, *components]
                yield [*words, "--output", weights]
            components += ["--weights", weights]
        for text in (self.dev, self.test):
            output = self.exp / "perplexity" / "+".join(system) / f"{text}.json"
            plain = self.data / text / "text.plain"
            if anew or self._missing(output, system, plain):
                words = ["perplexity", "--text", plain, *components]
                yield [*words, "--output", output]

    def rescoring(self, system: System) -> Iterator[Words]:
        """Commands that rescore the lists with a mixture that has the n-gram."""
        components, weights = self._components(system), self._weights(system)
        inputs: List[Path] = []
        if not any(map(self.is_ngram, system)):
            return
        if len(system) > 1:
            need({weights: 5}, "weights")
            components += ["--weights", weights]
            inputs = [weights]
        lists, outputs = self.data / "nbest", self.exp / "rescore" / "+".join(system)
        for condition in self.conditions:
            dev, test = (f"{name}_{condition}" for name in (self.dev, self.test))
            scales, anew = outputs / dev / "scales.yaml", False
            for name, tuning in (
                (dev, ["--tune_ref", lists / dev / "text"]),
                (test, ["--scales", scales, "--ref", lists / test / "text"]),
            ):
                # what dev tells is new for test as well
                anew |= self._missing(outputs / name / "text", system, lists / name, *inputs)
                if anew:
                    words = ["rescore", "--nbest", lists / name, "--nbest_format", "kaldi"]
                    yield [*words, *components, *tuning, "--output", outputs / name]

    def snr(self, line: Line) -> Iterator[Words]:
        """The command that measures an uncertain LM's signal-to-noise ratios.

        A search may choose that nothing is uncertain.
        """
        output, config = self.exp / "snr" / line.name, self.exp / line.name / "train.yaml"
        if not self.trained([line.name]):
            return
        content = yaml.safe_load(config.read_text(encoding="utf-8"))
        if content["lm_conf"]["uncertainty"] and self._missing(output / "snr.json", [line.name]):
            text = self.data / self.dev / "text.plain"
            yield ["snr", "--lm", self.exp / line.name, "--text", text, "--output", output]

    def systems(self, line: Line) -> Iterator[System]:
        """Mixtures of a line whose LMs are trained.

        A point-estimate line is mixed with the LMs of other seeds too: what a second LM is worth
        that is not uncertain.
        """
        ngram = self.settings.ngram
        systems = list(systems_of(line, ngram).values())
        if line.kind == "point":
            others = (seed for seed in self.settings.seeds if seed != self.place.seed)
            systems += [(line.name, f"{line.name}.seed{n}", ngram) for n in others]
        yield from filter(self.trained, systems)

    def commands(self, step: str, lm: str, only: Sequence[str]) -> Optional[List[List[str]]]:
        """Commands of a step, `perplexity` or `rescore`, for lines as `chosen_lines` has them.

        None where no LM is trained; an empty list where all is made already.
        """
        lines = chosen_lines(self.settings.lines, lm, only, self.place.seed, mixtures=True)
        systems = [system for line in lines for system in self.systems(line)]
        if not systems:
            return None
        make = self.perplexities if step == "perplexity" else self.rescoring
        ngram: System = (self.settings.ngram,)
        found = [words for system in dict.fromkeys([ngram, *systems]) for words in make(system)]
        if step == "perplexity":
            uncertain = [line for line in lines if line.kind in UNCERTAIN]
            found += [words for line in uncertain for words in self.snr(line)]
        return [list(map(str, words)) for words in found]
