"""The recipes of AMI and LRS2 from end to end, on a few hundred sentences, and what they refuse."""

import json
import re
import shutil
import sys

import pytest
from lrs2_layout import WORDS, make_corpus
from pretrained.tiny_models import write_model
from recipe_files import RECIPES, ROOT, VARIABLES, run_script, write_lists, write_text
from written_files import write

from espnet_bayeslm.utils.errors import InputError
from lab.command_line import main

AMI, LRS2 = RECIPES / "ami" / "lm", RECIPES / "lrs2" / "lm"


@pytest.fixture(scope="module")
def run(python):
    """Run a recipe with its outputs in `folder`; return what it printed, or how it `fails`."""

    def run(recipe, folder, *options, fails=False, **environment):
        folders = ["--data", folder / "data", "--expdir", folder / "exp"]
        names = {"PYTHON": python, "OMP_NUM_THREADS": "1", **environment}
        result = run_script(recipe, "-c", '"$0" "$@"', "./run.sh", *folders, *options, **names)
        assert (result.returncode != 0) == fails, result.stdout + result.stderr
        return result.stderr if fails else result.stdout

    return run


def references(path, prefix, count):
    """Return {utterance: words} of the first sentences of a Kaldi text or of plain lines."""
    rows = path.read_text().splitlines()[:count]
    return {f"{prefix}{n:07d}": row.split() for n, row in enumerate(rows)}


@pytest.fixture(scope="module")
def ami(tmp_path_factory):
    """Return the variables of a text and of lists in the conditions `near` and `far`."""
    folder = tmp_path_factory.mktemp("ami")
    write_text(folder / "text", {"train": 300, "dev": 20, "eval": 20})
    for name in ("dev", "eval"):
        refs = references(folder / "text" / f"{name}.txt", f"ami-{name}-", 10)
        for seed, condition in enumerate(("near", "far")):
            write_lists(folder / "lists" / f"{name}_{condition}", refs, seed=seed)
    return {"AMI_TEXT": str(folder / "text"), "NBEST": str(folder / "lists")}


# {line: LM} of the table
SOME = {
    1: "point_lstm",
    6: "bayes_lstm_nas1_prior_variance0.01",
    11: "point_transformer",
    21: "point_lstm+point_transformer",
}


@pytest.fixture(scope="module")
def made(run, ami, tmp_path_factory):
    """Return a function: lines of the table -> the folder of all stages, and their options."""
    folders = {}

    def make(lines):
        only = " ".join(lines.values())
        options = ["--size", "tiny", "--seeds", "1", "--lm", "both", "--only", only]
        if only not in folders:
            folders[only] = tmp_path_factory.mktemp("recipe")
            run(AMI, folders[only], *options, **ami)
        return folders[only], options

    return make


@pytest.mark.parametrize("lines", [SOME, pytest.param({}, marks=pytest.mark.slow)], ids=len)
def test_the_recipe(run, ami, made, lines):
    folder, options = made(lines)
    tiny = folder / "exp" / "tiny"
    found = (tiny / "RESULTS_main.md").read_text()
    perplexities = found.partition("## Perplexity")[2].partition("## Word error rate")[0]
    rows = dict(re.findall(r"^\| (\d+)\. .*?\| (.*)", perplexities, re.MULTILINE))
    assert list(map(int, rows)) == list(lines or range(1, 26))
    values = [row.partition(" ")[0] for number, row in rows.items() if int(number) < 21]
    assert all(1 < float(value) < 48 for value in values)
    assert "\n| train | 300 |" in found
    assert json.loads((tiny / "results_main.json").read_text())
    page = (tiny / "report_main.html").read_text()
    assert "</html>" in page and "bayes_lstm_nas1" in page
    # a second call finds everything made, and trains nothing
    before = {path: path.stat().st_mtime_ns for path in tiny.rglob("*.pth")}
    run(AMI, folder, *options, "--stage", "4", "--stop_stage", "6")
    assert before == {path: path.stat().st_mtime_ns for path in tiny.rglob("*.pth")}
    for step in ("perplexity", "rescore"):
        assert (tiny / "seed1" / f"{step}_main.commands").read_text() == ""


