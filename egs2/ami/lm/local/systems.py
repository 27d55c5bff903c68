#!/usr/bin/env python3
"""Prints the `bayeslm` commands that evaluate a table's LMs, for batch.py: what is not there yet.

Interpolation weights (EM on the dev text), perplexities, rescored lists (LMWT and word penalty
with the fewest errors on the dev lists, for each condition) and signal-to-noise ratios.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any, Iterator, List, Optional, Sequence, Tuple

import yaml
from lines import UNCERTAIN, Line, read_table, system_name
from stages import need
from train import BEST, chosen

from espnet_bayeslm.utils.cli import run_tool, tool_parser
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import read_lines

Words = List[str]


class Evaluation:
    """The commands for one seed.

    Args:
        data: The recipe's data folder.
        exp: The seed's LMs and outputs.
        ngram: The n-gram, for the component of its name, as `3g`.
        sets: Names of the dev set and of the test set.
        context: How many sentences before each the LMs see (perplexities only).
    """

    def __init__(
        self,
        *,
        data: Path,
        exp: Path,
        ngram: Path,
        order: int,
        sets: Sequence[str],
        context: int = 0,
    ):
        self.context = ["--context", str(context)] if context else []
        self.data, self.exp, self.ngram = data, exp, ngram
        self.ngram_name = f"{order}g"
        self.dev, self.test = sets
        need({ngram: 2}, "n-gram")
        listed = data / "nbest" / "conditions"
        self.conditions = [row.strip() for _, row in read_lines(listed)] if listed.exists() else []

    def folder(self, component: str) -> Path:
        """Return an LM's folder; `NAME.seed2` is another seed's."""
        name, dot, seed = component.rpartition(".seed")
        return self.exp.parent / f"seed{seed}" / name if dot else self.exp / component

    def trained(self, system: Sequence[str]) -> bool:
        """Return whether all LMs of a mixture are there."""
        lms = (name for name in system if not self.is_ngram(name))
        return all((self.folder(name) / BEST).exists() for name in lms)

    def is_ngram(self, component: str) -> bool:
        """Return whether a component is the n-gram."""
        return component == self.ngram_name

    def _missing(self, output: Path, system: Sequence[str]) -> bool:
        """Return whether an output is not there, or older than an LM that it is made with."""
        if not output.exists():
            return True
        models = [self.ngram if self.is_ngram(c) else self.folder(c) / BEST for c in system]
        return output.stat().st_mtime < max(path.stat().st_mtime for path in models)

    def _components(self, system: Sequence[str]) -> Words:
        words: Words = []
        for name in system:
            words += (
                ["--ngram", str(self.ngram)]
                if self.is_ngram(name)
                else ["--lm", str(self.folder(name))]
            )
        return [*words, "--cache", str(self.exp / "cache")]

    def _weights(self, system: Sequence[str]) -> Path:
        return self.exp / "weights" / f"{system_name(system)}.yaml"

    def perplexities(self, system: Sequence[str]) -> Iterator[Words]:
        """Yield the commands for a mixture's weights and perplexities, or an LM's by itself."""
        components, weights = self._components(system), self._weights(system)
        if len(system) > 1:
            dev = str(self.data / self.dev / "text.plain")
            if self._missing(weights, system):
                words = ["interpolate", "--text", dev, *self.context, *components]
                yield [*words, "--output", str(weights)]
            components += ["--weights", str(weights)]
        for text in (self.dev, self.test):
            output = self.exp / "perplexity" / system_name(system) / f"{text}.json"
            if self._missing(output, system):
                plain = str(self.data / text / "text.plain")
                words = ["perplexity", "--text", plain, *self.context, *components]
                yield [*words, "--output", str(output)]

    def rescoring(self, system: Sequence[str]) -> Iterator[Words]:
        """Yield the commands that rescore the lists with a mixture that has the n-gram.

        Raises:
            InputError: Its weights are not there.
        """
        components, weights = self._components(system), self._weights(system)
        if not any(map(self.is_ngram, system)):
            return
        if len(system) > 1:
            need({weights: 5}, "weights")
            components += ["--weights", str(weights)]
        lists, outputs = self.data / "nbest", self.exp / "rescore" / system_name(system)
        for condition in self.conditions:
            dev, test = (f"{name}_{condition}" for name in (self.dev, self.test))
            scales = outputs / dev / "scales.yaml"
            for name, tuning in (
                (dev, ["--tune_ref", lists / dev / "text"]),
                (test, ["--scales", scales, "--ref", lists / test / "text"]),
            ):
                if self._missing(outputs / name / "text", system):
                    words = ["rescore", "--nbest", lists / name, "--nbest_format", "kaldi"]
                    words += [*components, *tuning, "--output", outputs / name]
                    yield [str(word) for word in words]

    def snr(self, line: Line) -> Iterator[Words]:
        """Yield the command that measures an uncertain LM's signal-to-noise ratios.

        A search may choose that nothing is uncertain.
        """
        output = self.exp / "snr" / line.name
        config = self.exp / line.name / "train.yaml"
        if not self.trained([line.name]) or not read_yaml(config)["lm_conf"]["uncertainty"]:
            return
        if self._missing(output / "snr.json", [line.name]):
            text = self.data / self.dev / "text.plain"
            words = ["snr", "--lm", self.exp / line.name, "--text", text, "--output", output]
            yield [str(word) for word in words]

    def systems(self, line: Line, controls: Sequence[int]) -> Iterator[Tuple[str, ...]]:
        """Yield the mixtures of a line whose LMs are trained.

        Args:
            line: The line.
            controls: Other seeds, whose point-estimate LM is mixed with a point-estimate line's:
                what a second LM is worth that is not uncertain.
        """
        systems: List[Tuple[str, ...]] = line.systems(self.ngram_name)
        if line.kind == "point":
            systems += [(line.name, f"{line.name}.seed{n}", self.ngram_name) for n in controls]
        yield from filter(self.trained, systems)


def read_yaml(path: Path) -> Any:
    """Return the content of a yaml file."""
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def commands(
    table: str,
    step: str,
    seed: int,
    controls: Sequence[int],
    lm: str,
    only: Sequence[str],
    data: str,
    exp: str,
    ngram: str,
    order: int,
    sets: Sequence[str],
    context: int,
) -> None:
    """Print the commands."""
    evaluation = Evaluation(
        data=Path(data), exp=Path(exp), ngram=Path(ngram), order=order, sets=sets, context=context
    )
    others = [n for n in controls if n != seed]
    lines = chosen(read_table(table), lm, only, seed, mixtures=True)
    systems = [(evaluation.ngram_name,)]
    systems += [system for line in lines for system in evaluation.systems(line, others)]
    if systems[1:] == []:
        remedy = "Run stage 4 first."
        raise InputError("none of the table's LMs is trained", path=exp, remedy=remedy)
    make = evaluation.perplexities if step == "perplexity" else evaluation.rescoring
    found = [words for system in dict.fromkeys(systems) for words in make(system)]
    if step == "perplexity":
        uncertain = [line for line in lines if line.kind in UNCERTAIN]
        found += [words for line in uncertain for words in evaluation.snr(line)]
    for words in found:
        print(shlex.join(words))


def get_parser() -> Any:
    """Return the parser of this script."""
    parser = tool_parser("systems", __doc__.splitlines()[0])
    parser.prog = "local/systems.py"
    parser.add_argument("--table", default="main", help="Which table's lines")
    parser.add_argument(
        "--step", default="perplexity", choices=["perplexity", "rescore"], help="Which commands"
    )
    parser.add_argument("--seed", type=int, default=1, help="Of ESPnet's training")
    parser.add_argument(
        "--controls", type=int, nargs="*", default=[], help="Seeds for the control mixtures"
    )
    parser.add_argument("--lm", default="both", choices=["lstm", "transformer", "both"])
    parser.add_argument("--only", nargs="*", default=[], help="Only the lines of these names")
    parser.add_argument("--data", default="data", help="Folder of the recipe's data")
    parser.add_argument("--exp", default="exp/small/seed1", help="The seed's folder")
    parser.add_argument("--ngram", default="data/local/3gram.arpa", help="The n-gram")
    parser.add_argument("--order", type=int, default=3, help="Its order, for its name in tables")
    parser.add_argument("--sets", nargs=2, default=["dev", "eval"], help="Dev and test set")
    parser.add_argument("--context", type=int, default=0, help="As of `bayeslm perplexity`")
    return parser


def main(cmd: Optional[Sequence[str]] = None) -> None:
    """Print the commands."""
    run_tool(get_parser(), commands, cmd)


if __name__ == "__main__":
    main()
