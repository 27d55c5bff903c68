#!/usr/bin/env python3
"""A meeting a day: an adapter learns from each day's text; what does it keep of the days before?

The training text is cut into as many parts as there are days, and the first sentences of each part,
about a meeting, are the day. EXP/RESULTS.md has the perplexity of past, present and future days.
"""

from __future__ import annotations

import itertools
import json
import math
import random
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from espnet_bayeslm.bin import bayeslm
from espnet_bayeslm.engine.work import LOCAL
from espnet_bayeslm.utils.cli import Tool, parse_numbers
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import read_lines, write_text
from espnet_bayeslm.workflows.adapt_systems import MAX_EPOCH, PATIENCE, SHIPPED
from espnet_bayeslm.workflows.runner import HEAVY, run_steps
from espnet_bayeslm.workflows.steps import Step, words
from lab.cells import markdown_table
from lab.texts import evenly, keep_text, read_sentences

# System -> its configuration, and what the days after the first have besides. Yesterday's
# posterior weighs against as many tokens as `ess` says: the fewer, the stronger is its pull.
SYSTEMS: Mapping[str, Tuple[str, Mapping[str, Any]]] = {
    "lora": ("lora", {}),
    **{f"lora_rate_{lr}": ("lora", {"optim_conf": f"lr={lr}"}) for lr in ("0.00015", "0.00005")},
    "ivon": ("ivon_lora", {}),
    **{
        f"ivon_prior_{ess}": ("ivon_lora", {"optim_conf": ["prior=start", f"ess={ess}"]})
        for ess in (130000, 40000, 13000)
    },
    # each day adds the precision of the first, ess * hess_init
    "ivon_sum": ("ivon_lora", {"optim_conf": ["prior=start", "ess=40000", "hess_init=0.3"]}),
}
# LoRA on the text of all days at once, and the LM as it is
ALL, AS_IT_IS = "all", "as_it_is"
# Sentences of a meeting of AMI: 89,398 of 137 meetings
MEETING = 650
# What a training goes on from; other checkpoints of a finished training are removed
KEPT = "valid.loss.ave.pth"
# ln p and tokens of a day's test text
Score = Tuple[float, int]
# System -> its figures of each seed
Found = Mapping[str, Sequence[Mapping[str, float]]]
# Column of a table -> figure
COLUMNS = {"past": "past", "present": "present", "future": "future", "all, at the end": "end"}


