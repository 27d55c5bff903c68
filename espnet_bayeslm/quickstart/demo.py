"""`bayeslm quickstart`: the shipped text and lists, to LMs, rescored lists and a table."""

from __future__ import annotations

import gzip
import importlib.util
import json
import math
import sys
import time
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from espnet_bayeslm.engine.work import LOCAL
from espnet_bayeslm.evaluation.wer import FIRST_PASS, Counted
from espnet_bayeslm.pretrained.names import PREFIX, find_small_lm
from espnet_bayeslm.quickstart.perplexity_table import Interval
from espnet_bayeslm.quickstart.steps import (
    TUNED_FIRST_PASS,
    Runner,
    Step,
    Tool,
    mixture_key,
    read_figures,
    run_steps,
    words,
)
from espnet_bayeslm.report.score_results import read_scores
from espnet_bayeslm.report.table import Table, signed
from espnet_bayeslm.rescoring.decision import WITHOUT_LM
from espnet_bayeslm.scoring.perplexity import perplexity_text
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import write_text
from espnet_bayeslm.utils.folders import check_folder, folder_lock, staged

SHIPPED = Path(__file__).parent
POINT = "point-estimate + 3-gram"
# System -> the LMs that are interpolated with the 3-gram
SYSTEMS = {
    "3-gram": (),
    POINT: ("point",),
    "Bayesian + 3-gram": ("bayes",),
    "Bayesian + point-estimate + 3-gram": ("bayes", "point"),
}
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
SMALL_START = "Bayesian + 3-gram"
# A second one hardly lowers the perplexity (42.8 a token), and takes a minute
SMALL_EPOCHS = 1
SMALL_SYSTEM = f"SmolLM2 by bayeslm adapt + {SMALL_START}"
# Of the lists, as us_bush_2005_1_0011: no address is in both parts
ADDRESS = r"^[a-z]+_(.+)_\d+$"
SMALL_EXPLANATION = f"""\
SmolLM2 chooses among the {HYPOTHESES} best hypotheses of {SMALL_START}, the other LMs among all.
Its perplexity on eval is not measured: that alone would take minutes. `bayeslm adapt` has adapted
it on references of dev; smollm2/RESULTS.md has what that gained. On a CPU with bfloat16 it is read
in this precision.
"""


def run(output: str, *, tool: Tool, data: Path = SHIPPED / "data", epochs: int = 0) -> None:
    """Make OUTPUT/RESULTS.md and OUTPUT/report.html, and print the table.

    The LMs are trained on `train.txt`, for `epochs` epochs or as the configurations say (0).
    Interpolation weights and the scales of scores are tuned on dev. The set eval is scored once,
    with the tuned values. Where peft, gguf and SmolLM2's file are found, one more system has
    SmolLM2, adapted on references of dev. A run that was stopped goes on.
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
        text = table(read_rows(demo), read_scores(str(demo.scores)).counted)
        text += SMALL_EXPLANATION if demo.smollm2 else ""
        write_text(folder / "RESULTS.md", text)
    print(text)
    print(f"{folder}/report.html: every list beside its reference, learning curves, tests")
    print(f"{folder}/commands.sh: the commands of all this")
    print(f"[{time.monotonic() - begin:3.0f} s] done", file=sys.stderr)


def unpack(data: Path, folder: Path) -> None:
    """Write data and configurations to FOLDER/data, with the references of the lists."""
    target = folder / "data"
    files = {path.stem: gzip.decompress(path.read_bytes()) for path in data.glob("*.gz")}
    files.update((path.name, path.read_bytes()) for path in SHIPPED.glob("*.yaml"))
    for name in ("dev", "eval"):
        lists = map(json.loads, files[f"{name}.jsonl"].splitlines())
        refs = (f"{content['utt']} {content['ref']}\n" for content in lists)
        files[f"{name}.ref"] = "".join(refs).encode()
    if not target.exists():
        with staged(target) as temporary:
            for name, content in files.items():
                (temporary / name).write_bytes(content)
    elif any((target / name).read_bytes() != content for name, content in files.items()):
        remedy = "Give a new --output."
        raise InputError("holds other data than is shipped now", path=target, remedy=remedy)


class Demo(Runner):
    """Steps of the quick start in a folder that has the data.

    Each training has `epochs` epochs, or as many as the configurations say (0). `smollm2` is the
    file of SmolLM2 for its system, or None.
    """

    def __init__(self, folder: Path, epochs: int, smollm2: Optional[Path] = None):
        self.data, self.scores = folder / "data", folder / "score.json"
        files = {"train": "train.txt", "valid": "dev.txt", "test": "eval.txt"}
        texts = {name: self.data / file for name, file in files.items()}
        super().__init__(folder, texts, {"max_epoch": epochs or None}, {})
        self.smollm2 = smollm2
        self.keys = {name: mixture_key(lms) for name, lms in SYSTEMS.items()}
        self.perplexities = {name: self.perplexity(key) for name, key in self.keys.items()}
        self.hypotheses = {name: self.rescored(key) for name, key in self.keys.items()}
        if smollm2:
            self.hypotheses[SMALL_SYSTEM] = self.rescored("smollm2")

    def stages(self) -> List[Tuple[str, List[Step]]]:
        """Stages in their order: a description, and steps that run side by side where they can."""
        half, second = self.exp / "half", self.data / "bayes.yaml"
        # the same steps with and without uncertainty
        trainings = {
            "Bayesian + 3-gram": self.train(self.exp / "bayes", second, source=half),
            POINT: self.train(self.exp / "point", second, source=half, lm_conf="uncertainty={}"),
        }
        tune, apply = self.system("3-gram")
        first = self.train(half, self.data / "half.yaml")
        ngram = self.estimate().then(tune).then(apply)
        tuned, applied = [], []
        for name, training in trainings.items():
            tune, apply = self.system(name)
            tuned.append(training.then(tune).needs(first, ngram))
            applied.append(apply.needs(tuned[-1]))
        tune, apply = self.system("Bayesian + point-estimate + 3-gram")
        both = tune.then(apply).needs(*applied)  # the scores of its LMs have been kept
        small: List[Step] = []
        read: List[Tuple[str, List[Step]]] = []
        if self.smollm2:
            learn, adapt, apply = small_steps(self, self.smollm2)
            small = [learn, adapt.needs(tuned[0], learn)]
            read = [("lists rescored with SmolLM2, adapted", [apply])]
        steps = [first, ngram, *small, *tuned, *applied, both]
        return [
            ("a 3-gram; LMs with point-estimate and with random weights; rescored lists", steps),
            *read,
            ("significance, report", [Step("report", [self.errors(), self.report()])]),
        ]

    def system(self, name: str) -> Tuple[Step, Step]:
        """Weights and scales of a system, tuned on dev; its perplexity, and lists of eval."""
        lms, key = [self.exp / lm for lm in SYSTEMS[name]], self.keys[name]
        best = {"write_best": HYPOTHESES} if self.smollm2 and name == SMALL_START else {}
        dev, test = (self.data / f"{part}.jsonl" for part in ("dev", "eval"))
        weigh, measure = self.mixture(key, lms)
        tune, apply = self.rescoring(key, lms, dev, test, **best)
        return Step(f"tune_{key}", [weigh, tune]), Step(f"rescore_{key}", [measure, apply])

    def errors(self) -> List[str]:
        """Command line of the word errors of all systems on eval, with their tests."""
        # the control is the same in each system's folder
        texts = {TUNED_FIRST_PASS: self.rescored(mixture_key(())) / WITHOUT_LM}
        texts.update((name, folder / "text") for name, folder in self.hypotheses.items())
        return words(
            "score",
            ref=self.data / "eval.ref",
            hyp=[f"{name}={path}" for name, path in texts.items()],
            nbest=self.data / "eval.jsonl",
            nbest_format="jsonl",
            output=self.scores,
        )

    def report(self) -> List[str]:
        """Command line of the report."""
        return words(
            "report",
            score=self.scores,
            perplexity=[f"{name}={path}" for name, path in self.perplexities.items()],
            rescored=[f"{name}={folder}" for name, folder in self.hypotheses.items()],
            nbest_format="jsonl",
            exp=[f"{name}={self.exp / name}" for name in ("point", "bayes")],
            title="bayeslm quickstart",
            output=self.exp / "report.html",
        )


# SmolLM2, adapted


def find_smollm2() -> Optional[Path]:
    """SmolLM2's file; None where it, peft or gguf is not installed."""
    has_packages = all(map(importlib.util.find_spec, ("transformers", "peft", "gguf")))
    return find_small_lm() if has_packages else None


