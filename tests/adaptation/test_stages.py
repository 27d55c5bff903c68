"""`bayeslm adapt`: divided lists, adapters, a table, and what `rescore --adapted` takes of it."""

import concurrent.futures
import gzip
import json
import re
import shutil

import pytest
import yaml
from pretrained.tiny_models import write_model

import espnet_bayeslm
from espnet_bayeslm.adaptation import plan as plans
from espnet_bayeslm.adaptation import stages
from espnet_bayeslm.adaptation.plan import Plan, System
from espnet_bayeslm.adaptation.stages import AdaptOptions, adapt, measured, used_system
from espnet_bayeslm.bin import bayeslm
from espnet_bayeslm.bin.adapt import main
from espnet_bayeslm.bin.rescore import main as rescore
from espnet_bayeslm.configs import find_config
from espnet_bayeslm.engine.pool import Pool
from espnet_bayeslm.nbest.formats import read_nbest
from espnet_bayeslm.quickstart.demo import SHIPPED
from espnet_bayeslm.quickstart.steps import read_figures
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import read_yaml_mapping

NUM_LISTS = 30


@pytest.fixture(scope="module")
def lists(tmp_path_factory):
    """Lists of the quick start with references, and `segments` of six recordings."""
    folder = tmp_path_factory.mktemp("lists")
    with gzip.open(SHIPPED / "data" / "dev.jsonl.gz") as f:
        rows = [json.loads(f.readline()) for _ in range(NUM_LISTS)]
    for row in rows:
        row["hypotheses"] = row["hypotheses"][:4]
    (folder / "dev.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    segments = (f"{r['utt']} rec{n // 5} {n % 5}.0 {n % 5}.9\n" for n, r in enumerate(rows))
    (folder / "segments").write_text("".join(segments))
    return folder


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return f"hf:{write_model(tmp_path_factory.mktemp('lm') / 'tiny')}"


def stops(words):
    """Run a command line of all but the last stage."""
    if words[0] == "score":
        raise SystemExit("stopped")
    bayeslm.main(words)


@pytest.fixture(scope="module")
def adapted(lists, tiny, tmp_path_factory):
    """Output of the tool with a context, stopped before its last step, and gone on with."""
    output = tmp_path_factory.mktemp("adapted") / "out"
    arpa = output.parent / "2gram.arpa"
    text = output.parent / "text"
    text.write_text("".join(f"{' '.join(i.ref)}\n" for i in read_nbest(lists / "dev.jsonl")))
    words = ["ngram", "--text", text, "--order", 2, "--arpa", arpa, "--discount_fallback", "true"]
    bayeslm.main([str(word) for word in words])
    options = AdaptOptions(
        nbest=str(lists / "dev.jsonl"),
        source=tiny,
        ngrams=[arpa],
        segments=str(lists / "segments"),
        context="previous",
        normalize="lower",
        max_epoch=2,
        workers=2,
        precision="float32",
        output=str(output),
    )
    with pytest.raises(InputError, match="status 1: stopped"):
        adapt(options, stops)
    assert not (output / "adapted.yaml").exists()
    before = {path: path.stat().st_mtime_ns for path in (output / "log").glob("*.log")}
    adapt(options, bayeslm.main)
    redone = [path.stem for path in before if path.stat().st_mtime_ns != before[path]]
    assert redone == ["report"]
    return output


def test_no_recording_is_in_both_parts(adapted, lists):
    parts = {utt.split()[0] for utt in (adapted / "data" / "tune.ref").read_text().splitlines()}
    recording = dict(line.split()[:2] for line in (lists / "segments").read_text().splitlines())
    tuning = {recording[utt] for utt in parts}
    rest = {recording[utt] for utt in recording if utt not in parts}
    assert tuning and rest and not tuning & rest
    # a sentence of each list of the other part trains
    refs = {item.utt: item.ref for item in read_nbest(lists / "dev.jsonl")}
    runs = (adapted / "data" / "adapt.txt").read_text().split("\n\n")
    text = [line for run in runs for line in run.splitlines()]
    assert text == [" ".join(refs[utt]).lower() for utt in refs if utt not in parts]
    assert len(runs) == len(rest)
    # it is trained in context, on recordings in their order
    config = read_yaml_mapping(next(adapted.glob("*lora/config.yaml")))
    assert config["lm_conf"]["context"] == 256
    assert [i.utt for i in read_nbest(adapted / "data" / "tune.jsonl")] == [
        utt for utt in refs if utt in parts
    ]


def test_the_table_has_each_system_and_the_best_is_used(adapted):
    text = (adapted / "RESULTS.md").read_text()
    rows = re.findall(r"^\| ([a-z ,]+?) *\| *([\d.]*) *\| *([\d.]+) *\|", text, re.MULTILINE)
    names = [name for name, *_ in rows]
    assert names == [
        *("first pass", "first pass, tuned"),
        *("as it is", "as it is, in context", "adapted, in context"),
    ]
    pairs = json.loads((adapted / "score.json").read_text())["significance"]["pairs"]
    better = {(pair["a"], pair["b"]): pair["bootstrap"]["improvement"] for pair in pairs}
    expected = names[2]
    for name in names[3:]:
        expected = name if better[expected, name] >= 0.25 else expected
    assert re.search(r"^Used: ([a-z ,]+?) \(", text, re.MULTILINE)[1] == expected
    assert (adapted / "report.html").exists()
    assert "no references" not in (adapted / "log" / "report.log").read_text()
    assert re.search(r"^counted: words; normalisation lower; .* tuned on ", text, re.MULTILINE)


@pytest.mark.parametrize(
    ("in_context", "adapted", "used"),
    [
        (0.9, {"as it is": 0.9, "as it is, in context": 0.3}, "adapted, in context"),
        (0.9, {"as it is": 0.9, "as it is, in context": 0.2}, "as it is, in context"),
        (0.1, {"as it is": 0.25, "as it is, in context": 0.9}, "adapted, in context"),
        (0.1, {"as it is": 0.1, "as it is, in context": 0.9}, "as it is"),
    ],
)
def test_a_system_is_used_unless_it_probably_has_more_errors(in_context, adapted, used):
    systems = [System("as it is", "a"), System("as it is, in context", "a", in_context=True)]
    systems.append(System("adapted, in context", "b", in_context=True))
    better = {("as it is", "as it is, in context"): in_context}
    better.update(((name, "adapted, in context"), value) for name, value in adapted.items())
    pairs = {pair: {"bootstrap": {"improvement": value}} for pair, value in better.items()}
    assert used_system(systems, pairs).name == used


def test_a_folder_brings_all_that_rescoring_needs(adapted, lists, tmp_path):
    """`--adapted` gives what its parts give by name, of a copy too, whose weights are edited."""
    content = read_yaml_mapping(adapted / "adapted.yaml")
    assert content["normalize"] == "lower"
    folder = tmp_path / "copy"
    shutil.copytree(adapted, folder)
    (folder / content["scales"]).write_text("lmwt: 0.5\nword_penalty: -1.0\n")
    (lm,) = content["lm"]
    nbest = ["--nbest", lists / "dev.jsonl", "--segments", lists / "segments"]
    by_name = [
        *("--lm", folder / lm if (folder / lm).exists() else lm),
        *("--ngram", content["ngram"][0], "--weights", folder / content["weights"]),
        *("--scales", folder / content["scales"], "--normalize", "lower"),
        *("--context", content.get("context", "none"), "--precision", "float32"),
    ]
    for name, options in (("a", ["--adapted", folder]), ("b", by_name)):
        rescore([str(w) for w in [*nbest, *options, "--output", tmp_path / name]])
    for file in ("lmwt.nn", "text"):
        a, b = ((tmp_path / name / file).read_text() for name in "ab")
        assert a == b
    # the LM has a say, and all came from the copy
    firsts = [" ".join(i.hypotheses[0].words) for i in read_nbest(lists / "dev.jsonl")]
    assert [line.split(" ", 1)[-1] for line in a.splitlines()] != firsts
    assert not any(str(adapted) in str(value) for value in content.values())
    # and in Python
    got = espnet_bayeslm.rescore(
        read_nbest(lists / "dev.jsonl"), adapted=folder, segments=lists / "segments"
    )
    said = "".join(f"{' '.join((item.nbest.utt, *item.text))}\n" for item in got)
    assert said == (tmp_path / "a" / "text").read_text()


def test_what_it_brings_may_not_be_given(adapted, lists, tmp_path, fails):
    common = f"--nbest {lists}/dev.jsonl --adapted {adapted} --output {tmp_path}/out".split()
    message = fails(rescore, [*common, "--lmwt", "3", "--normalize", "upper"])
    assert "brings its own" in message and "--normalize" in message and "--lmwt" in message
    assert "no adapted.yaml in it" in fails(rescore, [*common[:2], "--adapted", lists, *common[4:]])
    (tmp_path / "broken").mkdir()
    for text, problem in (
        ("flavour: 3\n", "unknown: flavour"),
        ("- lm\n", "expected a yaml mapping"),
        ("context: next\n", "expected one of none, previous"),
    ):
        (tmp_path / "broken" / "adapted.yaml").write_text(text)
        message = fails(rescore, [*common[:2], "--adapted", tmp_path / "broken", *common[4:]])
        assert problem in message and "adapted.yaml" in message
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (["--from", "{lists}"], "is no pretrained LM"),
        (["--context", "previous"], "needs to know the recordings"),
        (["--ref", "{lists}/few"], "reference"),
        (["--ref", "{lists}/empty"], "no references with words"),
        (["--max_epoch", "0"], "max_epoch"),
    ],
)
def test_bad_input(change, problem, lists, tiny, tmp_path, fails):
    (lists / "few").write_text("dev-x some words\n")
    utts = (f"{item.utt}\n" for item in read_nbest(lists / "dev.jsonl"))
    (lists / "empty").write_text("".join(utts))
    words = [
        *("--nbest", lists / "dev.jsonl", "--from", tiny, "--output", tmp_path / "out"),
        *(word.format(lists=lists) for word in change),
    ]
    assert problem in fails(main, words)
    assert not (tmp_path / "out").exists()


