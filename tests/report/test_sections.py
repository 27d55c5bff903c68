"""The report's tables and figures, from files as the tools write them."""

import dataclasses
import json
import math
import re
from urllib.parse import unquote

import numpy as np
import pytest
import torch
from oracles.html_reader import Page

from espnet_bayeslm.evaluation.comparison import compare_systems, score_set
from espnet_bayeslm.evaluation.signal_to_noise import BIN_EDGES, PruningStep, SnrSummary
from espnet_bayeslm.evaluation.wer import Counted
from espnet_bayeslm.kinds.architectures import derived_config, rank, write_history
from espnet_bayeslm.report.bias_plot import (
    BiasTable,
    bias_section,
    length_figure,
    read_bias_sweep,
    write_bias_sweep,
)
from espnet_bayeslm.report.learning_section import learning_section, read_epochs
from espnet_bayeslm.report.noise_plots import pruning_figure
from espnet_bayeslm.report.page import page
from espnet_bayeslm.report.score_results import (
    PAIRS,
    SystemScores,
    read_perplexities,
    read_scores,
    scores_json,
    scores_section,
    short_names,
)
from espnet_bayeslm.report.search_results import (
    Retrained,
    Run,
    read_search,
    search_section,
    write_retrained,
    write_search,
)
from espnet_bayeslm.report.weight_noise import (
    NEEDS_TEXT,
    LocationRow,
    read_snr,
    snr_section,
    write_snr,
)
from espnet_bayeslm.report.weight_sweep import read_sweep, sweep_section
from espnet_bayeslm.rescoring.bias_sweep import BiasSweep
from espnet_bayeslm.utils.errors import InputError

REF = {f"u{n}": ("a", "b", "c", "d") for n in range(40)}
HYPS = {
    "first": {utt: ("a", "x", "c") for utt in REF},
    "<b>new": {utt: ("a", "b", "c", "d") if n % 5 else ("a", "x") for n, utt in enumerate(REF)},
}
CHOICES = {"lm_conf": {"uncertainty": {"ffn@1-2": "search"}}}


def rows(section):
    """Return the cells of a section, one list for all its tables."""
    return Page(section.body).cells


def scored(num_conditions, counted=None):
    sets = [score_set(REF, HYPS) for _ in range(num_conditions)]
    pooled = compare_systems(sets, num_replicates=50)
    conditions = {
        f"c{n}": compare_systems([part], num_replicates=50) for n, part in enumerate(sets)
    }
    return scores_json(SystemScores(conditions, pooled, "first", counted=counted))


def write_json(path, content):
    path.write_text(json.dumps(content))
    return str(path)


def component(name, value):
    values = {unit: value for unit in ("word", "token", "character")}
    more = {unit: value + 1 for unit in values}
    return {"name": name, "oovs": 3, "perplexity": more, "perplexity_without_oov": values}


def errors_section(tmp_path, content, *perplexities):
    """Return the section of a score's JSON and of (system, text, components of it)."""
    files = []
    for n, (system, text, components) in enumerate(perplexities):
        path = write_json(tmp_path / f"{n}.json", {"text": text, "components": components})
        files.append((system, path))
    scores = read_scores(write_json(tmp_path / "score.json", content)) if content else None
    return scores_section(scores, read_perplexities(files))


def test_word_errors_with_daggers_and_perplexities(tmp_path):
    texts = (("data/dev/text", 50.0), ("data/test/text", 60.04))
    files = [(text, [component("lm", 70), component("mixture", v)]) for text, v in texts]
    section = errors_section(tmp_path, scored(1), *(("<b>new", *file) for file in files))
    cells = rows(section)
    assert section.title == "Word error rate and perplexity"
    assert cells[:4] == ["system", "ppl dev", "ppl test", "WER %"]
    assert cells[4:11] == ["change", "95 % interval", "relative %", "sub", "del", "ins", "words"]
    rows_of = [cells[11:22], cells[22:33]]
    assert rows_of[0] == ["first", "–", "–", "50.00", "–", "–", "–", "40", "40", "0", "160"]
    interval = cells[cells.index("p") + 4]
    low, high = (f"−{end[1:]}" for end in reversed(interval.split(" to ")))
    errors = ["15.00†", "−35.00", f"{low} to {high}", "−70.0", "8", "16", "0", "160"]
    assert rows_of[1] == ["<b>new", "50.0", "60.0", *errors]
    text = re.sub(r"\s+", " ", Page(section.body).text)
    assert "mixture" in cells and "errors than first, ‡ significantly more" in text


