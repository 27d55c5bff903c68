"""Results of a table: numbers from outputs that were written by hand."""

import dataclasses
import json
import math
import re
import shutil
from pathlib import Path

import pytest
import written_outputs as out

from espnet_bayeslm.utils.errors import InputError
from lab.collect import collect
from lab.document import write_results
from lab.plan import Settings, read_plan

CONDITIONS = ("us", "gb")
BAYES, POINT = "bayes_lstm_cell_input_1-2", "point_lstm"
# what tables call the former
LINE = "3. Bayesian LSTM, cell_input@1-2"


def write_seed(exp, seed, shift=0.0):
    """Write the outputs of the LSTM lines 1 to 4 of a seed."""
    folder = exp / f"seed{seed}"
    out.write_lm(folder / "half_lstm", ppls=(150.0, 110.0))
    out.write_lm(folder / POINT)
    out.write_lm(folder / "map_lstm", ppls=(110.0, 99.0))
    out.write_lm(folder / BAYES, kl=0.25, uncertainty={"cell_input@1-2": "bayes"}, random=90)
    out.write_lm(folder / "bayes_lstm_nas1", uncertainty={})
    ratios = {f"cell_input@{n}": [0.5 * n, 1.0 * n, 4.0 * n] for n in (1, 2)}
    out.write_snr(folder, BAYES, ratios)
    weights = {"cell_input@1": {"point": math.log(3), "bayes": 0.0}}
    out.write_search(folder, "search_lstm_bayes", weights)

    # two words wrong in eight sentences, one in two
    better = {utt: out.text(2 if number < 8 else 1)[utt] for number, utt in enumerate(out.REFS)}

    def system(name, ppls, wrong):
        given = {"wrong": wrong, "conditions": CONDITIONS} if wrong else {}
        out.write_system(folder, name, [ppl + shift for ppl in ppls], **given)

    point = {"us": 3, "gb": 3}
    system("3g", (130.0 - shift, 120.0 - shift), {"us": 4, "gb": 4})
    system(POINT, (100.0, 90.0), None)
    system(f"{POINT}+3g", (88.0, 80.0), point)
    for name, ppl in (("map_lstm", 79.0), ("bayes_lstm_nas1", 70.0)):
        system(name, (99.0, ppl + 10), None)
        system(f"{name}+3g", (87.0, ppl + 2), point)
        system(f"{name}+{POINT}+3g", (85.0, ppl), {"us": 3, "gb": 2})
    system(BAYES, (98.0, 88.0), None)
    system(f"{BAYES}+3g", (86.0, 78.0), {"us": 2, "gb": 3})
    system(f"{BAYES}+{POINT}+3g", (84.0, 76.0), dict.fromkeys(CONDITIONS, better))
    system(f"{POINT}+{POINT}.seed{3 - seed}+3g", (86.0, 77.0), {"us": 3, "gb": 2})


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("outputs")
    write_seed(folder / "exp" / "small", 1)
    write_seed(folder / "exp" / "small", 2, shift=1.0)
    out.write_lists(folder / "data", CONDITIONS)
    (folder / "data" / "statistics.txt").write_text("train: 807033 words\n")
    return folder


@pytest.fixture
def outputs(written, plan, tmp_path):
    for name in ("exp", "data"):
        shutil.copytree(written / name, tmp_path / name)
    return tmp_path


def the_settings(seeds=(1, 2)):
    plan = read_plan(Path("conf/plan.yaml"))
    return Settings(plan, "some", "small", seeds, Path("exp"), Path("data"))


@pytest.fixture
def fail(outputs):
    """Return a function: seeds -> the error of outputs that cannot be used."""

    def run(*seeds):
        with pytest.raises(InputError) as raised:
            settings = the_settings(seeds or (1, 2))
            write_results(collect(settings), settings)
        return str(raised.value)

    return run


def run(*seeds, note=""):
    settings = the_settings(seeds or (1, 2))
    results = collect(settings)
    return results, write_results(results, settings, note)


