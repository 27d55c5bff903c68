"""Studies, figures and the paper's figures in the results of a table."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import written_outputs as out
from written_files import write

from espnet_bayeslm.utils.errors import InputError
from lab import figures, studies
from lab.collect import collect, pooled_median
from lab.evaluate import Evaluation
from lab.paper import Line, paper_tables
from lab.plan import Settings, has_point_prior, read_plan
from lab.train import Place

BAYES, POINT = "bayes_lstm_cell_input_1-2", "point_lstm"
GAINS = {5: 6.0, 25: 4.0, 100: 2.0}


def write_part(folder, gain, *, unit=200, ratio=1.0, better=True):
    """Write point-estimate and Bayesian LM of one place of a study."""
    out.write_lm(folder / POINT, unit=unit)
    out.write_lm(folder / BAYES, uncertainty={"cell_input@1-2": "bayes"}, unit=unit)
    out.write_system(folder, f"{BAYES}+half_lstm+3g", (99.0, 99.0))
    out.write_snr(folder, BAYES, {"cell_input@1": [ratio / 2, ratio, 2 * ratio]})
    texts = {u: out.text(2 if n else 1)[u] for n, u in enumerate(out.REFS)}
    wrong = {f"{POINT}+3g": 3, f"{BAYES}+3g": 3, f"{BAYES}+{POINT}+3g": texts if better else 3}
    for name, ppl in ((f"{POINT}+3g", 0.0), (f"{BAYES}+3g", gain / 2)):
        given = {"wrong": {"us": wrong[name]}, "conditions": ["us"]}
        out.write_system(folder, name, (100.0 - ppl, 100.0 - ppl), **given)
    name = f"{BAYES}+{POINT}+3g"
    ppls = (100.0 - gain, 100.0 - gain)
    out.write_system(folder, name, ppls, wrong={"us": wrong[name]}, conditions=["us"])


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Return a folder with the outputs of shares 5, 25, 100 % and of widths 100, 200."""
    place = tmp_path_factory.mktemp("studies")
    for seed in (1, 2):
        folder = place / "exp" / "small" / f"seed{seed}"
        out.write_lm(folder / "half_lstm", ppls=(200.0, 150.0))
        write_part(folder, GAINS[100], ratio=1.0)
        for share in (5, 25):
            gain = GAINS[share] + seed
            write_part(folder / f"train{share}", gain, ratio=share / 100, better=seed == 1)
        # its configuration has the size's own width; the folder has the one that was trained
        write_part(folder / "unit100", 1.0)
    out.write_lists(place / "data", ["us"])
    return place


@pytest.fixture
def views(written, plan, settings, tmp_path):
    """Return a function: table -> its results."""
    shutil.copytree(written, tmp_path, dirs_exist_ok=True)
    mixtures = {8: {"kind": "mix", "where": f"{BAYES} + half_lstm"}}
    plan({**mixtures, 9: {"kind": "mix", "where": "half_lstm"}})
    return lambda table: collect(settings(table))


@pytest.fixture
def view(views):
    return views("data_size")


def test_studies_over_share_and_width(view, views):
    (study,) = studies.studies(view, "train").values()
    assert study.places == [5, 25, 100]
    assert [curve.name for curve in study.curves] == [
        *(f"{POINT}+3g", f"{BAYES}+3g", f"{BAYES}+{POINT}+3g", f"{BAYES}+half_lstm+3g")
    ]
    *_, best, mixture = study.curves
    assert mixture.label == "Bayesian LSTM, cell_input@1-2 + half-trained LSTM + 3-gram"
    assert mixture.kind == "bayes"
    half = study.results.by_number(9)
    assert study.results.label(half) == "half-trained LSTM"
    assert study.change(mixture)[25] == pytest.approx({1: -1.0, 2: -1.0})
    assert study.change(best)[5] == pytest.approx({1: -7.0, 2: -8.0})
    assert study.wer(best.name)[25] == pytest.approx({1: 19.0, 2: 30.0})
    assert [study.significant(best, place) for place in study.places] == [False, False, True]
    ((line, ratios),) = study.snr()
    assert line.name == BAYES
    assert ratios[25] == pytest.approx({1: 0.25, 2: 0.25})
    (width,) = studies.studies(views("model_size"), "unit").values()
    assert width.places == [100, 200]
    text = studies.study_tables(view, "train")
    assert f"| {best.label} | -7.50 ± 0.50 | -5.50 ± 0.50 | -2.00 |" in text
    assert f"| {best.label} | 24.50 ± 5.50 | 24.50 ± 5.50 | 19.00 † |" in text


