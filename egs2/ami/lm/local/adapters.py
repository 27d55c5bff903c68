#!/usr/bin/env python3
"""Adapters of a pretrained LM on few sentences: where does a posterior beat a larger rank?

Each system trains until the validation text no longer improves, on random parts of the training
text, one for each size and seed. EXP/RESULTS.md has the perplexity of the test text.
"""

from __future__ import annotations

import json
import random
import statistics
from collections import Counter
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Sequence

from espnet_bayeslm.adaptation.plan import MAX_EPOCH, PATIENCE
from espnet_bayeslm.bin import bayeslm
from espnet_bayeslm.engine.pool import LOCAL
from espnet_bayeslm.quickstart.steps import HEAVY, Step, read_figures, run_steps, words
from espnet_bayeslm.training.plain_text import best_of
from espnet_bayeslm.utils.cli import Tool, parse_numbers
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import read_lines, write_text
from lab.cells import markdown_table
from lab.texts import evenly

# System -> options of `bayeslm train`. The noise of an adapter's product grows with its rank: rank
# 64 has half the standard deviation of 16.
SYSTEMS: Dict[str, Dict[str, Any]] = {
    "lora_r4": {"config": "lora", "lm_conf": ["lora.r=4"]},
    "lora_r16": {"config": "lora", "lm_conf": ["lora.r=16"]},
    "lora_r64": {"config": "lora", "lm_conf": ["lora.r=64"]},
    "lora_r64_dropout0": {"config": "lora", "lm_conf": ["lora.r=64", "lora.dropout=0.0"]},
    # the factors shrink by a tenth in twenty steps of the full rate
    "lora_r64_decay": {
        "config": "lora",
        "lm_conf": ["lora.r=64"],
        "optim_conf": "weight_decay=10",
    },
    "ivon_r8": {"config": "ivon_lora", "lm_conf": ["lora.r=8"]},
    "ivon_r16": {"config": "ivon_lora", "lm_conf": ["lora.r=16"]},
    "ivon_r64": {"config": "ivon_lora", "lm_conf": ["lora.r=64"], "optim_conf": "ess=40000000"},
    "bayes_lora": {"config": "bayes_lora", "lm_conf": ["lora.r=16"]},
}
# Averages of weight samples are measured of these
RANDOM = {name for name in SYSTEMS if name.startswith(("ivon", "bayes"))}
SAMPLES = 8
# Two seeds of it, interpolated: the ensemble that a posterior has to beat
PAIR_OF = "lora_r64"


class Study(NamedTuple):
    """Texts, and the folder of all trainings.

    Attributes:
        base: The pretrained LM.
        exp: The folder.
        train: Sentences of which parts train.
        options: Options of all trainings.
        precision: Of the LM in training and scoring.
    """

    base: str
    exp: Path
    train: List[str]
    options: Dict[str, Any]
    precision: str

    def part(self, size: int, seed: int) -> Path:
        """Text of a random part, the same at each call; a larger part holds the smaller ones."""
        path = self.exp / "text" / f"train_{size}.{seed}.txt"
        order = random.Random(seed).sample(range(len(self.train)), len(self.train))
        write_text(path, "".join(f"{self.train[n]}\n" for n in sorted(order[:size])))
        return path

    def lm(self, name: str, size: int, seed: int) -> Path:
        """Experiment of a system."""
        return self.exp / f"{name}.{size}.{seed}"

    def training(self, name: str, size: int, seed: int) -> Step:
        """Training of a system, and its perplexity at the mean, and of samples."""
        exp, options = self.lm(name, size, seed), SYSTEMS[name]
        lm_conf = [*options["lm_conf"], f"precision={self.precision}", "text_form=as_is"]
        train = words(
            "train",
            **{**options, **self.options, "from": self.base, "lm_conf": lm_conf},
            train_text=self.part(size, seed),
            valid_text=self.exp / "text" / "valid.txt",
            seed=seed,
            exp=exp,
        )
        measure = dict(lm=exp, text=self.exp / "text" / "test.txt", precision=self.precision)
        lines = [train, words("perplexity", **measure, output=exp / "mean.json")]
        if name in RANDOM:
            output = exp / "samples.json"
            lines.append(words("perplexity", **measure, num_samples=SAMPLES, output=output))
        return Step(exp.name, lines)

    def pair(self, size: int, seeds: Sequence[int]) -> Step:
        """Two seeds of one system, interpolated by the validation text."""
        lms = [self.lm(PAIR_OF, size, seed) for seed in seeds[:2]]
        weights = self.exp / f"pair.{size}.yaml"
        common = dict(lm=lms, precision=self.precision)
        valid, test = (self.exp / "text" / f"{name}.txt" for name in ("valid", "test"))
        output = self.exp / f"pair.{size}.json"
        estimate = words("interpolate", **common, text=valid, output=weights)
        measure = words("perplexity", **common, text=test, weights=weights, output=output)
        return Step(f"pair.{size}", [estimate, measure])


def rows_of(study: Study, names: Sequence[str], sizes: Sequence[int], seeds: Sequence[int]) -> Any:
    """Perplexity of the test text by system and size: of each seed; with the validation's."""
    found: Dict[str, Dict[int, Dict[str, List[float]]]] = {}
    for name in names:
        for size in sizes:
            lms = [study.lm(name, size, seed) for seed in seeds]
            row = {
                "test": [read_figures(lm / "mean.json")[-1] for lm in lms],
                "valid": [best_of(lm)[0] for lm in lms],
                "epoch": [float(best_of(lm)[1]) for lm in lms],
            }
            if name in RANDOM:
                row["samples"] = [read_figures(lm / "samples.json")[-1] for lm in lms]
            found.setdefault(name, {})[size] = row
    return found


