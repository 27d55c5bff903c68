#!/usr/bin/env python3
"""Adapters of a pretrained LM on few sentences: where does a posterior beat a larger rank?

Each system trains until the validation text no longer improves, on random parts of the training
text, one for each size and seed. EXP/RESULTS.md has the perplexity of the test text.
"""

from __future__ import annotations

import itertools
import json
import random
import statistics
from collections import Counter
from pathlib import Path
from typing import Any, Dict, List, Mapping, NamedTuple, Sequence, Tuple

from espnet_bayeslm.engine.work import LOCAL
from espnet_bayeslm.training.plain_text import best_of
from espnet_bayeslm.utils.cli import Tool, parse_numbers
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import write_text
from espnet_bayeslm.workflows.adapt_systems import MAX_EPOCH, PATIENCE
from espnet_bayeslm.workflows.commands import read_perplexity
from espnet_bayeslm.workflows.runner import HEAVY, run_steps
from espnet_bayeslm.workflows.steps import Step, words
from lab import finetuning
from lab.cells import markdown_table
from lab.texts import evenly, keep_text, read_sentences

# System -> options of `bayeslm train`. The noise of an adapter's product grows with its rank: rank
# 64 has half the standard deviation of 16.
SYSTEMS: Dict[str, Dict[str, Any]] = {
    "lora_r4": {"config": "lora", "lm_conf": ["lora.r=4"]},
    "lora_r16": {"config": "lora", "lm_conf": ["lora.r=16"]},
    "lora_r64": {"config": "lora", "lm_conf": ["lora.r=64"]},
    "lora_r64_fast": {"config": "lora", "lm_conf": ["lora.r=64"], "optim_conf": "lr=0.001"},
    # another start on the same sentences
    "lora_r64_second": {"config": "lora", "lm_conf": ["lora.r=64"]},
    "lora_r64_dropout0": {"config": "lora", "lm_conf": ["lora.r=64", "lora.dropout=0.0"]},
    # the factors shrink by a tenth in twenty steps of the full rate
    "lora_r64_decay": {
        "config": "lora",
        "lm_conf": ["lora.r=64"],
        "optim_conf": "weight_decay=10",
    },
    # the prior of bayes_lora, and next to no noise
    "lora_r64_prior": {
        "config": "bayes_lora",
        "lm_conf": ["lora.r=64", "init_std=0.00001"],
        "model_conf": ["kl_weight=0.0003"],
        "optim_conf": "lr=0.0005",
    },
    # an average along the way at one rate
    "lora_r64_swa": {
        "config": "lora",
        "lm_conf": ["lora.r=64"],
        "scheduler_conf": "gamma=1.0",
        "patience": 2,
        "keep_nbest_models": 4,
    },
    "ivon_r8": {"config": "ivon_lora", "lm_conf": ["lora.r=8"]},
    "ivon_r16": {"config": "ivon_lora", "lm_conf": ["lora.r=16"]},
    "ivon_r64": {"config": "ivon_lora", "lm_conf": ["lora.r=64"], "optim_conf": "ess=40000000"},
    # from 500 sentences on, of which an epoch has many steps
    "ivon_r64_slow": {
        "config": "ivon_lora",
        "lm_conf": ["lora.r=64"],
        "optim_conf": ["ess=40000000", "lr=0.2"],
    },
    "bayes_lora": {"config": "bayes_lora", "lm_conf": ["lora.r=16"]},
    "bayes_lora_r64": {"config": "bayes_lora", "lm_conf": ["lora.r=64"]},
    # at LoRA's rate
    "bayes_lora_r64_slow": {
        "config": "bayes_lora",
        "lm_conf": ["lora.r=64"],
        "optim_conf": "lr=0.0005",
    },
    # a posterior over the first factor, which starts at random
    "bayes_lora_first_r64": {
        "config": "bayes_lora",
        "lm_conf": [
            "lora.r=64",
            "uncertainty={lora_a@*: bayes}",
            "init_std=0.5",
            "init_std_unit=weights",
        ],
        "model_conf": ["kl_weight=0.01"],
        "optim_conf": "lr=0.0005",
    },
    # of 0.00005 to 0.0004, in steps of a factor of two, the best on 250 sentences of AMI (seed 1)
    "full": {"lr": 0.0002},
}
# Averages of weight samples are measured of these
RANDOM = {name for name in SYSTEMS if name.startswith(("ivon", "bayes"))}
SAMPLES = 8
# Two starts on the same sentences, interpolated: the ensemble that a posterior has to beat
FIRST, SECOND = PAIR = ("lora_r64", "lora_r64_second")
# Added to the seed of the second
OTHER_START = 1000
TEST, VALID = "word perplexity", "validation perplexity per token"
CHANGE = f"change in % against {FIRST}"
# Figure of the test text -> what follows the system's name in the table
LABELS = {"test": "", "samples": f", {SAMPLES} samples", "ensemble": f" and {FIRST}"}
# Figures whose lowest mean on the validation text is marked
MARKED = ("test", "valid")
# Fine-tuning of all weights, beside the adapters
FULL = "full"


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
        keep_text(path, [self.train[n] for n in sorted(order[:size])])
        return path

    def text(self, name: str) -> Path:
        """The `valid` or `test` text."""
        return self.exp / "text" / f"{name}.txt"

    def lm(self, name: str, size: int, seed: int) -> Path:
        """Experiment of a system."""
        return self.exp / f"{name}.{size}.{seed}"

    def training(self, name: str, size: int, seed: int) -> Step:
        """Training of a system, and its perplexity at the mean, and of samples."""
        exp = self.lm(name, size, seed)
        options: Dict[str, Any] = {**self.options, **SYSTEMS[name], "exp": exp}
        options.update(train_text=self.part(size, seed), valid_text=self.text("valid"))
        options["seed"] = seed + (OTHER_START if name == SECOND else 0)
        measure = dict(text=self.text("test"), precision=self.precision)
        if name == FULL:
            train = words(finetuning.NAME, **options, base=self.base, precision=self.precision)
            measure.update(lm=f"hf:{exp / 'lm'}", text_form=finetuning.FORM)
        else:
            reading = [f"precision={self.precision}", f"text_form={finetuning.FORM}"]
            options.update({"from": self.base, "lm_conf": [*options["lm_conf"], *reading]})
            if self.precision == "bfloat16":
                options["model_conf"] = [*options.get("model_conf", ()), "autocast=bfloat16"]
            train = words("train", **options)
            measure.update(lm=exp)
        lines = [train, words("perplexity", **measure, output=exp / "mean.json")]
        if name in RANDOM:
            output = exp / "samples.json"
            lines.append(words("perplexity", **measure, num_samples=SAMPLES, output=output))
        return Step(exp.name, lines)

    def ensemble(self, size: int, seed: int) -> Step:
        """The two starts on the same sentences, interpolated by the validation text."""
        first, second = (self.lm(name, size, seed) for name in PAIR)
        common = dict(lm=[first, second], precision=self.precision)
        weights = second / "weights.yaml"
        estimate = words("interpolate", **common, text=self.text("valid"), output=weights)
        measure = dict(text=self.text("test"), weights=weights, output=second / "ensemble.json")
        lines = [estimate, words("perplexity", **common, **measure)]
        trainings = [self.training(name, size, seed) for name in PAIR]
        return Step(f"ensemble.{size}.{seed}", lines).needs(*trainings)