def test_what_is_no_study_has_no_figure(views, view):
    view = views("some")
    assert {run.study for run in view.runs} == {"all"}
    assert not list(figures.all_figures(view))
    view.runs = [run for run in view.runs if run.study == "all"]
    assert studies.study_tables(view, "train") == ""
    assert not list(figures.all_figures(view))


def test_figures(view, views, tmp_path):
    made = dict(figures.all_figures(view))
    assert list(made) == ["data_size", "snr_data_size"]
    widths = [name for name, _ in figures.all_figures(views("model_size"))]
    assert widths == ["model_size", "snr_model_size"]
    changes, errors = made["data_size"].axes[1:3]
    assert list(changes.get_lines()[-2].get_ydata()) == pytest.approx([-7.5, -5.5, -2.0])
    assert [label.get_text() for label in errors.get_xticklabels()] == ["5", "25", "100"]
    filled = [line for line in errors.get_lines() if line.get_linestyle() == "None"]
    assert [list(line.get_ydata()) for line in filled] == [[pytest.approx(19.0)]]
    paper, ours = made["snr_data_size"].axes[0].get_lines()
    assert list(paper.get_ydata()) == [0.3, 0.4, 0.5, 0.7, 1.1]
    assert list(ours.get_ydata()) == pytest.approx([0.05, 0.25, 1.0])
    written = figures.write_figures(view, tmp_path / "images")
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in written.values())


def test_median_of_locations_together():
    from espnet_bayeslm.evaluation.signal_to_noise import summarize

    rng = np.random.default_rng(0)
    parts = [np.exp(rng.normal(mean, 1.0, size=n)) for mean, n in ((0.0, 4000), (2.0, 1000))]
    summaries = [summarize("x", [(torch.from_numpy(p), torch.ones(len(p)))]) for p in parts]
    exact = np.median(np.concatenate(parts))
    assert pooled_median(summaries) == pytest.approx(exact, rel=0.03)


def test_priors_and_ivon_of_lines():
    options = {"prior_mean": 0, "prior_variance": 0.02}
    for kind in ("bayes", "map"):
        line = Line("t", 3, "lstm", kind, "embedding" if kind == "bayes" else "-", options)
        assert not has_point_prior(line)
        config = paper_tables().config("tiny", line)
        assert config["lm_conf"]["prior_variance"] == 0.02
        assert "prior_mean" not in {**config["lm_conf"], **config.get("model_conf", {})}
        assert line.name.endswith("prior_mean0_prior_variance0.02")
        assert has_point_prior(Line("t", 3, "lstm", kind))
    assert not has_point_prior(Line("t", 3, "lstm", "variational", "hidden_output@1"))
    with pytest.raises(ValueError, match="line 3 of table t: prior_mean=1; valid is 0"):
        has_point_prior(Line("t", 3, "lstm", "bayes", "embedding", {"prior_mean": "1"}))
    import torch

    from espnet_bayeslm.training.ivon import IVON

    tables = paper_tables()
    for size in tables.sizes:
        for lm in ("lstm", "transformer"):
            config = tables.config(size, Line("t", 1, lm, "ivon"))
            assert config["optim"] == "ivon"
            IVON([torch.nn.Parameter(torch.zeros(1))], **config["optim_conf"])
    tables = type(tables)({}, {"some": {"lstm": {"base": {"optim": "adam"}}}}, {})
    with pytest.raises(ValueError, match="size some says nothing of lstm and ivon"):
        tables.config("some", Line("t", 1, "lstm", "ivon"))


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"tabels": {}}, "unknown: tabels; a plan has like, sets, order"),
        ({"sets": ["dev"]}, "sets: expected {dev: NAME, test: NAME}, got ['dev']"),
        ({"paper": "swbd"}, "paper: swbd; valid are ami, lrs2"),
        ({"lines": {1: "x"}}, "line 1 of table some: expected NUMBER: {kind: KIND, ...}, got 'x'"),
        ({"lines": {8: {"lm": "lstm", "kind": "baies"}}}, "expected a kind of point, l1"),
        ({"lines": {8: {"lm": "gru", "kind": "l1"}}}, "expected an lm of lstm, transformer"),
        ({"lines": {8: {"lm": "lstm", "kind": "gp"}}}, "expected `where` of what is uncertain"),
        ({"tables": "main"}, "cannot be read as a plan (AttributeError"),
        ({"order": [3]}, "cannot be read as a plan (TypeError"),
        ({"like": "plan.yaml"}, "a plan that is `like` itself"),
        ({"studies": {"some": {"part": [10]}}}, "studies: some: {'part': [10]}: expected `parts`"),
        ({"studies": {"some": {"parts": [0]}}}, "parts: 0: expected 1 to 100"),
    ],
)
def test_a_broken_plan_is_named(plan, changes, said):
    plan(**changes)
    with pytest.raises(ValueError) as raised:
        read_plan(Path("conf/plan.yaml"))
    assert str(raised.value).startswith("conf/plan.yaml: ") and said in str(raised.value)