@pytest.mark.slow
def test_the_study_of_data_size(run, ami, tmp_path):
    options = ["--table", "data_size", "--size", "tiny", "--seeds", "1", "--lm", "lstm"]
    bayes = "bayes_lstm_cell_input_1-2_prior_variance0.01"
    run(AMI, tmp_path, *options, "--parts", "50", "--only", f"point_lstm {bayes}", **ami)
    whole = set((tmp_path / "data" / "train" / "text").read_text().splitlines())
    half = (tmp_path / "data" / "train50" / "text").read_text().splitlines()
    assert len(half) == 150 and set(half) < whole
    folder = tmp_path / "exp" / "tiny" / "seed1" / "train50"
    log = (folder / "point_lstm" / "config.yaml").read_text()
    assert "train50/text" in log and "lm_stats_train50" in log
    found = (tmp_path / "exp" / "tiny" / "RESULTS_data_size.md").read_text()
    assert "50" in found and "100" in found


@pytest.mark.slow
def test_lrs2(run, tmp_path):
    root = make_corpus(tmp_path / "corpus")
    for clip in sorted((root / "main").rglob("*.txt"))[::2]:  # so that val has known sentences
        clip.write_text(clip.read_text().replace(" ZEBRA", ""))
    run(LRS2, tmp_path, "--stop_stage", "1", LRS2=str(root))
    for name in ("val", "test"):
        rows = (tmp_path / "data" / name / "text").read_text().splitlines()
        refs = {utt: words for utt, *words in map(str.split, rows)}
        for seed, condition in enumerate(("clean", "mvdr")):
            folder = tmp_path / "lists" / f"{name}_{condition}"
            write_lists(folder, refs, seed=seed, words=[word.lower() for word in WORDS])
    options = ["--size", "tiny", "--seeds", "1", "--lm", "lstm", "--stage", "2"]
    options += ["--only", "point_lstm variational_lstm_hidden_output_1_2"]
    run(LRS2, tmp_path, *options, NBEST=str(tmp_path / "lists"))
    found = (tmp_path / "exp" / "tiny" / "RESULTS_6.md").read_text()
    for part in ("clean", "mvdr", "4-gram", "62.4"):
        assert part in found, part
    assert "Not trained" not in found  # what no seed trained is no line


@pytest.fixture
def refused(python, tmp_path, monkeypatch, capfd):
    """Return a function: options -> what the recipe, with its outputs in `tmp_path`, ends with."""
    monkeypatch.chdir(AMI)
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PYTHON", python)
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{RECIPES}/TEMPLATE/lm")
    folders = ["--data", f"{tmp_path}/data", "--expdir", f"{tmp_path}/exp"]

    def run(*options):
        with pytest.raises(SystemExit) as stop:
            main(["--plan", "conf/plan.yaml", *folders, *options])
        assert stop.value.code not in (0, None)
        return capfd.readouterr().err

    return run


@pytest.mark.parametrize(
    "options, expected",
    [
        (["--tables_", "3"], "unrecognized arguments: --tables_ 3"),
        (["--stage", "1"], "neither AMI"),
        (["--stage", "2"], "Run stage 1 first"),
        (["--stage", "4"], "Run stage 2 first"),
        (["--stage", "5"], "Run stage 2 first"),
    ],
)
def test_what_is_refused(refused, options, expected, tmp_path):
    assert expected in refused(*options)
    assert not list(tmp_path.glob("exp/*/seed*/*"))


def test_what_stages_refuse(made, refused, tmp_path):
    folder, _ = made(SOME)
    shutil.copytree(folder / "data", tmp_path / "data")
    few = ["--size", "tiny", "--seeds", "1", "--lm", "lstm"]
    assert "Run stage 4 first" in refused(*few, "--stage", "5")
    few += ["--stage", "4", "--stop_stage", "4", "--only"]
    error = refused(*few, "lstm")
    assert "--only lstm: no line of the table; it has point_lstm, " in error
    shutil.copytree(folder / "exp", tmp_path / "exp", symlinks=True, dirs_exist_ok=True)
    trained = tmp_path / "exp" / "tiny" / "seed1" / "half_lstm" / "train.yaml"
    trained.write_text(trained.read_text().replace("unit: 16", "unit: 8"))
    assert "was trained with another configuration" in refused(*few, "point_lstm")


