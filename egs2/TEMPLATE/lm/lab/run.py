"""The stages of a plan: from text to tables, figures and the HTML report."""

from __future__ import annotations

import dataclasses
import logging
import math
import shlex
import subprocess
from pathlib import Path
from typing import Dict, List, Sequence, Tuple

from espnet_bayeslm.bin import bayeslm
from espnet_bayeslm.engine.work import LOCAL, EngineOptions
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.workflows.runner import HEAVY, Tool, run_steps
from espnet_bayeslm.workflows.steps import Step
from lab import texts
from lab.evaluate import Evaluation
from lab.plan import Settings, chosen_lines
from lab.train import Place, Run, Trainer


@dataclasses.dataclass(frozen=True)
class Choice:
    """Part of a table's work, and how it is done.

    Attributes:
        lm: `lstm`, `transformer` or `both`.
        only: Names of lines; all where empty.
        parts: Shares of the training text in %, in place of the plan's.
        options: More options of `espnet2.bin.lm_train`.
        engine: Where trainings and evaluations are done.
        note: A sentence for the head of the results.
        again: The command line, for its trainings.
    """

    lm: str = "both"
    only: Tuple[str, ...] = ()
    parts: Tuple[int, ...] = ()
    options: Tuple[str, ...] = ()
    engine: EngineOptions = LOCAL
    note: str = ""
    again: Tuple[str, ...] = ()


