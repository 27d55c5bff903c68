"""Tables, files and figures of word errors and of searches, from results that are known."""

import dataclasses
import io
import json
import math
import re

import pytest
import yaml
from matplotlib.colors import same_color

from espnet_bayeslm.evaluation.comparison import Mapsswe, Scores, SystemPair, WerDifference
from espnet_bayeslm.evaluation.wer import Counted, ErrorCounts
from espnet_bayeslm.kinds.architectures import (
    HISTORY,
    derived_config,
    rank,
    read_history,
    shares,
    write_history,
)
from espnet_bayeslm.report import table
from espnet_bayeslm.report.score_results import RESERVED, SystemScores, print_scores, scores_json
from espnet_bayeslm.report.search_results import (
    Retrained,
    Run,
    history_figure,
    ranking_table,
    weights_figure,
    write_retrained,
    write_search,
)
from espnet_bayeslm.utils.errors import InputError

COUNTED = Counted(normalize=("lower",), text_forms={"lm": "as_is"}, tuned_on="dev.text")


def result(z, errors_b, words=100):
    """Return the results of A (20 errors), B and an oracle, with this Z."""
    pair = SystemPair(
        "a",
        "b",
        Mapsswe(30, z / 10, 1.5, z, 0.04),
        WerDifference(0.05, -0.001, 0.1234, 0.975, worsening=0.01),
    )
    counts = {"a": 20, "b": errors_b, "oracle": 3}
    return Scores({n: ErrorCounts(e, 0, 0, words) for n, e in counts.items()}, [pair])


def printed(capsys, *scores):
    print_scores(SystemScores(*scores))
    return [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]


def test_one_condition(capsys):
    scores = result(2.5, 15)
    lines = printed(capsys, {"": scores}, scores, "a")
    assert lines[0] == "WER % sub del ins words"
    rows = ["a 20.00 20 0 0 100", "b 15.00† 15 0 0 100", "oracle 3.00 3 0 0 100"]
    assert lines[1:4] == rows
    assert lines[6] == "a b† +5.00 -0.10 to +12.34 0.975 30 +0.2500 +2.500 0.04"
    assert lines[-1].startswith("† fewer, ‡ more errors than a:")


@pytest.mark.parametrize(
    "z, baseline, marks",
    [(1.96, "a", {}), (2, "a", {"b": "†"}), (-2, "b", {"a": "†"}), (-2, "a", {"b": "‡"})],
)
def test_daggers_mark_what_is_better_than_the_baseline(capsys, z, baseline, marks):
    scores = result(z, 15)
    cells = [line.split()[:2] for line in printed(capsys, {"": scores}, scores, baseline)[1:4]]
    assert {name: rate[-1] for name, rate in cells if not rate[-1].isdigit()} == marks
    better = scores_json(SystemScores({}, scores, baseline))["significance"]["better"]
    assert better == [name for name, mark in marks.items() if mark == "†"]


def test_several_conditions(capsys):
    conditions = {"near": result(0.5, 18), "far": result(3, 10, words=300)}
    lines = printed(capsys, conditions, result(2.8, 28, words=400), "a")
    assert [line for line in lines if line in ("near:", "far:")] == ["near:", "far:"]
    assert not any(line.startswith("counted") for line in lines)
    start = lines.index("WER % near far average pooled")
    assert lines[start + 2] == "b 18.00 3.33† 10.67 7.00†"
    assert lines[start + 3].startswith("oracle ")
    # below every table of rates, and below no table of differences
    lines = printed(capsys, conditions, result(2.8, 28, words=400), "a", "word", COUNTED)
    below = [lines[n - 1].split()[0] for n, line in enumerate(lines) if line == str(COUNTED)]
    assert below == ["oracle"] * 4


