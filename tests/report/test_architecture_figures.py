"""Figures of architecture weights, drawn from numbers that are known."""

import json

import pytest
from matplotlib.colors import same_color

from espnet_bayeslm.kinds.architectures import read_history, shares
from espnet_bayeslm.report.search_results import history_figure, weights_figure
from espnet_bayeslm.utils.errors import InputError

MIXED = {
    **{f"ffn@{layer}": ("point", "bayes", "gp") for layer in (1, 2, 3)},
    "embedding": ("point", "bayes"),
    **{f"hidden_output@{layer}": ("point", "variational") for layer in (1, 2, 3)},
}
COLOURS = {"point": "tab:red", "bayes": "tab:blue", "gp": "tab:green", "variational": "tab:purple"}


def weights_of(space, start=0):
    """Return weights that are all different."""
    numbers = iter(range(start, 10_000))
    return {name: {kind: next(numbers) % 17 / 7 for kind in kinds} for name, kinds in space.items()}


@pytest.mark.parametrize("num_runs", [1, 3])
def test_bars_are_the_mean_shares(num_runs, tmp_path):
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


def test_lines_are_the_shares_over_the_training(tmp_path):
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


def write_history(path, *records):
    path.write_text("".join(json.dumps({"epoch": e, "weights": w}) + "\n" for e, w in records))
    return path


def test_reading_a_history(tmp_path):
    records = [(0.5, weights_of(MIXED)), (1.0, weights_of(MIXED, start=3))]
    assert read_history(write_history(tmp_path / "a.jsonl", *records)) == records
    assert read_history(write_history(tmp_path / "b.jsonl")) == []


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
    path = write_history(tmp_path / "h.jsonl", (1, {"ffn@1": {"point": 0.0, "bayes": 1.0}}))
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(InputError, match=r"h\.jsonl:2: "):
        read_history(path)
