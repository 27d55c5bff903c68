"""Tables and files of a search, from rankings that are known."""

import json
import math
import re

import pytest
import yaml

from espnet_bayeslm.kinds.architectures import derived_config, rank
from espnet_bayeslm.report.search_results import (
    Retrained,
    Run,
    ranking_table,
    write_files,
    write_retrained,
)

CONFIG = {"lm_conf": {"uncertainty": {"ffn@1-2": "search"}}}


def weights(*bayes):
    return {f"ffn@{n}": {"point": 0.0, "bayes": value} for n, value in enumerate(bayes, 1)}


RUNS = [
    Run(f"seed{n}", f"exp/seed{n}", n, weights(*values))
    for n, values in enumerate([(2.0, -1.0), (1.0, 0.5)])
]
RANKING = rank([run.weights for run in RUNS], 3)
CONFIGS = [derived_config(CONFIG, item.choices) for item in RANKING]


def rows(*args):
    """Return the cells of a printed table."""
    lines = [re.split("  +", line) for line in ranking_table(*args).text().splitlines()]
    return [[cell.strip() for cell in row if cell.strip()] for row in lines]


def test_table_of_the_ranking():
    caption = "The best of 4 architectures, by the mean over 2 runs of ln p"
    assert ranking_table(RANKING, RUNS).caption == caption
    header, *found = rows(RANKING[:2], RUNS)
    ranks = ["mean rank", "rank, seed0", "rank, seed1"]
    assert header == ["rank", "architecture", "probability", *ranks]
    assert [[row[1], *row[3:]] for row in found] == [
        ["ffn@1 bayes", "1.5", "1", "2"],
        ["ffn@1-2 bayes", "1.5", "2", "1"],
    ]


def test_a_rank_beyond_the_limit_is_a_dash():
    runs = [Run(f"seed{n}", "", n, weights(*[w] * 14)) for n, w in enumerate((1.0, -0.9))]
    ranking = rank([run.weights for run in runs], 1, limit=10)
    assert rows(ranking, runs)[-1][3:6] == ["-", "1", "-"]


def test_files(tmp_path):
    write_files(tmp_path, RUNS, RANKING, CONFIGS)
    files = {"architecture.png", "search.json", "top1.yaml", "top2.yaml", "top3.yaml"}
    assert {path.name for path in tmp_path.iterdir()} == files
    text = (tmp_path / "top2.yaml").read_text()
    assert text.startswith("# Rank 2 of 4 in an architecture search: ffn@1-2 bayes.\n# Probability")
    assert "rank in each: 2, 1 (mean 1.5).\n# Train it" in text
    assert yaml.safe_load(text) == CONFIGS[1]
    content = json.loads((tmp_path / "search.json").read_text())
    given = [config["lm_conf"]["uncertainty"] for config in CONFIGS]
    assert [row["uncertainty"] for row in content["ranking"]] == given
    first = content["ranking"][0]
    assert math.prod(first["probabilities"]) == pytest.approx(first["probability"] ** 2)


def test_a_share_of_zero_is_valid_json(tmp_path):
    run = Run("seed0", "exp/seed0", 0, {"ffn@1": {"point": -math.inf, "bayes": 0.0}})
    ranking = rank([run.weights], 2)
    write_files(tmp_path, [run], ranking, CONFIGS[:2])
    content = json.loads((tmp_path / "search.json").read_text())
    assert content["runs"][0]["weights"]["ffn@1"]["point"] is None
    assert content["ranking"][1]["probability"] == 0


def test_retrained(tmp_path):
    results = [Retrained(n, f"exp/top{n}", ["start.pth"], 50.0 + n, n, 5) for n in (1, 2)]
    write_retrained(tmp_path / "retrain.json", results, RANKING)
    found = json.loads((tmp_path / "retrain.json").read_text())
    keys = ("rank", "valid_ppl", "epoch", "choices")
    assert [[row[key] for key in keys] for row in found] == [
        [n, 50.0 + n, n, RANKING[n - 1].choices] for n in (1, 2)
    ]
    first, second, third = rows(RANKING, RUNS[:1], results)[1:]
    assert second[:2] == ["2", "ffn@1-2 bayes"] and second[3:] == ["52.00", "2 of 5"]
    assert first[3:] == ["51.00", "1 of 5"] and third[3:] == ["-", "-"]