def test_the_counting_stands_in_every_form_of_a_table():
    rates = table.Table("", ["", "WER %"], [["a", "20.00"]], counted=COUNTED)
    assert rates.text() == f"   WER %\na  20.00\n{COUNTED}"
    assert rates.markdown().endswith(f"20.00 |\n\n{COUNTED}\n")
    assert rates.data()["counted"] == dataclasses.asdict(COUNTED)
    plain = table.Table("", ["", "WER %"], [["a", "20.00"]])
    assert "counted" not in plain.data() and "counted" not in plain.text() + plain.markdown()


def test_an_encoding_without_daggers(monkeypatch):
    for encoding, marks in (("utf-8", "†‡ "), ("latin-1", "+- "), ("ascii", "+- ")):
        monkeypatch.setattr(table.sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding))
        assert table.printed("†‡ ") == marks


def test_json():
    conditions = {"near": result(0.5, 18), "far": result(3, 10, words=300)}
    pooled = result(2.8, 28, words=400)
    scores = SystemScores(conditions, pooled, "a", counted=COUNTED)
    scores = scores._replace(parts={"U-WER": SystemScores({}, pooled, "a", own_rate="U-WER")})
    found = json.loads(json.dumps(scores_json(scores)))
    assert list(found) == ["a", "b", "oracle", *RESERVED]
    assert found["b"]["errors"] == 28 and found["b"]["wer"] == pytest.approx(7.0)
    assert found["conditions"]["far"]["b"]["wer"] == pytest.approx(10 / 3)
    assert found["counted"] == {
        **dataclasses.asdict(COUNTED),
        "normalize": ["lower"],
        "ignored": [],
    }
    assert "counted" not in found["conditions"]["far"]
    assert found["average_wer"]["b"] == pytest.approx((18 + 10 / 3) / 2)
    (pair,) = found["significance"]["pairs"]
    assert found["significance"]["baseline"] == pair["a"] == "a" and pair["b"] == "b"
    test = {"segments": 30, "mean": 0.28, "std": 1.5, "z": 2.8, "p": 0.04, "significant": True}
    assert pair["mapsswe"] == pytest.approx(test)
    interval = {"difference": 5.0, "low": -0.1, "high": 12.34, "level": 0.95, "improvement": 0.975}
    assert pair["bootstrap"] == pytest.approx({**interval, "worsening": 0.01})


def test_identical_outputs(capsys):
    scores = result(0.0, 20)
    pair = dataclasses.replace(scores.pairs[0], identical=True)
    scores = Scores(scores.errors, [pair])
    lines = printed(capsys, {"": scores}, scores, "a")
    assert lines[6].startswith("a b +5.00 identical outputs - ")
    (found,) = scores_json(SystemScores({}, scores, "a"))["significance"]["pairs"]
    assert found["identical"] is True


def test_characters(capsys):
    scores = result(2.5, 15)
    print_scores(SystemScores({"x": scores, "y": scores}, scores, "a", "char"))
    text = capsys.readouterr().out
    assert "WER" not in text and "words" not in text
    assert text.count("CER %") == 4 and "A - B: CER of A less CER of B" in text
    found = scores_json(SystemScores({}, scores, "a", "char"))
    assert found["b"]["unit"] == "char" and found["b"]["wer"] == 15.0


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
    runs = [Run(f"seed{n}", "", n, weights(*[w] * 14)) for n, w in enumerate((1.0, -0.9))]
    ranking = rank([run.weights for run in runs], 1, limit=10)
    assert rows(ranking, runs)[-1][3:6] == ["-", "1", "-"]


def test_files(tmp_path):
    write_search(tmp_path, RUNS, RANKING, CONFIGS)
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
    run = Run("seed0", "exp/seed0", 0, {"ffn@1": {"point": -math.inf, "bayes": 0.0}})
    ranking = rank([run.weights], 2)
    write_search(tmp_path, [run], ranking, CONFIGS[:2])
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