def rows_of(text, title):
    """Return {first cell: the other cells} of the first table of a section."""
    section = text.split(f"\n## {title}\n")[1].split("\n## ")[0]
    lines = re.search(r"^\|.*(\n\|.*)*", section, re.MULTILINE)[0].splitlines()
    rows = ([cell.strip() for cell in line.strip("|").split(" | ")] for line in lines)
    return {name: cells for name, *cells in rows}


def test_numbers_of_results_and_trainings(outputs):
    results, text = run()
    first = results.whole[1].systems
    best = first[f"{BAYES}+{POINT}+3g"]
    assert best.perplexity["eval"] == 76.0
    # 8 sentences with 2 wrong of 10 words, 2 with 1, in each condition
    assert best.errors["eval"]["us"].substitutions == 18
    assert best.errors["eval"]["pooled"].words == 200
    assert best.errors["eval"]["pooled"].rate == pytest.approx(0.18)
    assert first[f"{BAYES}+3g"].errors["eval"]["pooled"].rate == pytest.approx(0.25)
    assert results.lists["eval"]["first_pass"]["pooled"].rate == pytest.approx(0.4)
    assert results.lists["eval"]["oracle"]["gb"].rate == pytest.approx(0.1)
    # a segment a sentence: point has 3 errors in each of 20, so d is 1 in 16 and 2 in 4
    test = best.tests[f"{POINT}+3g"]
    std = math.sqrt((16 * 0.2**2 + 4 * 0.8**2) / 19)
    assert (test.segments, test.better, test.worse) == (20, True, False)
    assert test.z == pytest.approx(1.2 / (std / math.sqrt(20)))
    assert test.difference == pytest.approx(12.0)
    assert test.low < 12.0 < test.high
    written = json.loads(Path("exp/small/results_some.json").read_text())
    assert written == json.loads(json.dumps(dataclasses.asdict(results)))
    lms = results.whole[2].lms
    assert dataclasses.astuple(lms[BAYES].epochs[1]) == (4.5, 0.25, 100.0)
    assert lms[BAYES].minutes == 4.0
    # the first and the last layer share their weights; buffers are no parameters
    assert (lms[BAYES].parameters, lms[BAYES].random) == (100, 90)
    assert (lms[POINT].unit, lms[POINT].random) == (200, 0)
    assert [summary.median for summary in lms[BAYES].snr] == [1.0, 2.0]
    training = rows_of(text, "Training")
    assert training[LINE] == ["2", "100", "90", "2", "4.0", "4.500", "0.250", "120.0, 100.0"]
    ratios = text.split("## Signal-to-noise ratio")[1]
    assert (
        f"| {LINE} | cell_input@2 | 3 | 2 / 2 | " in ratios and f"| {LINE} | all | 6 | " in ratios
    )
    assert "| search_lstm_bayes: cell_input@1 bayes | 0.250 | 0.250 |" in text
    assert "| search_lstm_bayes | 1 | 1 | point at all locations | 0.75 |" in text


def test_tables_of_perplexities_and_errors(outputs):
    _, text = run(note="Synthetic speech. Two cores.")
    assert "Synthetic speech. Two cores.\n" in text and "\ntrain: 807033 words\n" in text
    ppl = rows_of(text, "Perplexity")
    assert ppl["3-gram"] == ["130.0", "120.0", *[""] * 4, "81.9/93.6", ""]
    assert ppl[LINE] == [
        *("98.5 ± 0.5", "88.5 ± 0.5", "86.5 ± 0.5", "78.5 ± 0.5", "84.5 ± 0.5", "76.5 ± 0.5"),
        *("46.0/47.1", "47.1/47.3"),
    ]
    assert "5. Transformer" not in ppl
    wer = rows_of(text, "Word error rate")
    assert wer["first pass"][:4] == ["40.00", "40.00", "40.00", ""]
    assert wer["oracle"][:3] == ["10.00"] * 3
    assert wer["3-gram alone"][:3] == ["40.00"] * 3
    assert wer[LINE] == [
        *("20.00", "30.00", "25.00 †", "18.00", "18.00", "18.00 †", "24.2/26.7", "24.1/26.6")
    ]
    cells = rows_of(text, "Against the point-estimate LM")[LINE]
    assert cells[:2] == [f"{100 * (76 / 80 - 1):+.2f} %", f"{100 * (77 / 81 - 1):+.2f} %"]
    assert cells[2].startswith("-12.00 [-") and "p = " in cells[2]