class Experiment:
    """The stages of a table.

    Args:
        settings: The table.
        choice: Part of the table's work.
        stats: Folder of the statistics of the whole training text.
        run: Runs command lines of `bayeslm`.
        run_lab: Runs command lines of the laboratory, in the workers that train.
    """

    def __init__(self, settings: Settings, choice: Choice, stats: Path, *, run: Run, run_lab: Run):
        self.settings, self.choice, self.stats = settings, choice, stats
        self.run, self.run_lab = run, run_lab
        self.data, self.plan = settings.data, settings.plan
        self.train = self.data / "train" / "text"
        self.valid = self.data / settings.sets[0] / "text.known"
        self.stages = {
            1: ("text", self.text),
            2: (f"{self.plan.order}-gram, token list, statistics", self.ngram),
            3: ("N-best lists", self.lists),
            4: ("training", self.training),
            5: ("interpolation and perplexity", self.perplexity),
            6: ("rescoring", self.rescoring),
            7: ("tables and figures", self.results),
            8: ("HTML report", self.report),
        }

    def text(self) -> None:
        """Make the texts by the plan's command."""
        call([*shlex.split(self.plan.text), "--output", str(self.data)])

    def ngram(self) -> None:
        """Make n-gram, token list and statistics of the training text."""
        texts.need({self.train: 1, self.train.with_name("text.plain"): 1})
        if texts.is_older(self._arpa(""), self.train.parent / "text.plain"):
            self._make_ngram(self.train.parent, self._arpa(""))
        texts.prepare_tokens(self.data, self.train, self.valid, self.stats)

    def lists(self) -> None:
        """Make N-best lists by the plan's command."""
        words = ["--output", str(self.data / "nbest"), "--sets", " ".join(self.settings.sets)]
        call([*shlex.split(self.plan.lists), *words])

    def training(self) -> None:
        """Train the table's LMs, each backbone of a place in a task."""
        texts.need({self.stats / "train" / "text_shape.word": 2})
        steps: List[Step] = []
        for name, place in self.places().items():
            self._prepare(place)
            for lm in place.backbones:
                log = self._log(place, f"train_{self.settings.table}_{lm}")
                unit = ["--unit", name, "--lm", lm]
                steps.append(Step(log, [[*self.choice.again, *unit]]))
        self._run_steps(steps, self.run_lab)

    def _log(self, place: Place, name: str) -> str:
        """Name of a log in the folder of a place."""
        return str((place.exp / name).relative_to(self.settings.folder))

    def _run_steps(self, steps: Sequence[Step], tool: Tool) -> None:
        """Run steps, which leave out by themselves what is done already."""
        with self.choice.engine.pool(trains=True, preload=HEAVY) as pool:
            run_steps(pool, steps, self.settings.folder, tool, marks=False)

    def train_unit(self, name: str) -> None:
        """Train the LMs of a place: what a task of `training` does."""
        place = self.places()[name]
        trainer = Trainer(self.plan.tables, self.settings.size, self.data, place, self.run)
        lines = chosen_lines(self.settings.lines, self.choice.lm, self.choice.only, place.seed)
        for line in lines:
            trainer.line(line)

    def perplexity(self) -> None:
        """Interpolate, and measure perplexities and signal-to-noise ratios."""
        self._evaluate("perplexity")

    def rescoring(self) -> None:
        """Rescore the lists."""
        if (self.data / "nbest" / "conditions").exists():
            self._evaluate("rescore")
        else:
            logging.info(f"{self.data}/nbest has no lists (stage 3 makes them): nothing to rescore")

    def results(self) -> None:
        """Write tables and figures."""
        from lab.collect import collect
        from lab.document import write_results

        print(write_results(collect(self.settings), self.settings, self.choice.note))

    def report(self) -> None:
        """Write the HTML report."""
        config = self.settings.folder / f"report_{self.settings.table}.yaml"
        texts.need({config: 7})
        self.run(["report", "--config", str(config), "--output", str(config.with_suffix(".html"))])

    def places(self) -> Dict[str, Place]:
        """{SEED/VARIANT: place} of all that is trained: the seeds, and what the table studies."""
        found = {}
        for seed in self.settings.seeds:
            folder = self.settings.seed_folder(seed)
            for name, place in self._variants(folder, seed).items():
                backbones = tuple(b for b in place.backbones if self.choice.lm in ("both", b))
                if backbones:
                    found[f"{seed}/{name}"] = dataclasses.replace(place, backbones=backbones)
        return found

    def _variants(self, folder: Path, seed: int) -> Dict[str, Place]:
        """{name: place} of a seed: all of the text, parts of it, other widths."""
        options = self.choice.options
        inputs = self.train.parent, self.valid, self.stats, self._arpa("")
        whole = Place(folder, seed, *inputs, options=options)
        found = {"full": whole}
        study = self.plan.studies.get(self.settings.table, {})
        for percent in (self.choice.parts or study["parts"]) if "parts" in study else ():
            part = f"train{percent}"
            found[part] = dataclasses.replace(
                whole,
                exp=folder / part,
                text=self.data / part,
                stats=Path(f"{self.stats}_{part}"),
                ngram=self._arpa(part),
                # with a quarter of the text an epoch has half of the steps
                passes=math.sqrt(100 / int(percent)),
            )
        for lm, units in study.get("units", {}).items():
            for unit in units:
                found[f"{lm}_unit{unit}"] = dataclasses.replace(
                    whole,
                    exp=folder / f"unit{unit}",
                    backbones=(lm,),
                    options=(*options, "--lm_conf", f"unit={unit}"),
                )
        return found

    def _prepare(self, place: Place) -> None:
        """Write a place's texts, statistics and n-gram, where they are not there yet."""
        if not place.stats.is_dir() or not place.text.is_dir():
            percent = int(place.text.name.removeprefix("train"))
            texts.write_part(self.data, self.valid, percent, place.text, place.stats)
        if not place.ngram.exists():
            self._make_ngram(place.text, place.ngram)

    def _arpa(self, part: str) -> Path:
        suffix = f".{part}" if part else ""
        return self.data / "local" / f"{self.plan.order}gram{suffix}.arpa"

    def _make_ngram(self, folder: Path, arpa: Path) -> None:
        words = ["--text", str(folder / "text.plain"), "--order", str(self.plan.order)]
        self.run(["ngram", *words, "--arpa", str(arpa), "--discount_fallback", "true"])

    def _evaluate(self, step: str) -> None:
        """Run the commands of a step, those of a place in a task; no place without LMs."""
        steps: List[Step] = []
        for place in self.places().values():
            log = self._log(place, f"{step}_{self.settings.table}")
            evaluation = Evaluation(self.settings, place)
            lm = place.backbones[0] if len(place.backbones) == 1 else "both"
            commands = evaluation.commands(step, lm, self.choice.only)
            if commands is None:
                logging.info(f"{place.exp}: none of the table's LMs is trained")
                continue
            place.exp.mkdir(parents=True, exist_ok=True)
            file = self.settings.folder / f"{log}.commands"
            file.write_text("".join(f"{shlex.join(words)}\n" for words in commands))
            steps.append(Step(log, commands))
        if not steps:
            remedy = "Run stage 4 first."
            where = self.settings.folder
            raise InputError("none of the table's LMs is trained", path=where, remedy=remedy)
        self._run_steps(steps, bayeslm.main)


def call(words: Sequence[str]) -> None:
    """Run a recipe's own command."""
    status = subprocess.run(words).returncode
    if status:
        raise SystemExit(status)