def test_a_plan_like_another(tmp_path, plan):
    (tmp_path / "plan.yaml").write_text("sets: {dev: a\n")
    with pytest.raises(InputError, match="not a yaml file"):
        read_plan(tmp_path / "plan.yaml")
    content = "like: ../conf/plan.yaml\norder: 4\ntables: {6: VI, some: }\n"
    found = read_plan(write(tmp_path / "other" / "plan.yaml", content))
    assert (found.sets, found.order, found.paper) == (("dev", "eval"), 4, "ami")
    assert list(found.tables.lines) == ["6"]
    searched = next(line for line in found.tables.table("6") if line.number == 22)
    assert (searched.name, searched.where) == ("bayes_lstm_nas1", "nas")


def test_what_changed_is_made_anew(plan, tmp_path):
    """An output is older than a text, lists or weights of it: all that follows from them too."""
    content = read_plan(Path("conf/plan.yaml"))
    settings = Settings(content, "some", "small", (1,), tmp_path / "exp", tmp_path)
    exp, both = settings.seed_folder(1), f"{POINT}+3g"
    inputs = [tmp_path / "3g.arpa"]
    for name in ("dev", "eval"):
        inputs += [tmp_path / name / "text.plain", tmp_path / "nbest" / f"{name}_us" / "text"]
    write(tmp_path / "nbest" / "conditions", "us\n")
    out.write_lm(exp / POINT)
    place = Place(exp, 1, tmp_path, tmp_path, tmp_path, tmp_path / "3g.arpa")
    outputs = [f"weights/{both}.yaml"]
    for name in ("dev", "eval"):
        outputs += [f"perplexity/{system}/{name}.json" for system in ("3g", POINT, both)]
        outputs += [f"rescore/{system}/{name}_us/text" for system in ("3g", both)]
    for time, path in [(1000, path) for path in inputs] + [(2000, exp / name) for name in outputs]:
        os.utime(write(path, ""), (time, time))
    for path in (exp / POINT).iterdir():
        os.utime(path, (1000, 1000))

    def made(step):
        commands = Evaluation(settings, place).commands(step, "both", [POINT])
        return [words[-1].removeprefix(f"{exp}/") for words in commands]

    assert made("perplexity") == made("rescore") == []
    os.utime(tmp_path / "eval" / "text.plain", (3000, 3000))
    assert made("perplexity") == [f"perplexity/{name}/eval.json" for name in ("3g", POINT, both)]
    os.utime(tmp_path / "dev" / "text.plain", (3000, 3000))
    assert f"weights/{both}.yaml" in made("perplexity") and len(made("perplexity")) == 7
    os.utime(tmp_path / "nbest" / "dev_us" / "text", (3000, 3000))
    sets = [f"rescore/{name}/{part}_us" for name in ("3g", both) for part in ("dev", "eval")]
    assert made("rescore") == sets
    # an LM that is not there is left out
    assert Evaluation(settings, place).commands("perplexity", "both", ["map_lstm"]) is None