def test_the_best_line_is_chosen_on_dev_and_has_controls(outputs):
    results, text = run()
    # the searched line has the lowest perplexity of eval, and no uncertain location
    assert results.chosen == {"lstm": 3}
    chosen = "- 4. Bayesian LSTM, searched (top 1), seed 1, 2: no location, a point-estimate LM"
    assert chosen in text
    rows = rows_of(text, "The comparison that hurts")
    assert list(rows)[2:] == [
        "**Bayesian LSTM, cell_input@1-2 + LSTM + 3-gram**",
        "LSTM, MAP + LSTM + 3-gram",
        "LSTM + LSTM of another seed + 3-gram",
        "LSTM, MAP + 3-gram",
        "LSTM + 3-gram",
    ]
    cells = rows["LSTM + LSTM of another seed + 3-gram"]
    assert cells[:3] == ["86.5 ± 0.5", "77.5 ± 0.5", "25.00"]
    assert cells[3] == f"{100 * (76 / 77 - 1):+.2f} %"
    assert cells[5].startswith("-7.00 [")
    systems = results.whole[1].systems
    assert set(systems[f"{BAYES}+{POINT}+3g"].tests) == {
        *(f"{POINT}+3g", "map_lstm+3g", f"map_lstm+{POINT}+3g", f"{POINT}+{POINT}.seed2+3g")
    }


def test_significance_needs_each_seed(outputs):
    for condition in CONDITIONS:
        path = Path(f"exp/small/seed2/rescore/{BAYES}+{POINT}+3g/eval_{condition}/text")
        path.write_text(out.kaldi_text(out.text(3)))
    _, text = run()
    cells = rows_of(text, "Word error rate")[LINE]
    assert cells[5] == "24.00 ± 6.00 (†)"
    name = f"{BAYES}+{POINT}+3g"
    for seed in (1, 2):
        texts = {u: out.text(4 if n < 8 else 5)[u] for n, u in enumerate(out.REFS)}
        for condition in CONDITIONS:
            path = Path(f"exp/small/seed{seed}/rescore/{name}/eval_{condition}/text")
            path.write_text(out.kaldi_text(texts))
    _, text = run()
    cells = rows_of(text, "Word error rate")[LINE]
    assert cells[5] == "42.00 ‡"


def test_what_is_missing_is_named_with_its_step(outputs):
    seed = Path("exp/small/seed2")
    (seed / "map_lstm" / "valid.loss.ave.pth").unlink()
    for name in ("map_lstm", "map_lstm+3g", f"map_lstm+{POINT}+3g"):
        shutil.rmtree(seed / "perplexity" / name)
    shutil.rmtree(seed / "perplexity" / f"{BAYES}+3g")
    shutil.rmtree(Path("exp/small/seed1/rescore") / f"bayes_lstm_nas1+{POINT}+3g" / "eval_gb")
    _, text = run()
    missing = text.split("## Not run\n")[1]
    assert "- Not trained (seed 2): lines 2.\n" in missing
    # no seed of lines 5, 6 and 7 was trained: they are nowhere
    assert not re.search(r"lines [^\n]*[567]", missing)
    assert not re.search(r"^\| [567]\. ", text, flags=re.MULTILINE)
    assert "- Not evaluated (seed 2): lines 3.\n" in missing
    assert "- Not rescored (seed 1): lines 4.\n" in missing
    ppl = rows_of(text, "Perplexity")
    assert ppl["2. LSTM, MAP"][0] == "99.0 (seed 1)"
    assert ppl[LINE][2:5] == ["86.0 (seed 1)", "78.0 (seed 1)", "84.5 ± 0.5"]
    wer = rows_of(text, "Word error rate")
    name = next(name for name in wer if name.startswith("4."))
    assert wer[name][3] == "30.00 (seed 2)"