def rows_of(study: Study, names: Sequence[str], sizes: Sequence[int], seeds: Sequence[int]) -> Any:
    """Perplexities by system and size, of each seed: `test` and the validation text's, `valid`."""
    found: Dict[str, Dict[int, Dict[str, List[float]]]] = {}
    for name in names:
        for size in sizes:
            lms = [study.lm(name, size, seed) for seed in seeds]
            row = {
                "test": [read_perplexity(lm / "mean.json") for lm in lms],
                "valid": [best_of(lm)[0] for lm in lms],
                "epoch": [float(best_of(lm)[1]) for lm in lms],
            }
            for figure in ("samples", "ensemble"):
                if (lms[0] / f"{figure}.json").exists():
                    row[figure] = [read_perplexity(lm / f"{figure}.json") for lm in lms]
            found.setdefault(name, {})[size] = row
    return found


def table_of(found: Any, title: str = TEST, figures: Mapping[str, str] = LABELS) -> str:
    """Means over the seeds; of the systems with the most seeds one is marked."""
    sizes = sizes_of(found)
    best = {size: lowest_mean(found, size) for size in sizes}
    seeds = max(len(row["valid"]) for by_size in found.values() for row in by_size.values())
    cells = []
    for name, by_size in found.items():
        for figure, label in figures.items():
            row = [f"{name}{label}"]
            for size in sizes:
                values = by_size.get(size, {}).get(figure, ())
                mark = " *" if figure in MARKED and best[size] == name else ""
                few = f" ({len(values)} of {seeds} seeds)" if len(values) < seeds else ""
                row.append(f"{statistics.mean(values):.1f}{mark}{few}" if values else "")
            cells += [row] if any(row[1:]) else []
    return markdown_table([title, *(f"{size} sentences" for size in sizes)], cells)


