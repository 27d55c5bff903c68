#!/usr/bin/env python3
"""The shipped Bayesian LM on part of the sentences, against a tuned point-estimate LM.

`bayeslm compare` on a random part of the recipe's training text, and on sentences of dev and eval
at equal distances (EXP/RESULTS.md); then word error rates of the recipe's lists (EXP/WER.md).
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any, Iterator, List, Optional, Sequence

from espnet_bayeslm.bin import bayeslm
from espnet_bayeslm.engine.work import LOCAL
from espnet_bayeslm.report.table import signed
from espnet_bayeslm.utils.cli import Tool, parse_numbers
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import read_lines, write_text
from espnet_bayeslm.workflows.compare import CompareOptions, Work, compare
from espnet_bayeslm.workflows.compare_table import BOTH, POINT, SYSTEMS
from espnet_bayeslm.workflows.runner import run_steps
from espnet_bayeslm.workflows.steps import Step, words
from lab.cells import markdown_table
from lab.texts import evenly


def part(lines: Sequence[str], percent: int) -> List[str]:
    """A random part of the lines, the same at each call."""
    return random.Random(0).sample(lines, max(1, len(lines) * percent // 100))


def write_parts(data: Path, output: Path, *, percent: int, sentences: int) -> List[Path]:
    """Write OUTPUT/{train,dev,eval}.txt, and return their paths."""
    if not 0 < percent <= 100 or sentences < 1:
        raise InputError(
            f"--percent {percent}, --sentences {sentences}: expected 1 to 100, at least 1"
        )
    paths = []
    for name in ("train", "dev", "eval"):
        lines = [line for _, line in read_lines(data / name / "text.plain")]
        kept = part(lines, percent) if name == "train" else evenly(lines, sentences)
        paths.append(output / f"{name}.txt")
        write_text(paths[-1], "".join(f"{line}\n" for line in kept))
    return paths


def rescored(work: Work, nbest: Path, condition: str, seed: int, name: str) -> Step:
    """Lists of dev, on which the scores' weights are tuned, and of eval."""
    folder = work.exp / "rescore" / f"seed{seed}_{'_'.join(SYSTEMS[name])}"
    dev, test = (
        dict(nbest=nbest / f"{text}_{condition}", output=folder / f"{text}_{condition}")
        for text in ("dev", "eval")
    )
    kaldi = dict(nbest_format="kaldi")
    refs, scales = dev["nbest"] / "text", dev["output"] / "scales.yaml"
    system = work.system(seed, name)
    tune = system.weighed("rescore", **dev, **kaldi, tune_ref=refs)
    apply = system.weighed("rescore", **test, **kaldi, scales=scales)
    return Step(f"{folder.name}_{condition}", [tune, apply])


def significance(work: Work, nbest: Path, conditions: Sequence[str], seed: int) -> Step:
    """Word error rates of eval at a seed, with tests."""
    options: Any = dict(ref=[f"{c}={nbest / f'eval_{c}' / 'text'}" for c in conditions])
    options["hyp"] = []
    for name in (POINT, BOTH):
        folder = work.exp / "rescore" / f"seed{seed}_{'_'.join(SYSTEMS[name])}"
        options["hyp"] += [f"{name}:{c}={folder / f'eval_{c}' / 'text'}" for c in conditions]
    output = work.exp / "score" / f"seed{seed}.json"
    return Step(f"score_{seed}", [words("score", **options, baseline=POINT, output=output)])


def wer_table(work: Work, conditions: Sequence[str]) -> str:
    """Word error rates of eval by seed and condition, the difference and its p."""
    header = ["seed", "lists", f"WER, {POINT}", f"WER, {BOTH}", "difference", "p (MAPSSWE)"]
    return markdown_table(header, [*_wer_rows(work, conditions)])