def small_steps(demo: Demo, source: Path) -> Tuple[Step, Step, Step]:
    """Steps of SmolLM2: an adapter of it, tuned on lists of dev, and those of eval rescored."""
    base, adapted = demo.exp / "smollm2_base", demo.exp / "smollm2"
    dev, test = (demo.rescored(demo.keys[SMALL_START], p) / "best" for p in ("dev", "eval"))
    options = {
        "ref": demo.data / "dev.ref",
        "from": f"{PREFIX}{base}",
        "lm": [demo.exp / name for name in SYSTEMS[SMALL_START]],
        "ngram": demo.ngram,
        "recording_of": ADDRESS,
        "max_epoch": SMALL_EPOCHS,
        "output": adapted,
    }
    output = demo.rescored("smollm2")
    # the adapter needs no lists, and learns while the other LMs do
    learn = [words("export", lm=source, format="hf", output=base), words("adapt", **options)]
    return (
        Step("smollm2", learn),
        Step("adapt", [words("adapt", nbest=dev, **options)]),
        Step("rescore_smollm2", [words("rescore", nbest=test, adapted=adapted, output=output)]),
    )


# The table


class Row(NamedTuple):
    """A system on eval: its WER in %, and the perplexity of its mixture (nan: not measured).

    `against` has WER of this system less WER of each other system above, in points.
    """

    name: str
    wer: float
    perplexity: float
    against: Dict[str, Interval]


def read_rows(demo: Demo) -> List[Row]:
    """Rows of the table, from the files of `score` and `perplexity`."""
    errors = json.loads(demo.scores.read_text(encoding="utf-8"))
    against: Dict[str, Dict[str, Interval]] = {}
    for pair in errors["significance"]["pairs"]:
        bootstrap: Mapping[str, Any] = pair["bootstrap"]
        # of the second system less the first; the pair has the opposite sign
        change = Interval(
            -bootstrap["difference"], -bootstrap["high"], -bootstrap["low"], pair["mapsswe"]["p"]
        )
        against.setdefault(pair["b"], {})[pair["a"]] = change
    mixtures = {name: read_figures(path)[-1] for name, path in demo.perplexities.items()}
    return [
        Row(name, errors[name]["wer"], mixtures.get(name, math.nan), against.get(name, {}))
        for name in (FIRST_PASS, TUNED_FIRST_PASS, *demo.hypotheses)
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