def test_without_lists_there_are_perplexities_alone(outputs):
    shutil.rmtree("data/nbest")
    results, text = run()
    assert results.conditions == []
    assert "There are no N-best lists (stage 3 makes them)" in text
    assert "## Word error rate" not in text
    assert rows_of(text, "Against the point-estimate LM")[LINE] == ["-5.00 %", "-4.94 %"]
    assert not Path("exp/small/scores_some.json").exists()


def test_not_trained_and_not_evaluated(fail):
    assert "has been trained (size small, seeds 7). Run stages 4" in fail(7)
    for seed in (1, 2):
        shutil.rmtree(f"exp/small/seed{seed}/perplexity")
    assert "has been evaluated" in (error := fail())
    assert "Run stages 5 and 6 first." in error
    assert not Path("exp/small/results_some.json").exists()


@pytest.mark.parametrize(
    "damage, said",
    [
        (
            lambda: shutil.rmtree("data/nbest/eval_gb"),
            "names us, gb, but there is no data/nbest/eval_gb/text. Each of dev, eval needs lists",
        ),
        (lambda: Path("data/nbest/conditions").unlink(), "conditions: names the conditions"),
        (
            lambda: [
                path.write_text(path.read_text().replace("u3 ", "v3 "))
                for path in Path().glob(f"exp/small/seed1/rescore/{POINT}+3g/eval_us/text")
            ],
            "'u3'",
        ),
    ],
)
def test_lists_and_texts_that_do_not_fit(fail, damage, said):
    damage()
    assert said in fail()


@pytest.mark.parametrize(
    "file, content",
    [
        (f"perplexity/{POINT}+3g/eval.json", '{"text": "eval.plain", "components": [{}]}'),
        ("search_lstm_bayes/search.json", "{"),
    ],
)
def test_broken_outputs(fail, file, content):
    path = Path("exp/small/seed1") / file
    path.write_text(content)
    assert str(path) in fail()
    assert not Path("exp/small/RESULTS_some.md").exists()


def test_html_report_of_the_results(outputs):
    from espnet_bayeslm.bin import report

    scales = "lmwt: 9\nword_penalty: 0\nfiles: [text]\ncounted: {tuned_on: dev.text}\n"
    for path in Path().glob("exp/small/seed1/rescore/*/*/text"):
        path.with_name("scales.yaml").write_text(scales)
    run()
    report.main(["--config", "exp/small/report_some.yaml", "--output", "report.html"])
    page = Path("report.html").read_text()
    assert "Table some, size small, seed 1" in page
    for name in (f"{BAYES}+{POINT}+3g", f"{POINT}+{POINT}.seed2+3g", "search_lstm_bayes"):
        assert name in page
    scores = json.loads(Path("exp/small/scores_some.json").read_text())
    assert scores[f"{BAYES}+{POINT}+3g"]["wer"] == pytest.approx(18.0)
    assert scores["significance"]["baseline"] == f"{POINT}+3g"
    assert scores["counted"]["tuned_on"] == "dev.text" and "; tuned on dev.text; " in page


def test_a_line_of_one_seed_has_that_seed_alone(plan, outputs):
    row = {"lm": "lstm", "kind": "bayes", "where": "cell_input@1-2"}
    plan({8: {**row, "seed": 1}, 9: {**row, "seed": 2}})
    _, text = run()
    ppl = rows_of(text, "Perplexity")
    assert ppl["8. Bayesian LSTM, cell_input@1-2, seed 1"][0] == "98.0"
    assert ppl["9. Bayesian LSTM, cell_input@1-2, seed 2"][0] == "99.0"
    changes = rows_of(text, "Against the point-estimate LM")
    assert changes["9. Bayesian LSTM, cell_input@1-2, seed 2"][0] == ""