def _wer_rows(work: Work, conditions: Sequence[str]) -> Iterator[List[str]]:
    for seed in work.seeds:
        path = work.exp / "score" / f"seed{seed}.json"
        pooled = json.loads(path.read_text(encoding="utf-8"))
        # of one condition there is nothing to pool
        of_condition = pooled.get("conditions", {conditions[0]: pooled})
        rows = {c: of_condition[c] for c in conditions}
        if len(conditions) > 1:
            rows["pooled"] = pooled
        for condition, scores in rows.items():
            point, both = (scores[name]["wer"] for name in (POINT, BOTH))
            (pair,) = scores["significance"]["pairs"]
            found = (f"{point:.2f}", f"{both:.2f}", signed(both - point))
            yield [str(seed), condition, *found, f"{pair['mapsswe']['p']:.2g}"]


def little_text(
    *,
    data: Path,
    nbest: Path,
    exp: Optional[Path],
    percent: int,
    sentences: int,
    seeds: str,
    dropout_rates: str,
    size: str,
    lm: str,
    epochs: int,
    autocast: Optional[str],
) -> None:
    """Print both tables; options as `get_parser` explains them."""
    exp = exp or Path(f"exp/little_text/{lm}_{size}_{percent}")
    exp.parent.mkdir(parents=True, exist_ok=True)
    texts = exp.with_name(f"text_{percent}")
    train, dev, test = write_parts(data, texts, percent=percent, sentences=sentences)
    what = CompareOptions(
        train_text=train,
        valid_text=dev,
        test_text=test,
        size=size,
        lm=lm,
        epochs=epochs,
        autocast=autocast,
        exp=exp,
        seeds=seeds,
        dropout_rates=dropout_rates,
    )
    print(compare(what, tool=bayeslm.main), flush=True)
    numbers = parse_numbers("--seeds", seeds)
    rates = parse_numbers("--dropout_rates", dropout_rates, float)
    conditions = sorted(path.name[len("dev_") :] for path in nbest.glob("dev_*"))
    if not conditions:
        print(f"no lists in {nbest}: no word error rates")
        return
    work = Work(what, numbers, rates)
    found = [(c, seed, name) for seed in numbers for name in (POINT, BOTH) for c in conditions]
    steps = [rescored(work, nbest, *which) for which in found]
    tests = [significance(work, nbest, conditions, seed) for seed in numbers]
    with LOCAL.pool(trains=True) as pool:
        for stage in (steps, tests):
            run_steps(pool, stage, exp / "log", bayeslm.main)
    write_text(exp / "WER.md", wer_table(work, conditions))
    print((exp / "WER.md").read_text(encoding="utf-8"))


def main(cmd: Optional[Sequence[str]] = None) -> None:
    """Make both tables."""
    tool = Tool(
        "little_text",
        __doc__.splitlines()[0],
        little_text,
        stopped=": the same command goes on from here",
    )
    parser = tool.parser()
    parser.prog = "local/little_text.py"
    parser.add_argument("--data", type=Path, default=Path("data"), help="The recipe's, of stage 1")
    parser.add_argument("--nbest", type=Path, default=Path("data/nbest"), help="Its lists")
    parser.add_argument("--exp", type=Path, help="Default: exp/little_text/LM_SIZE_PERCENT")
    parser.add_argument("--percent", type=int, default=10, help="Of the training sentences")
    parser.add_argument("--sentences", type=int, default=2000, help="Of dev and of eval")
    parser.add_argument("--seeds", default="1 2 3", help="Of the trainings, two or more")
    parser.add_argument("--dropout_rates", default="0.2 0.3 0.5", help="Those to try")
    parser.add_argument("--size", default="small", choices=("small", "paper", "tiny"))
    parser.add_argument("--lm", default="transformer", choices=("transformer", "lstm"))
    parser.add_argument("--epochs", type=int, default=0, help="0: as the configurations say")
    parser.add_argument("--autocast", choices=("bfloat16",), help="See bayeslm compare")
    tool.main(cmd, parser)


if __name__ == "__main__":
    main()
