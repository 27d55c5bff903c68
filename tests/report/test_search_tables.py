"""Tables and files of a search, from rankings that are known."""

import json
import math

import pytest
import yaml

from espnet_bayeslm.report.search import (
    Retrained,
    Run,
    describe,
    print_ranking,
    print_retrained,
    print_weights,
    write_files,
    write_retrained,
)
from espnet_bayeslm.supernet import derived_config, rank

CONFIG = {"lm_conf": {"uncertainty": {"ffn@1-2": "search"}}}


def weights(*bayes):
    return {f"ffn@{n}": {"point": 0.0, "bayes": value} for n, value in enumerate(bayes, 1)}


@pytest.fixture
def runs():
    values = (weights(2.0, -1.0), weights(1.0, 0.5))
    return [Run(f"seed{n}", f"exp/seed{n}", n, value) for n, value in enumerate(values)]


@pytest.mark.parametrize(
    "choices, expected",
    [
        ({"ffn@1": "point"}, "point at all locations"),
        ({"ffn@1": "bayes", "ffn@2": "bayes", "embedding": "gp"}, "ffn@1-2 bayes, embedding gp"),
    ],
)
def test_an_architecture_in_words(choices, expected):
    assert describe(choices) == expected


def test_table_of_weights(runs, capsys):
    print_weights(runs)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["location", "kind", "share", "weights:", "seed0", "seed1"]
    share = sum(1 / (1 + math.exp(-value)) for value in (2.0, 1.0)) / 2
    assert lines[2] == ["ffn@1", "bayes", f"{share:.3f}", "+2.0000", "+1.0000"]
    assert lines[3][3:] == ["+0.0000", "+0.0000"] and len(lines) == 5


def test_table_of_the_ranking(runs, capsys):
    print_ranking(rank([run.weights for run in runs], 2), runs)
    lines = capsys.readouterr().out.splitlines()[1:]
    assert lines[0] == "The best of 4 architectures, by the mean over 2 runs of ln p"
    assert lines[1].split() == ["rank", "probability", "mean", "rank", "ranks", "architecture"]
    assert lines[2].split()[2:] == ["1.5", "1", "2", "ffn@1", "bayes"]
    assert lines[3].split()[2:] == ["1.5", "2", "1", "ffn@1-2", "bayes"]


def test_ranks_may_be_large_or_unknown(capsys):
    values = (weights(*[1.0] * 14), weights(*[-0.9] * 14), weights(*[-0.9] * 14))
    runs = [Run(f"seed{n}", "", n, value) for n, value in enumerate(values)]
    print_ranking(rank([run.weights for run in runs[:2]], 1), runs[:2])
    print_ranking(rank([run.weights for run in runs[:2]], 1, limit=10), runs[:2])
    rows = [line for line in capsys.readouterr().out.splitlines() if "bayes" in line]
    assert rows[0].split()[2:5] == ["8192.5", "1", "16384"]
    assert rows[1].split()[2:5] == ["-", "1", "-"]


def test_one_run_has_no_ranks(runs, capsys):
    print_ranking(rank([runs[0].weights], 4), runs[:1])
    out = capsys.readouterr().out
    assert "ranks" not in out and "runs" not in out and out.count("\n") == 7


def test_files(runs, tmp_path):
    ranking = rank([run.weights for run in runs], 3)
    configs = [derived_config(CONFIG, item.choices) for item in ranking]
    write_files(tmp_path, runs, ranking, configs, howto=[["how"]] * 3)
    files = {"architecture.png", "search.json", "top1.yaml", "top2.yaml", "top3.yaml"}
    assert {path.name for path in tmp_path.iterdir()} == files
    text = (tmp_path / "top2.yaml").read_text()
    assert text.startswith("# Rank 2 of 4 in an architecture search: ffn@1-2 bayes.\n# Probability")
    assert "rank in each: 2, 1 (mean 1.5).\n# how\nlm_conf:" in text
    assert yaml.safe_load(text) == configs[1]
    content = json.loads((tmp_path / "search.json").read_text())
    assert [row["uncertainty"] for row in content["ranking"]] == [
        config["lm_conf"]["uncertainty"] for config in configs
    ]
    first = content["ranking"][0]
    assert math.prod(first["probabilities"]) == pytest.approx(first["probability"] ** 2)


def test_retrained(runs, tmp_path, capsys):
    ranking = rank([run.weights for run in runs], 2)
    results = [Retrained(n, f"exp/top{n}", ["start.pth"], 50.0 + n, n, 5) for n in (1, 2)]
    write_retrained(tmp_path / "retrain.json", results, ranking)
    print_retrained(results, ranking)
    rows = json.loads((tmp_path / "retrain.json").read_text())
    assert [(row["rank"], row["valid_ppl"], row["epoch"]) for row in rows] == [
        (1, 51, 1),
        (2, 52, 2),
    ]
    assert rows[1]["choices"] == ranking[1].choices
    last = capsys.readouterr().out.splitlines()[-1].split()
    assert last[0] == "2" and last[2:] == ["52.00", "2", "of", "5", "ffn@1-2", "bayes"]