def sizes_of(found: Any) -> List[Any]:
    """All sizes that some system has."""
    return list(dict.fromkeys(size for by_size in found.values() for size in by_size))


def changes_table(found: Any, title: str = TEST, of: str = "test") -> str:
    """Mean change of a text's perplexity against `FIRST`, and the number of seeds it is lower."""
    sizes, cells = sizes_of(found), []
    for name, by_size in found.items():
        for figure in (of, "ensemble") if of == "test" else (of,):
            label = f"{name}{LABELS.get(figure, '')}"
            rows = [[label], [f"{label}: seeds lower"]]
            for size in sizes:
                change, lower = change_of(found, by_size.get(size, {}).get(figure, ()), size, of)
                rows[0].append(change)
                rows[1].append(lower)
            cells += rows if name != FIRST and any(rows[0][1:]) else []
    return markdown_table([f"{title}, {CHANGE}", *(f"{size} sentences" for size in sizes)], cells)


def change_of(found: Any, values: Sequence[float], size: Any, of: str = "test") -> Tuple[str, str]:
    """Mean change against `FIRST` at the same seed, in %, and the number of seeds it is lower."""
    pairs = zip(values, found.get(FIRST, {}).get(size, {}).get(of, ()), strict=False)
    changes = [100 * (value / base - 1) for value, base in pairs]
    if not changes:
        return "", ""
    lower = sum(change < 0 for change in changes)
    return f"{statistics.mean(changes):+.1f}", f"{lower} of {len(changes)}"


def table_at(found: Any, size: Any) -> str:
    """All figures of one size, a row a system."""
    cells = []
    for name, by_size in found.items():
        row = by_size[size]
        for figure, label in LABELS.items():
            if values := row.get(figure):
                valid = "" if label else f"{statistics.mean(row['valid']):.1f}"
                against = change_of(found, values, size) if name != FIRST else ("", "")
                cells.append([f"{name}{label}", f"{statistics.mean(values):.1f}", valid, *against])
    return markdown_table([f"{size} sentences", TEST, VALID, CHANGE, "seeds lower"], cells)


def tables_of(found: Any) -> List[str]:
    """Tables of all figures: one of one size, and else one of each figure."""
    sizes = sizes_of(found)
    if len(sizes) == 1:
        return [table_at(found, sizes[0])]
    changes = [changes_table(found), changes_table(found, VALID, "valid")] if FIRST in found else []
    return [table_of(found), table_of(found, VALID, {"valid": ""}), *changes]


def lowest_mean(found: Any, size: int) -> str:
    """System with the lowest mean on the validation text, of those with the most seeds."""
    valid = {name: row[size]["valid"] for name, row in found.items() if size in row}
    most = max(map(len, valid.values()))
    means = {name: statistics.mean(row) for name, row in valid.items() if len(row) == most}
    return min(means, key=means.__getitem__)


def rule_of(found: Any) -> str:
    """The rule by which `bayeslm adapt` tries an adapter, and what it says here, in a line."""
    won: Counter[str] = Counter()
    for size, row in next(iter(found.values())).items():
        for n in range(len(row["valid"])):
            lowest = {
                name: by_size[size]["valid"][n]
                for name, by_size in found.items()
                if n < len(by_size.get(size, {}).get("valid", ()))
            }
            won[min(lowest, key=lowest.__getitem__)] += 1
    told = ", ".join(f"{name} in {count}" for name, count in won.most_common())
    return f"Lowest validation perplexity, of {won.total()} sizes and seeds: {told}.\n"


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
    train = read_sentences(train_text)
    if max(counts) > len(train):
        raise InputError(f"--sizes {sizes}: there are {len(train)} sentences", path=train_text)
    # as `bayeslm adapt` ends trainings
    options = {"max_epoch": max_epoch, "patience": PATIENCE, "batch_bins": 256}
    study = Study(base, exp, train, options, precision)
    for name, path in (("valid", valid_text), ("test", test_text)):
        keep_text(study.text(name), evenly(read_sentences(path), sentences))
    cases = list(itertools.product(counts, numbers))
    steps = [study.training(name, *case) for case in cases for name in names]
    if set(PAIR) <= set(names):
        steps += [study.ensemble(*case) for case in cases]
    with LOCAL.pool(trains=True, preload=HEAVY) as pool:
        run_steps(pool, steps, exp / "log", finetuning.main)
    found = rows_of(study, names, counts, numbers)
    write_text(exp / "results.json", json.dumps({"systems": found}, indent=1))
    text = "\n".join([*tables_of(found), rule_of(found)])
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
