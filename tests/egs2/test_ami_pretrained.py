"""The AMI recipe's experiments with a pretrained LM, on a tiny base model."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from pretrained.tiny_models import write_model

RECIPE = Path(__file__).parents[2] / "egs2" / "ami" / "lm"


@pytest.mark.slow
def test_a_part_is_adapted_and_evaluated(tmp_path):
    write_model(tmp_path / "base")
    for name, count in (("train", 20), ("dev", 20), ("eval", 3)):
        folder = tmp_path / "data" / name
        folder.mkdir(parents=True)
        lines = [f"so we could put the remote {'on' if n % 2 else 'off'}" for n in range(count)]
        (folder / "text.plain").write_text("".join(f"{line}\n" for line in [*lines, "unheard"]))
    words = ["so", "we", "could", "put", "the", "remote", "on", "off"]
    (tmp_path / "data" / "lexicon_words.txt").write_text("".join(f"{w}\n" for w in words))
    (tmp_path / "path.sh").write_text(f"PYTHON={sys.executable}\n")
    words = [*("--base", f"hf:{tmp_path / 'base'}"), *("--seeds", "1"), *("--epochs", "1")]
    names = ["--systems", "lora_r4 bayes_lora_both ivon_lora", "--percent", "50"]
    environment = {**os.environ, "PYTHONPATH": str(RECIPE.parents[2]), "OMP_NUM_THREADS": "1"}
    subprocess.run(
        ["bash", str(RECIPE / "local" / "pretrained.sh"), *words, *names],
        cwd=tmp_path,
        env=environment,
        check=True,
    )
    exp = tmp_path / "exp" / "pretrained"
    assert len((exp / "train.txt").read_text().splitlines()) == 10
    assert len((exp / "eval.txt").read_text().splitlines()) == 3
    for name in (
        "lora_r4.1/eval.txt",
        "bayes_lora_both.1/eval_samples.txt",
        "ivon_lora.1/eval.txt",
    ):
        assert re.search(r"\d+\.\d", (exp / name).read_text())