def table_of(found: Any, pairs: Dict[int, float], sizes: Sequence[int]) -> str:
    """Means over the seeds, with each seed's; the lowest mean on the validation text is marked."""
    best = {
        size: min(found, key=lambda name: statistics.mean(found[name][size]["valid"]))
        for size in sizes
    }
    cells = []
    for name, by_size in found.items():
        for figure, label in (("test", name), ("samples", f"{name}, {SAMPLES} samples")):
            if figure in by_size[sizes[0]]:
                row = [label]
                for size in sizes:
                    values = by_size[size][figure]
                    mark = " *" if figure == "test" and best[size] == name else ""
                    each = ", ".join(f"{value:.1f}" for value in values)
                    row.append(f"{statistics.mean(values):.1f}{mark} ({each})")
                cells.append(row)
    if pairs:
        cells.append([f"two seeds of {PAIR_OF}", *(f"{pairs[size]:.1f}" for size in sizes)])
    return markdown_table(["word perplexity", *(f"{size} sentences" for size in sizes)], cells)


def rule_of(found: Any) -> str:
    """The rule by which `bayeslm adapt` tries an adapter, and what it says here, in a line."""
    first = next(iter(found.values()))
    cases = [(size, n) for size, row in first.items() for n in range(len(row["valid"]))]
    won = Counter(min(found, key=lambda name: found[name][s]["valid"][n]) for s, n in cases)
    told = ", ".join(f"{name} in {count}" for name, count in won.most_common())
    return f"Lowest validation perplexity, of {len(cases)} sizes and seeds: {told}.\n"


def adapters(
    *,
    base: str,
    train_text: Path,
    valid_text: Path,
    test_text: Path,
    sizes: str,
    seeds: str,
    systems: str,
    sentences: int,
    max_epoch: int,
    precision: str,
    exp: Path,
) -> None:
    """Train all, and print the table; options as `main` explains them."""
    numbers, counts = parse_numbers("--seeds", seeds), parse_numbers("--sizes", sizes)
    names = systems.split()
    if unknown := sorted(set(names) - set(SYSTEMS)):
        known = ", ".join(SYSTEMS)
        raise InputError(f"--systems {unknown[0]}: expected some of {known}")
    train = [line for _, line in read_lines(train_text) if line.strip()]
    if max(counts) > len(train):
        raise InputError(f"--sizes {sizes}: there are {len(train)} sentences", path=train_text)
    (exp / "text").mkdir(parents=True, exist_ok=True)
    for name, path in (("valid", valid_text), ("test", test_text)):
        lines = [line for _, line in read_lines(path) if line.strip()]
        text = "".join(f"{line}\n" for line in evenly(lines, sentences))
        write_text(exp / "text" / f"{name}.txt", text)
    # as `bayeslm adapt` ends trainings
    options: Dict[str, Any] = {"max_epoch": max_epoch, "patience": PATIENCE, "batch_bins": 256}
    if precision == "bfloat16":
        options["model_conf"] = "autocast=bfloat16"
    study = Study(base, exp, train, options, precision)
    which = [(name, size, seed) for size in counts for seed in numbers for name in names]
    pairs: Dict[int, float] = {}
    with LOCAL.pool(trains=True, preload=HEAVY) as pool:
        run_steps(pool, [study.training(*one) for one in which], exp / "log", bayeslm.main)
        if PAIR_OF in names and len(numbers) > 1:
            steps = [study.pair(size, numbers) for size in counts]
            run_steps(pool, steps, exp / "log", bayeslm.main)
            pairs = {size: read_figures(exp / f"pair.{size}.json")[-1] for size in counts}
    found = rows_of(study, names, counts, numbers)
    write_text(exp / "results.json", json.dumps({"systems": found, "pairs": pairs}, indent=1))
    text = f"{table_of(found, pairs, counts)}\n{rule_of(found)}"
    write_text(exp / "RESULTS.md", text)
    print(text)


def main(cmd: Any = None) -> None:
    """Make the table."""
    tool = Tool(
        "adapters",
        __doc__.splitlines()[0],
        adapters,
        stopped=": the same command goes on from here",
    )
    parser = tool.parser()
    parser.prog = "local/adapters.py"
    parser.add_argument("--base", required=True, help="The pretrained LM, as of --lm")
    for name, part in (("train", "train"), ("valid", "dev"), ("test", "eval")):
        default = Path("data") / part / "text.plain"
        parser.add_argument(f"--{name}_text", type=Path, default=default, help="A sentence a line")
    parser.add_argument("--sizes", default="100 250 500 1000 2700", help="Sentences that train")
    parser.add_argument("--seeds", default="1 2 3", help="Of parts and trainings")
    parser.add_argument("--systems", default=" ".join(SYSTEMS), help="Some of these")
    parser.add_argument("--sentences", type=int, default=500, help="Of validation and test text")
    parser.add_argument("--max_epoch", type=int, default=MAX_EPOCH, help="At most")
    parser.add_argument("--precision", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--exp", type=Path, default=Path("exp/adapters"), help="The folder")
    tool.main(cmd, parser)


if __name__ == "__main__":
    main()
