"""`bayeslm quickstart`: the shipped text and lists, to LMs, rescored lists and a table."""

from __future__ import annotations

import gzip
import json
import sys
import time
from pathlib import Path
from typing import Dict, List, Optional, Tuple

from espnet_bayeslm.quickstart import small_lm
from espnet_bayeslm.quickstart.error_table import POINT, TUNED, read_rows, table
from espnet_bayeslm.quickstart.runner import SETS, Runner, mixture_key, words
from espnet_bayeslm.quickstart.small_lm import SmallLM
from espnet_bayeslm.quickstart.steps import HEAVY, Step, Tool, run_steps
from espnet_bayeslm.rescoring.output_files import WITHOUT_LM
from espnet_bayeslm.utils.engine import LOCAL
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import check_folder, staged, write_text
from espnet_bayeslm.utils.locks import folder_lock

SHIPPED = Path(__file__).parent
# System -> the LMs that are interpolated with the 3-gram
SYSTEMS = {
    "3-gram": (),
    POINT: ("point",),
    "Bayesian + 3-gram": ("bayes",),
    "Bayesian + point-estimate + 3-gram": ("bayes", "point"),
}


def run(output: str, *, tool: Tool, data: Path = SHIPPED / "data", epochs: int = 0) -> None:
    """Make OUTPUT/RESULTS.md and OUTPUT/report.html, and print the table.

    The LMs are trained on `train.txt`, for `epochs` epochs or as the configurations say (0).
    Interpolation weights and the scales of scores are tuned on dev. The set eval is scored once,
    with the tuned values. Where peft, gguf and SmolLM2's file are found, two more systems have
    SmolLM2 as it is and with a Bayesian adapter. A run that was stopped goes on.
    """
    check_folder(output)
    begin, folder = time.monotonic(), Path(output)
    with folder_lock(folder):
        unpack(data, folder)
        source = small_lm.find()
        demo = Demo(folder, epochs, small_lm.SmallLM(folder, source) if source else None)
        stages = demo.stages()
        commands = "".join(step.script() for _, steps in stages for step in steps)
        write_text(folder / "commands.sh", commands)
        with LOCAL.pool(trains=True, preload=HEAVY) as pool:
            for what, steps in stages:
                print(f"[{time.monotonic() - begin:3.0f} s] {what}", file=sys.stderr, flush=True)
                run_steps(pool, steps, folder / "log", tool)
        text = table(read_rows(demo.scores, demo.perplexities(), names=demo.hypotheses()))
        text += small_lm.EXPLANATION if demo.small_lm else ""
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
    for name in SETS:
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

    Each training has `epochs` epochs, or as many as the configurations say (0).
    """

    def __init__(self, folder: Path, epochs: int, small_lm: Optional[SmallLM] = None):
        self.small_lm = small_lm
        self.data, self.scores = folder / "data", folder / "score.json"
        files = {"train": "train.txt", "valid": "dev.txt", "test": "eval.txt"}
        texts = {name: self.data / file for name, file in files.items()}
        super().__init__(folder, texts, {"max_epoch": epochs or None}, {})

    def stages(self) -> List[Tuple[str, List[Step]]]:
        """Stages in their order: a description, and the steps, which run side by side."""
        half = self.exp / "half"
        second = dict(config=self.data / "bayes.yaml", source=half)
        lms = [
            # the same steps, without uncertainty
            self.train(self.exp / "point", **second, lm_conf="uncertainty={}"),
            self.train(self.exp / "bayes", **second),
        ]
        alone, point, bayes, both = map(self.system, SYSTEMS)
        # what takes long goes first
        ngram = self.estimate()
        more = self.small_lm.stages(ngram) if self.small_lm else ([ngram], [])
        # the scores of the neural LMs are kept for the mixture of both
        return [
            (
                "a 3-gram, and an LM with point-estimate weights, half-trained",
                [*more[0], self.train(half, self.data / "half.yaml")],
            ),
            ("it goes on with point-estimate weights, and with random ones", [*more[1], *lms]),
            ("interpolation weights, perplexity, rescored lists", [point, bayes]),
            ("the same with the 3-gram alone, and with both LMs", [both, alone]),
            ("significance, report", [Step("report", [self.errors(), self.report()])]),
        ]

    def system(self, name: str) -> Step:
        """Weights and scales of a system, tuned on dev, then its perplexity and lists of eval."""
        lms, key = [self.exp / lm for lm in SYSTEMS[name]], mixture_key(SYSTEMS[name])
        commands = [*self.mixture(key, lms), *self.rescoring(key, lms, self.data)]
        return Step(f"rescore_{key}", commands)

    def perplexities(self) -> Dict[str, Path]:
        """System -> its perplexity of eval."""
        return {name: self.perplexity(mixture_key(lms)) for name, lms in SYSTEMS.items()}

    def hypotheses(self) -> Dict[str, Path]:
        """System -> the folder of its rescored lists of eval."""
        keys = {name: mixture_key(lms) for name, lms in SYSTEMS.items()}
        keys.update(small_lm.SYSTEMS if self.small_lm else {})
        return {name: self.rescored(key) for name, key in keys.items()}

    def errors(self) -> List[str]:
        """Command line of the word errors of all systems on eval, with their tests."""
        # the control is the same in each system's folder
        texts = {TUNED: self.rescored(mixture_key(())) / WITHOUT_LM}
        texts.update((name, folder / "text") for name, folder in self.hypotheses().items())
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
            perplexity=[f"{name}={path}" for name, path in self.perplexities().items()],
            rescored=[f"{name}={folder}" for name, folder in self.hypotheses().items()],
            nbest_format="jsonl",
            exp=[f"{name}={self.exp / name}" for name in ("point", "bayes")],
            title="bayeslm quickstart",
            output=self.exp / "report.html",
        )