def test_changes_are_counted_from_the_first_pass(tmp_path):
    sets = [score_set(REF, {"first pass": HYPS["first"], **HYPS})]
    pooled = compare_systems(sets, num_replicates=50)
    content = scores_json(SystemScores({}, pooled, "<b>new"))
    content["oracle"] = {**content["first"], "substitutions": 0, "deletions": 0}
    section = errors_section(tmp_path, content)
    cells = rows(section)
    names = ["first pass", "first", "<b>new", "oracle"]
    found = [cells[n + 1 : n + 5] for n in map(cells.index, names)]
    assert found[0] == ["50.00‡", "–", "–", "–"]
    assert found[1] == ["50.00‡", "0.00", "0.00 to 0.00", "0.0"]
    assert found[2][:2] == ["15.00", "−35.00"] and found[2][3] == "−70.0"
    assert found[3] == ["0.00", "−50.00", "–", "−100.0"]


def test_rates_say_what_they_count(tmp_path):
    """On the page, and in the data that it offers for download."""
    counted = Counted(ignored=("<unk>",), tuned_on="dev.text")
    section = errors_section(tmp_path, scored(2, counted))
    assert Page(section.body).text.count(str(counted)) == 1
    (link,) = (a for a in Page(page("p", [section])).addresses if a.startswith("data:"))
    data, *others = json.loads(unquote(link.partition(",")[2]))
    assert data["counted"] == {**dataclasses.asdict(counted), "normalize": [], "ignored": ["<unk>"]}
    assert not any("counted" in table for table in others)
    assert "counted" not in errors_section(tmp_path, scored(2)).body


def test_conditions_are_columns_and_perplexities_may_stand_alone(tmp_path):
    section = errors_section(tmp_path, scored(2))
    cells = rows(section)
    assert cells[:5] == ["system", "c0", "c1", "average", "pooled"]
    assert cells[24:29] == ["<b>new", "15.00†", "15.00†", "15.00", "15.00†"]
    assert Page(section.body).tags.count("details") == 3
    alone = compare_systems([score_set(REF, {"first": HYPS["first"]})])
    section = errors_section(tmp_path, scores_json(SystemScores({}, alone, None)))
    assert rows(section)[1:4] == ["WER %", "sub", "del"] and "†" not in section.body
    section = errors_section(tmp_path, None, ("lm", "t", [component("lm", math.inf)]))
    assert rows(section) == ["system", "ppl t", "lm", "∞"]


def test_biased_words_have_tables_of_their_own(tmp_path):
    sets = [score_set(REF, HYPS)]
    whole = compare_systems(sets, num_replicates=50)
    bias = {"bias": {rate: scored(2) for rate in ("U-WER", "B-WER")}}
    content = {**scores_json(SystemScores({}, whole, "first")), **bias}
    page_of = Page(errors_section(tmp_path, content).body)
    captions = ["Word error rates in %", "Word error rates in %, U-WER", f"{PAIRS} (c1), B-WER"]
    assert all(caption in page_of.text for caption in captions)
    names = [f"{rate}\u00a0A\u00a0\u2212\u00a0B" for rate in ("WER", "U-WER", "B-WER")]
    heads = [cell.replace(" ", "\u00a0") for cell in page_of.cells]
    assert [heads.count(name) for name in names] == [1, 3, 3]


@pytest.mark.parametrize(
    "paths, expected",
    [
        (["data/dev/text", "data/test/text"], ["dev", "test"]),
        (["a/dev.txt", "a/b/test.txt"], ["dev.txt", "b/test.txt"]),
        (["data/dev/text"], ["dev"]),
        (["exp/quickstart/data/eval.txt"], ["eval.txt"]),
        (["text"], ["text"]),
        (["x", "y/x"], ["x", "y/x"]),
        ([], []),
    ],
)
def test_texts_are_named_by_what_differs(paths, expected):
    assert short_names(paths) == expected