class Days(NamedTuple):
    """Texts of the days of a seed, and its trainings.

    Attributes:
        base: The pretrained LM.
        exp: The folder of all seeds.
        seed: The seed.
        count: Number of days.
        options: Options of all trainings.
        precision: Of the LM in training and scoring.
    """

    base: str
    exp: Path
    seed: int
    count: int
    options: Mapping[str, Any]
    precision: str

    def text(self, part: str, day: Any) -> Path:
        """Text of a day, or of all: part train, valid or test."""
        return self.exp / "text" / f"{part}.{day}.{self.seed}.txt"

    def write_texts(self, lines: Sequence[str], sizes: Mapping[str, int]) -> None:
        """Write the texts of all days; the test texts are the same for all seeds."""
        texts: Dict[str, List[str]] = defaultdict(list)
        for day in range(self.count):
            first = day * len(lines) // self.count
            for name, part in self._parts(lines[first : first + MEETING], sizes, day).items():
                keep_text(self.text(name, day), part)
                texts[name] += part
        for name, part in texts.items():
            keep_text(self.text(name, ALL), part)

    def _parts(
        self, meeting: Sequence[str], sizes: Mapping[str, int], day: int
    ) -> Dict[str, List[str]]:
        """Sentences of a meeting that test, and of the others a random part of each size."""
        test = evenly(range(len(meeting)), sizes["test"])
        rest = [n for n in range(len(meeting)) if n not in test]
        random.Random(f"{self.seed} {day}").shuffle(rest)
        train, end = sizes["train"], sizes["train"] + sizes["valid"]
        chosen = {"train": rest[:train], "valid": rest[train:end], "test": test}
        return {name: [meeting[n] for n in sorted(part)] for name, part in chosen.items()}

    def lm(self, name: str, day: Any) -> Path:
        """Experiment of a system after a day; systems of one configuration share the first day."""
        first = SYSTEMS[name][0] if day == 0 else name
        return self.exp / f"{first}.{self.seed}" / f"day_{day}"

    def training(self, name: str, day: Any) -> Step:
        """Training of a system on a day, from the day before, and the test texts of all days."""
        config, later = SYSTEMS["lora" if name == ALL else name]
        starts, exp, shipped = day in (0, ALL), self.lm(name, day), SHIPPED[config]
        options: Dict[str, Any] = {**self.options, **shipped, **({} if starts else later)}
        reading = [f"precision={self.precision}", "text_form=as_is"]
        options["lm_conf"] = [*shipped["lm_conf"], *reading]
        options["from"] = self.base if starts else self.lm(name, day - 1)
        train = words(
            "train",
            config=config,
            seed=self.seed,
            train_text=self.text("train", day),
            valid_text=self.text("valid", day),
            exp=exp,
            **options,
        )
        return Step(str(exp.relative_to(self.exp)), [train, self.measure(exp, exp)])

    def measure(self, lm: Any, folder: Path) -> List[str]:
        """Command line of the log probabilities of all test sentences, a table in a folder."""
        options = dict(lm=lm, precision=self.precision, text_form="as_is")
        text, table = self.text("test", ALL), folder / "test.tsv"
        return words("perplexity", **options, text=text, per_sentence=table)

    def scores(self, folder: Path) -> List[Score]:
        """Scores of each day's test text, by the LM whose table is in a folder."""
        header, *rows = (row.split("\t") for _, row in read_lines(folder / "test.tsv"))
        log_prob, tokens = (header.index(column) for column in ("log_prob", "tokens"))
        sentences = iter([(float(row[log_prob]), int(row[tokens])) for row in rows])
        found = []
        for day in range(self.count):
            part = [next(sentences) for _ in read_lines(self.text("test", day))]
            found.append((sum(ln for ln, _ in part), sum(count for _, count in part)))
        return found

    def scores_after(self, name: str) -> List[List[Score]]:
        """Scores of each day's test text after each day; the same after all for those at once."""
        if name in SYSTEMS:
            return [self.scores(self.lm(name, day)) for day in range(self.count)]
        once = self.as_it_is if name == AS_IT_IS else self.lm(name, ALL)
        return [self.scores(once)] * self.count

    @property
    def as_it_is(self) -> Path:
        """Folder of the unadapted LM's table."""
        return self.exp / f"{AS_IT_IS}.{self.seed}"


def perplexity(scores: Sequence[Score]) -> float:
    """Perplexity of texts."""
    return math.exp(-sum(ln for ln, _ in scores) / sum(tokens for _, tokens in scores))


def figures_of(after: Sequence[Sequence[Score]]) -> Dict[str, float]:
    """Perplexities of a system, whose scores after a day are `after[day][day of the text]`.

    Past, present and future are days before, of, and after the one that was learnt last; `end` is
    all days after the last one.
    """
    days = range(len(after))
    scores = {
        "past": [after[now][day] for now in days for day in days if day < now],
        "present": [after[now][now] for now in days],
        "future": [after[now][day] for now in days for day in days if day > now],
        "end": after[-1],
    }
    return {name: perplexity(part) for name, part in scores.items()}


def table_of(found: Found) -> str:
    """Means over the seeds of each system."""
    rows = {name: [statistics.mean(column) for column in by_seed(found, name)] for name in found}
    cells = [[name, *(f"{value:.1f}" for value in row)] for name, row in rows.items()]
    return markdown_table(["word perplexity", *COLUMNS], cells)


def changes_table(found: Found, base: str) -> str:
    """Change of each system against one at the same seed, in %: at the seeds of both ends."""
    cells = []
    for name in (name for name in found if name not in (base, AS_IT_IS)):
        pairs = zip(by_seed(found, name), by_seed(found, base), strict=True)
        changes = [[100 * (a / b - 1) for a, b in zip(*pair, strict=True)] for pair in pairs]
        for label, end in (("lowest", min), ("highest", max)):
            cells.append([f"{name}, {label}", *(f"{end(column):+.1f}" for column in changes)])
    return markdown_table([f"change in % against {base}", *COLUMNS], cells)