@pytest.fixture
def data(tmp_path):
    """Texts as stage 1 leaves them."""
    write_text(tmp_path / "texts", {"train": 600, "dev": 40, "eval": 30})
    for path in (tmp_path / "texts").iterdir():
        write(tmp_path / "data" / path.stem / "text.plain", path.read_text())
    return tmp_path / "data"


def test_parts_are_the_same_at_each_call(local, data, tmp_path):
    little = local("ami", "little_text")
    paths = little.write_parts(data, tmp_path / "a", percent=10, sentences=7)
    again = little.write_parts(data, tmp_path / "b", percent=10, sentences=7)
    parts = [path.read_text().splitlines() for path in paths]
    assert parts == [path.read_text().splitlines() for path in again]
    assert [len(part) for part in parts] == [60, 7, 7]
    train, dev = ((data / n / "text.plain").read_text().splitlines() for n in ("train", "dev"))
    assert set(parts[0]) <= set(train) and parts[0] != train[:60]
    assert parts[1] == [dev[n] for n in (0, 5, 11, 17, 22, 28, 34)]
    for percent, sentences in ((0, 1), (10, 0)):
        with pytest.raises(InputError, match="expected 1 to 100, at least 1"):
            little.write_parts(data, tmp_path / "out", percent=percent, sentences=sentences)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_from_text_to_both_tables(local, data, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for seed, name in enumerate(("dev", "eval")):
        lines = (data / name / "text.plain").read_text().splitlines()
        refs = {f"u{n:02}": line.split() for n, line in enumerate(lines[:20])}
        write_lists(data / "nbest" / f"{name}_far", refs, seed=seed)
    options = ["--size", "tiny", "--epochs", "1", "--seeds", "1 2", "--dropout_rates", "0.1"]
    local("ami", "little_text").main(options)
    exp = tmp_path / "exp" / "little_text" / "transformer_tiny_10"
    rows = (exp / "WER.md").read_text().splitlines()[2:]
    assert [row.split(" | ")[:2] for row in rows] == [["| 1", "far"], ["| 2", "far"]]
    assert (exp / "WER.md").read_text() in capsys.readouterr().out
    for row in rows:
        point, both, difference = (float(cell) for cell in row.split(" | ")[2:5])
        assert difference == pytest.approx(both - point, abs=0.011)
        assert 0 < point < 100


@pytest.mark.slow
def test_a_pretrained_lm_is_adapted_to_a_part_and_evaluated(tmp_path):
    write_model(tmp_path / "base")
    for name, count in (("train", 20), ("dev", 20), ("eval", 3)):
        lines = [f"so we could put the remote {'on' if n % 2 else 'off'}\n" for n in range(count)]
        write(tmp_path / "data" / name / "text.plain", "".join([*lines, "unheard\n"]))
    known = "so\nwe\ncould\nput\nthe\nremote\non\noff\n"
    write(tmp_path / "data" / "lexicon_words.txt", known)
    write(tmp_path / "path.sh", f"PYTHON={sys.executable}\n")
    options = ["--base", f"hf:{tmp_path / 'base'}", "--seeds", "1", "--epochs", "1"]
    options += ["--systems", "lora_r4 bayes_lora_both ivon_lora", "--percent", "50"]
    script = AMI / "local" / "pretrained.sh"
    result = run_script(tmp_path, script, *options, OMP_NUM_THREADS="1")
    assert result.returncode == 0, result.stderr
    exp = tmp_path / "exp" / "pretrained"
    assert len((exp / "train.txt").read_text().splitlines()) == 10
    assert len((exp / "eval.txt").read_text().splitlines()) == 3
    for name in ("lora_r4.1/eval", "bayes_lora_both.1/eval_samples", "ivon_lora.1/eval"):
        assert re.search(r"\d+\.\d", (exp / f"{name}.txt").read_text())
