"""local/little_text.py: parts of the text, and word error rates beside `bayeslm compare`."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from pretrained.tiny_models import write_model
from recipe_files import write, write_lists, write_text

from espnet_bayeslm.utils.errors import InputError


@pytest.fixture
def little(local):
    return local("ami", "little_text")


@pytest.fixture
def data(tmp_path):
    """Texts as stage 1 leaves them."""
    write_text(tmp_path / "texts", {"train": 600, "dev": 40, "eval": 30})
    for name in ("train", "dev", "eval"):
        lines = (tmp_path / "texts" / f"{name}.txt").read_text()
        write(tmp_path / "data" / name / "text.plain", lines)
    return tmp_path / "data"


def test_parts_are_the_same_at_each_call(little, data, tmp_path):
    paths = little.write_parts(data, tmp_path / "a", percent=10, sentences=7)
    again = little.write_parts(data, tmp_path / "b", percent=10, sentences=7)
    parts = [path.read_text().splitlines() for path in paths]
    assert parts == [path.read_text().splitlines() for path in again]
    assert [len(part) for part in parts] == [60, 7, 7]
    train, dev = ((data / n / "text.plain").read_text().splitlines() for n in ("train", "dev"))
    assert set(parts[0]) <= set(train) and parts[0] != train[:60]
    assert parts[1] == [dev[n] for n in (0, 5, 11, 17, 22, 28, 34)]


@pytest.mark.parametrize("options", [dict(percent=0, sentences=1), dict(percent=10, sentences=0)])
def test_no_part(little, data, tmp_path, options):
    with pytest.raises(InputError, match="expected 1 to 100, at least 1"):
        little.write_parts(data, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_from_text_to_both_tables(little, data, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for seed, name in enumerate(("dev", "eval")):
        lines = (data / name / "text.plain").read_text().splitlines()
        refs = {f"u{n:02}": line.split() for n, line in enumerate(lines[:20])}
        write_lists(data / "nbest" / f"{name}_far", refs, seed=seed)
    options = ["--size", "tiny", "--epochs", "1", "--seeds", "1 2", "--dropout_rates", "0.1"]
    little.main(options)
    exp = tmp_path / "exp" / "little_text" / "transformer_tiny_10"
    rows = (exp / "WER.md").read_text().splitlines()[2:]
    assert [row.split(" | ")[:2] for row in rows] == [["| 1", "far"], ["| 2", "far"]]
    assert (exp / "WER.md").read_text() in capsys.readouterr().out
    for row in rows:
        point, both, difference = (float(cell) for cell in row.split(" | ")[2:5])
        assert difference == pytest.approx(both - point, abs=0.011)
        assert 0 < point < 100


# The AMI recipe's experiments with a pretrained LM, on a tiny base model.


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
