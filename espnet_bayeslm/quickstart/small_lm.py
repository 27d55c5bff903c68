"""SmolLM2 in the quick start, as it is and with a Bayesian adapter."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import List, Optional, Sequence, Tuple

from espnet_bayeslm.pretrained.names import PREFIX, find_small_lm
from espnet_bayeslm.quickstart.runner import Runner, words
from espnet_bayeslm.quickstart.steps import Step
from espnet_bayeslm.utils.files import staged

# It reads some hundred tokens a second of a core: all hypotheses and texts would take ten minutes.
HYPOTHESES = 3
# Lists by which the scales of scores are tuned
LISTS = 100
# Sentences of each text that are read, evenly from all; those of valid weigh the mixture too
SENTENCES = {"train": 400, "valid": 100}
# System -> key of its mixture
SYSTEMS = {
    "SmolLM2 as it is + 3-gram": "smollm2_3gram",
    "SmolLM2, Bayesian adapter + 3-gram": "smollm2_adapter_3gram",
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


class SmallLM(Runner):
    """Steps of the systems with SmolLM2, of the file `source`."""

    def __init__(self, exp: Path, source: Path):
        self.source, self.folder, self.data = source, exp / "smollm2_base", exp / "smollm2_data"
        precision = fast_precision()
        texts = {name: self.data / f"{name}.txt" for name in SENTENCES}
        # one short epoch: small batches, a larger rate
        fast = {"max_epoch": 1, "batch_bins": 256, "optim_conf": "lr=0.001"}
        training = {**fast, "lm_conf": f"precision={precision}"}
        super().__init__(exp, texts, training, {"precision": precision})
        if not self.data.exists():
            write_parts(exp / "data", self.data)

    def stages(self, ngram: Step) -> Tuple[List[Step], List[Step]]:
        """Steps beside those of the first and the second stage of the quick start.

        The first begins with the 3-gram, so that SmolLM2 as it is can be rescored with meanwhile.
        """
        base = f"{PREFIX}{self.folder}"
        convert = words("export", lm=self.source, format="hf", output=self.folder)
        as_it_is, adapted = SYSTEMS.values()
        system = self._system(as_it_is, base, text_form="lower")
        train = self.train(self.exp / "smollm2_adapter", "bayes_lora", source=base)
        commands = [*train.commands, *self._system(adapted, self.exp / train.name)]
        first = Step("rescore_smollm2", [*ngram.commands, convert, *system])
        return [first], [Step(train.name, commands)]

    def _system(self, key: str, lm: object, **form: str) -> List[List[str]]:
        """Interpolation weights, scales tuned on dev, rescored lists of eval."""
        lists = self.rescoring(key, [lm], self.data, **form)
        return [self.interpolated(key, [lm], **form), *lists]


def write_parts(data: Path, folder: Path) -> None:
    """Write the first hypotheses of the lists, and some sentences of the texts."""
    with staged(folder) as place:
        for part, most in (("dev", LISTS), ("eval", None)):
            lists = map(json.loads, (data / f"{part}.jsonl").read_text("utf-8").splitlines()[:most])
            lines = [{**item, "hypotheses": item["hypotheses"][:HYPOTHESES]} for item in lists]
            text = "".join(f"{json.dumps(line)}\n" for line in lines)
            (place / f"{part}.jsonl").write_text(text, "utf-8")
        for name, file in (("train", "train.txt"), ("valid", "dev.txt")):
            sentences = (data / file).read_text("utf-8").splitlines()
            text = "".join(f"{line}\n" for line in evenly(sentences, SENTENCES[name]))
            (place / f"{name}.txt").write_text(text, "utf-8")


def evenly(lines: Sequence[str], count: int) -> List[str]:
    """At most so many lines, evenly from all."""
    count = min(count, len(lines))
    return [lines[n * len(lines) // count] for n in range(count)]