MIXED = {
    **{f"ffn@{layer}": ("point", "bayes", "gp") for layer in (1, 2, 3)},
    "embedding": ("point", "bayes"),
    **{f"hidden_output@{layer}": ("point", "variational") for layer in (1, 2, 3)},
}
COLOURS = {"point": "tab:red", "bayes": "tab:blue", "gp": "tab:green", "variational": "tab:purple"}


def weights_of(space, start=0):
    numbers = iter(range(start, 10_000))
    return {name: {kind: next(numbers) % 17 / 7 for kind in kinds} for name, kinds in space.items()}


@pytest.mark.parametrize("num_runs", [1, 3])
def test_bars_are_the_mean_shares(num_runs):
    runs = {f"seed{n}": weights_of(MIXED, start=n) for n in range(num_runs)}
    figure = weights_figure(runs)
    (axes,) = figure.axes
    names = [text.get_text() for text in axes.get_xticklabels()]
    assert names == list(MIXED)
    tables = [shares(run) for run in runs.values()]
    found = {name: {} for name in names}
    for bar in axes.patches:
        kind = next(k for k, c in COLOURS.items() if same_color(bar.get_facecolor(), c))
        found[names[round(bar.get_x() + bar.get_width() / 2)]][kind] = bar.get_height()
    for location, kinds in MIXED.items():
        mean = {kind: sum(t[location][kind] for t in tables) / num_runs for kind in kinds}
        assert found[location] == pytest.approx(mean)
    dots = [line for line in axes.lines if line.get_marker() == "o"]
    assert len(dots) == (0 if num_runs == 1 else sum(map(len, MIXED.values())))
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()][:4] == list(COLOURS)


def test_lines_are_the_shares_over_the_training():
    records = [(epoch / 2, weights_of(MIXED, start=epoch)) for epoch in range(5)]
    figure = history_figure({"seed0": records, "seed1": records[:3], "none": []})
    panels = {axes.get_title(): axes for axes in figure.axes}
    assert list(panels) == list(MIXED)
    for location, kinds in MIXED.items():
        drawn = panels[location].lines[:-1]
        assert len(drawn) == 2 * (len(kinds) - 1)
        expected = [shares(w)[location][kinds[1]] for _, w in records]
        assert list(drawn[0].get_ydata()) == pytest.approx(expected)
        assert list(drawn[0].get_xdata()) == [0, 0.5, 1, 1.5, 2]
        assert same_color(drawn[0].get_color(), COLOURS[kinds[1]])
        assert len(drawn[-1].get_xdata()) == 3
    with pytest.raises(InputError, match="no record"):
        history_figure({"seed0": []})


def test_reading_a_history(tmp_path):
    records = [(0.5, weights_of(MIXED)), (1.0, weights_of(MIXED, start=3))]
    write_history(tmp_path, 1, records)
    assert read_history(tmp_path / HISTORY) == records
    (tmp_path / HISTORY).write_text("")
    assert read_history(tmp_path / HISTORY) == []


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[]",
        '{"epoch": 2}',
        '{"epoch": "two", "weights": {"ffn@1": {"point": 0, "bayes": 0}}}',
        '{"epoch": 2, "weights": {"ffn@1": {}}}',
        '{"epoch": 2, "weights": {"ffn@1": [0, 1]}}',
        '{"epoch": 2, "weights": {"ffn@1": {"point": null, "bayes": 0}}}',
        '{"epoch": 2, "weights": {"ffn@1": {"point": NaN, "bayes": 0}}}',
        '{"epoch": 2, "weights": {"ffn@2": {"point": 0, "bayes": 0}}}',
        '{"epoch": 2, "weights": {"ffn@1": {"point": 0, "gp": 0}}}',
        '{"epoch": 2, "weights": {"ffn@1": {"poi',
    ],
)
def test_a_bad_line_is_named(line, tmp_path):
    path = tmp_path / HISTORY
    write_history(tmp_path, 1, [(1.0, {"ffn@1": {"point": 0.0, "bayes": 1.0}})])
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(InputError, match=r"\.jsonl:2: "):
        read_history(path)
