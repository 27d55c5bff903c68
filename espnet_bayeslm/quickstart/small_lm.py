"""SmolLM2 in the quick start, as it is and with a Bayesian adapter."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Dict, List, Optional, Sequence, Tuple

from espnet_bayeslm.pretrained.names import PREFIX, find_small_lm
from espnet_bayeslm.quickstart.runner import words
from espnet_bayeslm.quickstart.steps import Step
from espnet_bayeslm.utils.files import staged

# It reads some hundred tokens a second of a core: all hypotheses and texts would take ten minutes.
HYPOTHESES = 3
# Lists by which the scales of scores are tuned
LISTS = 100
# Sentences of each text that are read, evenly from all; those of valid weigh the mixture too
SENTENCES = {"train": 400, "valid": 100}
AS_IT_IS, ADAPTED = "smollm2", "smollm2_adapter"
SYSTEMS = {
    "SmolLM2 as it is + 3-gram": AS_IT_IS,
    "SmolLM2, Bayesian adapter + 3-gram": ADAPTED,
}
EXPLANATION = f"""\
SmolLM2 chooses among the first {HYPOTHESES} hypotheses of each list, the other LMs among all. Its
perplexity is not measured: that alone would take minutes. Its adapter is trained on
{SENTENCES["train"]} sentences of the text. On a CPU with bfloat16 it is read in this precision.
"""


def find() -> Optional[Path]:
    """SmolLM2's file; None where it, peft or gguf is not installed."""
    has_packages = all(map(importlib.util.find_spec, ("transformers", "peft", "gguf")))
    return find_small_lm() if has_packages else None


def fast_precision() -> str:
    """`bfloat16` if this CPU multiplies it faster than float32, and else `float32`."""
    import torch

    from espnet_bayeslm.kernels.product import has_onednn

    info = Path("/proc/cpuinfo")
    flags = info.read_text("utf-8").split() if info.is_file() else []
    # oneDNN emulates it on a CPU without these instructions, and may be held to fewer of them
    has_it = {"avx512_bf16", "amx_bf16"} & set(flags) and has_onednn(torch.bfloat16)
    return "bfloat16" if has_it else "float32"


class SmallLM:
    """Steps of the systems with SmolLM2.

    Args:
        exp: The folder of all that is made, with the data.
        source: SmolLM2's file.
    """

    def __init__(self, exp: Path, source: Path):
        self.exp, self.source, self.precision = exp, source, fast_precision()
        self.folder, self.data = exp / "smollm2_base", exp / "smollm2_data"
        if not self.data.exists():
            write_parts(exp / "data", self.data)

    def stages(self, ngram: Step) -> Tuple[List[Step], List[Step]]:
        """Steps beside those of the first and the second stage of the quick start.

        The first begins with the 3-gram, so that SmolLM2 as it is can be rescored with meanwhile.
        """
        options = {"lm": self.source, "format": "hf", "output": self.folder}
        as_it_is = self._system(AS_IT_IS, f"{PREFIX}{self.folder}")
        first = [*ngram.commands, words("export", **options), *as_it_is]
        adapted = [self._train(), *self._system(ADAPTED, str(self.exp / ADAPTED))]
        return [Step(f"rescore_{AS_IT_IS}", first)], [Step(ADAPTED, adapted)]

    def _train(self) -> Sequence[str]:
        """Command line of the adapter's training."""
        texts = {f"{name}_text": self.data / f"{name}.txt" for name in SENTENCES}
        source = {"from": f"{PREFIX}{self.folder}", "exp": self.exp / ADAPTED}
        # one short epoch: small batches, a larger rate
        fast = {"max_epoch": 1, "batch_bins": 256, "optim_conf": "lr=0.001"}
        conf = f"precision={self.precision}"
        return words("train", config="bayes_lora", **source, **texts, **fast, lm_conf=conf)

    def _system(self, key: str, lm: str) -> List[Sequence[str]]:
        """Interpolation weights, scales tuned on dev, rescored lists of eval."""
        weights = self.exp / "weights" / f"{key}_3gram.yaml"
        common = {"lm": lm, "ngram": self.exp / "3gram.arpa", "precision": self.precision}
        if key == AS_IT_IS:
            common["text_form"] = "lower"
        dev, test = (self.exp / "rescored" / f"{key}_3gram" / part for part in ("dev", "eval"))
        lists = {"nbest_format": "jsonl", "weights": weights, **common}
        tuned = {"nbest": self.data / "dev.jsonl", "output": dev}
        applied = {"nbest": self.data / "eval.jsonl", "output": test}
        return [
            words("interpolate", text=self.data / "valid.txt", output=weights, **common),
            words("rescore", **lists, **tuned),
            words("rescore", **lists, **applied, scales=dev / "scales.yaml"),
        ]

    def rescored(self) -> Dict[str, Path]:
        """System -> the folder of its rescored lists of eval."""
        return {
            name: self.exp / "rescored" / f"{key}_3gram" / "eval" for name, key in SYSTEMS.items()
        }


def write_parts(data: Path, folder: Path) -> None:
    """Write the first hypotheses of the lists, and some sentences of the texts."""
    with staged(folder) as place:
        for part, most in (("dev", LISTS), ("eval", None)):
            lists = map(json.loads, (data / f"{part}.jsonl").read_text("utf-8").splitlines()[:most])
            lines = [{**item, "hypotheses": item["hypotheses"][:HYPOTHESES]} for item in lists]
            _write(place / f"{part}.jsonl", [json.dumps(line) for line in lines])
        for name, file in (("train", "train.txt"), ("valid", "dev.txt")):
            sentences = (data / file).read_text("utf-8").splitlines()
            _write(place / f"{name}.txt", evenly(sentences, SENTENCES[name]))


def evenly(lines: Sequence[str], count: int) -> List[str]:
    """At most so many lines, evenly from all."""
    count = min(count, len(lines))
    return [lines[n * len(lines) // count] for n in range(count)]


def _write(path: Path, lines: Sequence[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8")