def test_lists_may_come_after_the_adapter(lists, tiny, tmp_path, fails, capsys):
    """References alone train it; lists of the same references go on, and others are refused."""
    refs = {item.utt: item.ref for item in read_nbest(lists / "dev.jsonl")}
    text = "".join(f"{utt} {' '.join(words)}\n" for utt, words in refs.items())
    (tmp_path / "ref").write_text(text)
    output = tmp_path / "out"
    common = {
        **{"source": tiny, "recording_of": "^[a-z]+_(.+)_[0-9]+$", "max_epoch": 1},
        **{"precision": "float32", "workers": 2, "output": str(output)},
    }
    adapt(AdaptOptions(ref=str(tmp_path / "ref"), **common), bayeslm.main)
    assert "the same command with --nbest LISTS" in capsys.readouterr().out
    assert not (output / "adapted.yaml").exists()
    checkpoint = output / "bayes_lora" / "valid.loss.ave.pth"
    before = checkpoint.stat().st_mtime_ns
    options = AdaptOptions(nbest=str(lists / "dev.jsonl"), ref=str(tmp_path / "ref"), **common)
    adapt(options, bayeslm.main)
    assert (output / "adapted.yaml").exists() and checkpoint.stat().st_mtime_ns == before
    rows = [json.loads(line) for line in (lists / "dev.jsonl").read_text().splitlines()]
    for row in rows:
        row["hypotheses"] = row["hypotheses"][:2]
    (tmp_path / "other.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    words = ["--nbest", tmp_path / "other.jsonl", "--ref", tmp_path / "ref", "--from", tiny]
    words += ["--recording_of", common["recording_of"], "--max_epoch", "1", "--output", output]
    message = fails(main, words)
    assert "tune.jsonl: holds parts of other lists" in message
    assert "neither lists nor references" in fails(main, ["--from", tiny, "--output", output])


def test_the_number_of_sentences_chooses_the_adapter(lists, tiny, tmp_path, monkeypatch):
    """A posterior on few of them; --text counts, and blank lines between recordings do not."""
    refs = [item.ref for item in read_nbest(lists / "dev.jsonl")]
    more = tmp_path / "more.txt"
    more.write_text("\n\n".join(" ".join(words) for words in refs[:5]) + "\n")
    given = {"source": tiny, "max_epoch": 1, "precision": "float32", "workers": 1}
    given["ref"] = str(tmp_path / "ref")
    (tmp_path / "ref").write_text("".join(f"u{n} {' '.join(r)}\n" for n, r in enumerate(refs[:9])))
    for few, adapter in ((11, "lora"), (12, "bayes_lora")):
        monkeypatch.setattr(plans, "FEW", few)
        output = tmp_path / adapter
        adapt(AdaptOptions(texts=[more], output=str(output), **given), bayeslm.main)
        sentences = (output / "data" / "adapt.txt").read_text().split("\n")
        assert sum(map(bool, sentences)) == 11
        assert [path.parent.name for path in output.glob("*/config.yaml")] == [adapter]


def test_the_adapter_whose_average_predicts_the_tuning_text_best_is_used(lists, tiny, tmp_path):
    """By the figure of the LM that is used, which the table has."""
    still = tmp_path / "still.v2.yaml"
    still.write_text(find_config("lora").read_text().replace("lr: 0.0005", "lr: 1.0e-9"))
    output = tmp_path / "out"
    options = AdaptOptions(
        nbest=str(lists / "dev.jsonl"),
        source=tiny,
        configs=["lora", str(still)],
        max_epoch=1,
        workers=2,
        precision="float32",
        output=str(output),
    )
    with pytest.raises(InputError, match="stopped"):
        adapt(options, stops)
    paths = {name: output / "perplexity" / f"{name}.json" for name in ("lora", "still.v2")}
    best, other = sorted(paths, key=lambda name: read_figures(paths[name])[-1])
    assert f"{output}/{best} " in (output / "log" / "adapted.done").read_text()
    shutil.copy(paths[best], tmp_path / "kept")
    shutil.copy(paths[other], paths[best])
    shutil.copy(tmp_path / "kept", paths[other])
    adapt(options, bayeslm.main)
    assert f"{output}/{other} " in (output / "log" / "adapted.done").read_text()
    row = re.search(r"^\| adapted +\| +([\d.]+)", (output / "RESULTS.md").read_text(), re.MULTILINE)
    assert row[1] == f"{read_figures(paths[other])[-1]:.1f}"


def test_form_and_speed_are_those_of_the_lm_that_is_given(tmp_path, monkeypatch):
    measure = {"hf:a": ("as_is", 9.0), "hf:b": ("lower", 3.0)}
    monkeypatch.setattr(stages, "form_and_speed", lambda plan: measure[plan.lm])
    (tmp_path / "data").mkdir()
    with concurrent.futures.ThreadPoolExecutor(1) as executor:
        for lm in ("hf:a", "hf:b"):
            assert measured(Pool(executor, 1), Plan(tmp_path, lm, ["lora"])) == measure[lm]
        monkeypatch.setattr(stages, "form_and_speed", None)  # it is not measured again
        assert measured(Pool(executor, 1), Plan(tmp_path, lm, ["lora"])) == measure[lm]


def test_parts_of_other_lists_are_not_mixed(adapted, lists, tiny, tmp_path, fails):
    few = (lists / "dev.jsonl").read_text().splitlines()[: NUM_LISTS // 2]
    (tmp_path / "few.jsonl").write_text("".join(f"{line}\n" for line in few))
    words = ["--nbest", tmp_path / "few.jsonl", "--from", tiny, "--output", adapted]
    assert "parts of other lists" in fails(main, words)
    assert yaml.safe_load((adapted / "adapted.yaml").read_text())