SWEEP = {
    "features": [
        {"name": "am_score", "weights": [0.5, 1.0]},
        {"name": "words", "weights": [-0.25, -0.5, -1.0]},
    ],
    "wer": [[30.0, 20.0, 21.0], [25.0, 22.5, 20.0]],
    **{"best": [0, 1], "first_pass": 25.0, "oracle": 10.0},
    "weights": [],  # of no meaning
}


def test_sweep(tmp_path):
    path = tmp_path / "sweep.json"
    write_json(path, SWEEP)
    section = sweep_section({"<i>lm": read_sweep(tmp_path)})
    page = Page(section.body)
    assert "am_score 0.5, words -0.5: 20.00 %; first pass 25.00 %; oracle 10.00 %." in page.text
    write_json(path, {**SWEEP, "without_lm": 22.0, "first_pass": 15.0})
    section = sweep_section({"lm": read_sweep(tmp_path)})
    assert "first pass 15.00 %; tuned without the LM 22.00 %; oracle" in Page(section.body).text
    assert page.cells[:4] == ["am_score \\ words", "-0.25", "-0.5", "-1"]
    assert page.cells[4:] == ["0.5", "30.00", "20.00", "21.00", "1", "25.00", "22.50", "20.00"]
    assert page.tags.count("svg") == 1 and page.tags.count("strong") == 1
    assert read_sweep(tmp_path / "none") is None


BIAS = {
    "weights": [0.0, 0.5, 1.0],
    "chosen": 0.5,
    "rates": {"WER": [9.0, 8.0, 8.5], "U-WER": [7.0, 7.0, 8.0], "B-WER": [50.0, 25.0, 20.0]},
}


def test_rates_by_the_weight_of_bias_lists(tmp_path):
    write_json(tmp_path / "bias.json", BIAS)
    found = Page(bias_section({"<i>lm": read_bias_sweep(tmp_path)}).body)
    assert found.cells[:8] == [
        *("weight", "WER %", "U-WER %", "B-WER %"),
        *("0", "9.00", "7.00", "50.00"),
    ]
    assert found.tags.count("svg") == 1 and found.tags.count("strong") == 1
    assert read_bias_sweep(tmp_path / "none") is None
    sweep = BiasSweep(np.array([0.0, 2.0]), 2.0, {"WER": np.array([9.0, 1 / 3])}, 4.5)
    write_bias_sweep(tmp_path, sweep)
    assert read_bias_sweep(tmp_path) == BiasTable([0.0, 2.0], 2.0, {"WER": [9.0, 0.333]}, 4.5)
    assert (tmp_path / "bias.png").read_bytes().startswith(b"\x89PNG")


def test_rates_by_the_length_of_bias_lists():
    shorter = BIAS | {"rates": BIAS["rates"] | {"B-WER": [50.0, 15.0, 10.0]}}
    tables = {n: BiasTable(**own, phrases=n) for n, own in ((2000, BIAS), (100, shorter))}
    left, right = length_figure(tables).axes
    assert [[*line.get_ydata()] for line in (*left.lines, *right.lines)] == [
        *([8.0, 8.0], [7.0, 7.0], [15.0, 25.0])
    ]
    assert [*right.lines[0].get_xdata()] == [100, 2000]
    page = Page(bias_section({f"{n} words": table for n, table in tables.items()}).body)
    assert page.tags.count("svg") == 3
    for one in ({"a": tables[100]}, {"a": tables[100], "b": BiasTable(**BIAS)}):
        assert length_figure(one) is None


def stats(*values):
    return {part: {"ppl": p, "nll": math.log(p), "kl": k} for part, p, k in values}


def write_experiment(folder, **epochs):
    folder.mkdir()
    content = {int(name[1:]): stats(*values) for name, values in epochs.items()}
    torch.save({"reporter": {"stats": content}}, folder / "checkpoint.pth")
    return str(folder)