def by_seed(found: Found, name: str) -> List[List[float]]:
    """Figures of a system: of each column, those of all seeds."""
    return [[figures[column] for figures in found[name]] for column in COLUMNS.values()]


def train_days(runs: Sequence[Days], names: Sequence[str], exp: Path) -> None:
    """Train all systems, a day of all seeds side by side; weights are kept for the day after."""
    first = [Step(run.as_it_is.name, [run.measure(run.base, run.as_it_is)]) for run in runs]
    if ALL in names:
        first += [run.training(ALL, ALL) for run in runs]
    in_order = [name for name in names if name in SYSTEMS]
    with LOCAL.pool(trains=True, preload=HEAVY) as pool:
        for day in range(runs[0].count):
            steps = [run.training(name, day) for name in in_order for run in runs]
            # of those that share the first day, one
            todo = {step.name: step for step in [*(first if day == 0 else ()), *steps]}
            run_steps(pool, list(todo.values()), exp / "log", bayeslm.main)
            for name, run in itertools.product(in_order, runs):
                remove_weights(run.lm(name, day), KEPT)
                if day > 1:
                    remove_weights(run.lm(name, day - 1))


def remove_weights(lm: Path, but: Optional[str] = None) -> None:
    """Remove an experiment's checkpoints, but one of them and the links to it."""
    kept = None if but is None else (lm / but).resolve()
    for path in [path for path in lm.glob("*.pth") if path.resolve() != kept]:
        path.unlink()


def continual(
    *,
    base: str,
    train_text: Path,
    days: int,
    seeds: str,
    systems: str,
    sentences: int,
    max_epoch: int,
    precision: str,
    exp: Path,
) -> None:
    """Train all, and print the table; options as `main` explains them."""
    names = systems.split()
    if unknown := sorted({*names} - {*SYSTEMS, ALL}):
        raise InputError(f"--systems {unknown[0]}: expected some of {', '.join([*SYSTEMS, ALL])}")
    lines = read_sentences(train_text)
    sizes = {"train": sentences, "valid": sentences // 2, "test": 40}
    needed = sum(sizes.values())
    if needed > min(MEETING, len(lines) // days):
        raise InputError(
            f"{len(lines)} sentences are too few for {days} days of {needed}",
            path=train_text,
            remedy="Give fewer --days or --sentences.",
        )
    # as `bayeslm adapt` ends trainings
    options: Dict[str, Any] = {"max_epoch": max_epoch, "patience": PATIENCE}
    if precision == "bfloat16":
        options["model_conf"] = "autocast=bfloat16"
    numbers = parse_numbers("--seeds", seeds)
    runs = [Days(base, exp, seed, days, options, precision) for seed in numbers]
    for run in runs:
        run.write_texts(lines, sizes)
    train_days(runs, names, exp)
    scores = {name: [run.scores_after(name) for run in runs] for name in (AS_IT_IS, *names)}
    write_text(exp / "results.json", json.dumps(scores))
    found = {name: [*map(figures_of, after)] for name, after in scores.items()}
    text = f"{table_of(found)}\n{changes_table(found, names[0])}"
    write_text(exp / "RESULTS.md", text)
    print(text)


def main(cmd: Any = None) -> None:
    """Make the table."""
    tool = Tool(
        "continual",
        __doc__.splitlines()[0],
        continual,
        stopped=": the same command goes on from here",
    )
    parser = tool.parser()
    parser.prog = "local/continual.py"
    parser.add_argument("--base", required=True, help="The pretrained LM, as of --lm")
    parser.add_argument("--train_text", type=Path, default=Path("data/train/text.plain"))
    parser.add_argument("--days", type=int, default=10, help="Number of days")
    parser.add_argument("--seeds", default="1 2 3", help="Of the days' sentences and trainings")
    parser.add_argument("--systems", default=" ".join([*SYSTEMS, ALL]), help="Some of these")
    parser.add_argument("--sentences", type=int, default=100, help="That train, of each day")
    parser.add_argument("--max_epoch", type=int, default=MAX_EPOCH, help="At most")
    parser.add_argument("--precision", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--exp", type=Path, default=Path("exp/continual"), help="The folder")
    tool.main(cmd, parser)


if __name__ == "__main__":
    main()
