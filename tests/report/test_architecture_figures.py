"""Figures of architecture weights, drawn from numbers that are known."""

import json

import pytest
from matplotlib.colors import same_color

from espnet_bayeslm.report.architecture import history_figure, weights_figure
from espnet_bayeslm.report.plots import save_figure
from espnet_bayeslm.supernet import shares
from espnet_bayeslm.supernet.history import read_history
from espnet_bayeslm.utils.errors import InputError

GATES = ("input_gate", "forget_gate", "cell_input", "output_gate")
LSTM = {f"{gate}@{layer}": ("point", "bayes") for gate in GATES for layer in (1, 2)}
FFN = {f"ffn@{layer}": ("point", "bayes", "gp") for layer in range(1, 7)}
OTHERS = {
    "embedding": ("point", "bayes"),
    **{f"hidden_output@{layer}": ("point", "variational") for layer in range(1, 48)},
}
SPACES = {"lstm": LSTM, "ffn": FFN, "48": OTHERS}
COLOURS = {"point": "tab:red", "bayes": "tab:blue", "gp": "tab:green", "variational": "tab:purple"}


def weights_of(space, start=0):
    """Return weights that are all different."""
    numbers = iter(range(start, 10_000))
    return {name: {kind: next(numbers) % 17 / 7 for kind in kinds} for name, kinds in space.items()}


def bars(figure):
    """Return {location: {kind: height}} of a figure's bars."""
    found = {}
    for axes in figure.axes:
        labels = [text.get_text() for text in axes.get_xticklabels()]
        for bar in axes.patches:
            layer = labels[round(bar.get_x() + bar.get_width() / 2)]
            name = axes.get_title() + (f"@{layer}" if layer else "")
            kind = next(k for k, c in COLOURS.items() if same_color(bar.get_facecolor(), c))
            found.setdefault(name, {})[kind] = bar.get_height()
    return found


@pytest.mark.parametrize("name", SPACES)
@pytest.mark.parametrize("num_runs", [1, 3])
def test_bars_are_the_mean_shares(name, num_runs, tmp_path):
    runs = {f"seed{n}": weights_of(SPACES[name], start=n) for n in range(num_runs)}
    figure = weights_figure(runs)
    tables = [shares(run) for run in runs.values()]
    expected = {
        location: {kind: sum(t[location][kind] for t in tables) / num_runs for kind in kinds}
        for location, kinds in SPACES[name].items()
    }
    found = bars(figure)
    assert list(found) == list(expected)
    for location, heights in expected.items():
        assert found[location] == pytest.approx(heights)
    dots = [
        line
        for axes in figure.axes
        for line in axes.lines
        if line.get_marker() == "o" and len(line.get_xdata()) == num_runs
    ]
    assert len(dots) == (0 if num_runs == 1 else sum(map(len, SPACES[name].values())))
    save_figure(figure, tmp_path / "weights.png")
    assert (tmp_path / "weights.png").stat().st_size > 5000


def test_panels_have_bars_of_one_width():
    widths = {
        round(bar.get_width(), 9)
        for axes in weights_figure({"seed0": weights_of(OTHERS)}).axes
        for bar in axes.patches
    }
    assert len(widths) == 1


@pytest.mark.parametrize("name", SPACES)
def test_lines_are_the_shares_over_the_training(name, tmp_path):
    records = [(epoch / 2, weights_of(SPACES[name], start=epoch)) for epoch in range(5)]
    figure = history_figure({"seed0": records, "seed1": records[:3], "none": []})
    panels = {axes.get_title(): axes for axes in figure.axes}
    assert list(panels) == list(SPACES[name])
    for location, kinds in SPACES[name].items():
        drawn = panels[location].lines[:-1]
        assert len(drawn) == 2 * (len(kinds) - 1)
        expected = [shares(w)[location][kinds[1]] for _, w in records]
        assert list(drawn[0].get_ydata()) == pytest.approx(expected)
        assert list(drawn[0].get_xdata()) == [0, 0.5, 1, 1.5, 2]
        assert same_color(drawn[0].get_color(), COLOURS[kinds[1]])
        assert len(drawn[-1].get_xdata()) == 3
    save_figure(figure, tmp_path / "history.png")


def test_a_history_of_nothing():
    with pytest.raises(InputError, match="no record"):
        history_figure({"seed0": []})


def write_history(path, *records):
    path.write_text("".join(json.dumps({"epoch": e, "weights": w}) + "\n" for e, w in records))
    return path


def test_reading_a_history(tmp_path):
    records = [(0.5, weights_of(LSTM)), (1.0, weights_of(LSTM, start=3))]
    assert read_history(write_history(tmp_path / "a.jsonl", *records)) == records
    assert read_history(write_history(tmp_path / "b.jsonl")) == []


def test_what_a_resumed_run_repeats_holds(tmp_path):
    first = [(epoch, weights_of(LSTM)) for epoch in (0.5, 1.0, 1.5)]
    again = [(epoch, weights_of(LSTM, start=1)) for epoch in (1.5, 2.0)]
    path = write_history(tmp_path / "h.jsonl", *first, *again)
    assert read_history(path) == [*first[:2], *again]


@pytest.mark.parametrize(
    "line",
    [
        "",
        "{",
        "[]",
        "1",
        '{"epoch": 2}',
        '{"epoch": "2", "weights": {"ffn@1": {"point": 0, "bayes": 0}}}',
        '{"epoch": true, "weights": {"ffn@1": {"point": 0, "bayes": 0}}}',
        '{"epoch": 2, "weights": {}}',
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