def test_learning_curves(tmp_path):
    one = write_experiment(
        tmp_path / "one",
        e1=[("train", 90.0, 0.5), ("valid", 80.0, 0.4)],
        e2=[("train", 50.0, 0.25), ("valid", 85.0, 0.2)],
    )
    two = write_experiment(tmp_path / "two", e1=[("valid", 70.0, 0.0)], e2=[("train", 1.0, 0.0)])
    section = learning_section({"<u>one": read_epochs(one), "two": read_epochs(two)})
    page = Page(section.body)
    bound = f"{math.log(50) + 0.25:.4f}"
    assert page.cells[7:14] == ["<u>one", "2", "1", "80.00", f"{math.log(50):.4f}", "0.2500", bound]
    assert page.cells[14:] == ["two", "1", "1", "70.00", "–", "–", "–"]
    assert "KL, nats per token" in page.text and "<u>one" in page.text
    assert "KL, nats" not in Page(learning_section({"two": read_epochs(two)}).body).text


def test_signal_to_noise(tmp_path):
    histogram = [0] * (len(BIN_EDGES) - 1)
    histogram[60:80] = [5] * 20
    figures = (100, (0.1, 0.2, 0.3, 0.4, 0.5), 0.01, None, tuple(histogram))
    lms = {"$one^$<lm>": [LocationRow("ffn@1", "weights", SnrSummary("ffn@1", *figures))]}
    lms["two"] = [LocationRow("hidden_output@1", "latent", None)]
    result = {"perplexity": {"word": 90.0}}
    steps = [PruningStep(c, s, 1, result) for c in ("snr", "magnitude") for s in (0.0, 0.5)]
    write_snr(tmp_path / "snr", lms, {"$one^$<lm>": steps}, text=None)
    section = snr_section(*read_snr([str(tmp_path / "snr")]))
    page = Page(section.body)
    assert page.tags.count("svg") == 2 and page.text.count("$one^$<lm>") == 3
    first = ["$one^$<lm>", "ffn@1", "100", "0.3", "0.1 to 0.5", "0.01", "–"]
    assert page.cells[7:17] == [*first, "two", "hidden_output@1", NEEDS_TEXT]
    # an LM without steps has no panel, a criterion without steps no curve
    write_snr(tmp_path / "few", lms, {"$one^$<lm>": steps[:2]}, text=None)
    few = tmp_path / "few" / "prune.json"
    write_json(few, {"lms": {**json.loads(few.read_text())["lms"], "two": []}})
    (panel,) = pruning_figure(read_snr([str(few.parent)])[1]).axes
    assert len(panel.lines) == 1
    # the file alone has no pruning beside it
    assert snr_section(*read_snr([f"{tmp_path}/snr/snr.json"])).body.count("<svg") == 1
    with pytest.raises(InputError, match=r"is in another file too"):
        read_snr([str(tmp_path / "snr")] * 2)
    many = [LocationRow(f"ffn@{n}", "weights", SnrSummary(f"ffn@{n}", *figures)) for n in range(11)]
    assert "#440154" in snr_section({"lm": many}, {}).body  # a scale's first colour
    for name, change, message in [
        ("prune.json", ('"magnitude"', '"size"'), "criterion 'size'"),
        ("snr.json", ('"histogram": [', '"histogram": [0, '), f"a histogram of {len(BIN_EDGES)} "),
    ]:
        content = (tmp_path / "snr" / name).read_text()
        (tmp_path / "snr" / name).write_text(content.replace(*change))
        with pytest.raises(InputError, match=rf"{name}: expected.*{message}"):
            read_snr([str(tmp_path / "snr")])


def write_folder(folder):
    weights = {f"ffn@{n}": {"point": -math.inf if n == 2 else 0.0, "bayes": 1.0} for n in (1, 2)}
    runs = [Run("seed<0>", "moved/seed<0>", 0, weights), Run("b", "b", 1, weights)]
    ranking = rank([weights] * 2, 2)
    configs = [derived_config(CHOICES, item.choices) for item in ranking]
    write_search(folder, runs, ranking, configs)
    record = {name: {"point": 0.0, "bayes": 0.5} for name in weights}
    write_history(folder / "seed<0>", 1, [(1.0, record)])
    write_retrained(folder / "retrain.json", [Retrained(2, "top2", [], 44.4, 1, 1)], ranking)
    return str(folder)


def test_architecture_weights(tmp_path):
    section = search_section({"search": read_search(write_folder(tmp_path / "search"))})
    page = Page(section.body)
    assert page.tags.count("svg") == 2
    assert page.cells[8:14] == ["1", "ffn@1-2 bayes", "0.7311", "1", "1", "1"]
    assert page.cells[16:] == ["2", "ffn@2 bayes", "0.2689", "2", "2", "2", "44.40", "1 of 1"]


