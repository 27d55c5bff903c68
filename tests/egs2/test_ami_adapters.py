"""Adapters of the AMI recipe on few sentences: trainings, table and rule."""

import json

import pytest
from pretrained.tiny_models import write_model
from recipe_files import write_text

FOUND = {
    "lora_r64": {
        100: {"valid": [5.0, 7.0], "test": [9.0, 8.0]},
        250: {"valid": [4.0, 4.0], "test": [6.0, 6.0]},
    },
    "ivon_r64": {
        100: {"valid": [6.0, 4.0], "test": [10.0, 9.0], "samples": [9.5, 8.5]},
        250: {"valid": [4.5, 4.5], "test": [7.0, 7.0], "samples": [6.5, 6.5]},
    },
}


@pytest.fixture
def study(local):
    return local("ami", "adapters")


def test_the_table_marks_what_wins_on_the_validation_text(study):
    table = study.table_of(FOUND, {100: 8.0, 250: 5.0}, [100, 250])
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:]]
    assert rows == [
        ["lora_r64", "8.5 (9.0, 8.0)", "6.0 * (6.0, 6.0)"],
        ["ivon_r64", "9.5 * (10.0, 9.0)", "7.0 (7.0, 7.0)"],
        ["ivon_r64, 8 samples", "9.0 (9.5, 8.5)", "6.5 (6.5, 6.5)"],
        ["two seeds of lora_r64", "8.0", "5.0"],
    ]


def test_the_rule_counts_sizes_and_seeds(study):
    rule = "Lowest validation perplexity, of 4 sizes and seeds: lora_r64 in 3, ivon_r64 in 1.\n"
    assert study.rule_of(FOUND) == rule


@pytest.mark.slow
def test_parts_of_the_text_train_each_system(study, tmp_path, capsys):
    write_text(tmp_path, {"train": 40, "dev": 9, "eval": 9})
    base = write_model(tmp_path / "base")
    words = ["--base", f"hf:{base}", "--sizes", "9 20", "--seeds", "1 2", "--max_epoch", "1"]
    words += ["--systems", "lora_r4 ivon_r8", "--sentences", "6", "--exp", tmp_path / "exp"]
    for name, part in (("train", "train"), ("valid", "dev"), ("test", "eval")):
        words += [f"--{name}_text", tmp_path / f"{part}.txt"]
    study.main([str(word) for word in words])
    parts = {n: (tmp_path / "exp" / "text" / f"train_{n}.1.txt").read_text() for n in (9, 20)}
    small, large = (parts[n].splitlines() for n in (9, 20))
    assert len(small) == 9 and len(large) == 20 and not set(small) - set(large)
    found = json.loads((tmp_path / "exp" / "results.json").read_text())["systems"]
    assert set(found) == {"lora_r4", "ivon_r8"}
    assert len(found["ivon_r8"]["20"]["samples"]) == 2
    assert (tmp_path / "exp" / "RESULTS.md").read_text() in capsys.readouterr().out