READERS = {
    "score": lambda folder: read_scores(f"{folder}/score.json"),
    "sweep": read_sweep,
    "bias": read_bias_sweep,
    "search": read_search,
}
# Of other locations than the first run's
OTHER_RUN = {"name": "b", "path": "b", "seed": 1, "weights": {"ffn@1": {"point": 0, "gp": 1}}}
# File -> places in it, values that cannot stand there (None: nothing does), and messages
BAD = {}
BAD["score"] = [
    (["first", "deletions"], "1", "'1' is not a whole number"),
    (["first", "words"], None, "no 'words'"),
    (["first", "unit"], "syllable", "the unit 'syllable' is none of word, char"),
    (["significance", "pairs", 0, "mapsswe", "p"], math.nan, "'nan' is not a number"),
    (["significance", "pairs", 0, "a"], 5, "'5' is not a text"),
    (["significance"], 3, "'3' is not an object"),
    (["counted", "ignored"], "uh", "'uh' is not a list"),
    (["conditions", "c1", "first"], None, "not all conditions have the same systems"),
    (["significance", "baseline"], "other", "no system 'other', which is the baseline"),
]
BAD["sweep"] = [
    (["wer", 0], [1.0], "not 2 x 3 rates"),
    (["best", 0], 77, "77, 1 is no place"),
    (["features"], None, "no 'features'"),
    (["oracle"], [], "'[]' is not a number"),
]
BAD["bias"] = [
    (["rates", "WER"], [1.0], "not 3 rates"),
    (["rates"], {}, "not 3 rates"),
    (["chosen"], None, "no 'chosen'"),
    (["chosen"], 0.7, "0.7, the chosen weight, is none"),
]
BAD["search"] = [
    (["runs", 1], OTHER_RUN, "run 2 has the candidates ['gp', 'point'] at ffn@1"),
    (["runs"], [], "no run of the search to rank"),
    (["ranking"], None, "no 'ranking'"),
]


@pytest.mark.parametrize(
    "kind, place, value, message", [(kind, *row) for kind, rows in BAD.items() for row in rows]
)
def test_bad_values(tmp_path, kind, place, value, message):
    write_json(tmp_path / "score.json", scored(2, Counted()))
    write_json(tmp_path / "sweep.json", SWEEP)
    write_json(tmp_path / "bias.json", BIAS)
    write_folder(tmp_path)
    path = tmp_path / f"{kind}.json"
    content = inner = json.loads(path.read_text())
    for key in place[:-1]:
        inner = inner[key]
    if value is None:
        del inner[place[-1]]
    else:
        inner[place[-1]] = value
    write_json(path, content)
    with pytest.raises(InputError) as error:
        READERS[kind](tmp_path)
    assert str(error.value).startswith(f"{path}: expected") and message in str(error.value)


@pytest.mark.parametrize(
    "text",
    ["", "[1, 2]", "{", "[" * 100000, "{}", '{"a": {}}', '{"text": "t", "components": []}'],
)
def test_files_of_another_kind(tmp_path, text):
    for name in (*READERS, "snr"):
        (tmp_path / f"{name}.json").write_text(text)
    others = (
        lambda folder: read_perplexities([("x", f"{folder}/score.json")]),
        lambda folder: read_snr([str(folder)]),
    )
    for read in (*READERS.values(), *others):
        with pytest.raises(InputError, match=rf"^{tmp_path}/.*`"):
            read(tmp_path)


@pytest.mark.parametrize(
    "content, message",
    [
        ({}, "no 'reporter'"),
        ({"reporter": {"stats": {1: {"train": {}}, 2: {"valid": {"loss": 3.0}}}}}, "no epoch with"),
        ({"reporter": {"stats": 5}}, "expected the statistics of a training"),
    ],
)
def test_bad_experiments(tmp_path, content, message):
    torch.save(content, tmp_path / "checkpoint.pth")
    with pytest.raises(InputError, match=rf"checkpoint\.pth: .*{message}"):
        read_epochs(str(tmp_path))
