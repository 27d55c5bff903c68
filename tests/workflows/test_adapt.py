"""`bayeslm adapt`: whole runs, what `rescore --adapted` takes of them, and what is refused."""

import concurrent.futures
import contextlib
import gzip
import io
import json
import re
import shutil
from pathlib import Path

import pytest
import yaml
from pretrained.tiny_models import write_model

import espnet_bayeslm
from espnet_bayeslm.bin import bayeslm
from espnet_bayeslm.bin.adapt import main
from espnet_bayeslm.bin.rescore import main as rescore
from espnet_bayeslm.engine.pool import Pool
from espnet_bayeslm.evaluation.wer import FIRST_PASS
from espnet_bayeslm.nbest.formats import read_nbest
from espnet_bayeslm.ngram.estimation import build_ngram
from espnet_bayeslm.rescoring.scales import NOT_USED, read_scales
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import read_yaml_mapping
from espnet_bayeslm.workflows import adapt as flow
from espnet_bayeslm.workflows import adapt_data, adapt_systems
from espnet_bayeslm.workflows.adapt import adapt, finish, measured, planned
from espnet_bayeslm.workflows.adapt_choice import Biased, Result
from espnet_bayeslm.workflows.adapt_data import AdaptOptions, checked_data, write_texts
from espnet_bayeslm.workflows.adapt_systems import Plan
from espnet_bayeslm.workflows.commands import TUNED_FIRST_PASS
from espnet_bayeslm.workflows.quickstart import SHIPPED

NUM_LISTS = 30


@pytest.fixture(scope="module", autouse=True)
def few_parts():
    """Few trainings, and few times that weights are tuned."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(adapt_data, "PARTS_OF_LITTLE", 2)
        patch.setattr(adapt_systems, "FOLDS", 2)
        yield


@pytest.fixture(scope="module")
def lists(tmp_path_factory):
    """Lists of the quick start with references, and `segments` of six recordings."""
    folder = tmp_path_factory.mktemp("lists")
    with gzip.open(SHIPPED / "dev.jsonl.gz") as f:
        rows = [json.loads(f.readline()) for _ in range(NUM_LISTS)]
    for row in rows:
        row["hypotheses"] = row["hypotheses"][:4]
    (folder / "dev.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    segments = (f"{r['utt']} rec{n // 5} {n % 5}.0 {n % 5}.9\n" for n, r in enumerate(rows))
    (folder / "segments").write_text("".join(segments))
    refs = (f"{item.utt} {' '.join(item.ref)}\n" for item in read_nbest(folder / "dev.jsonl"))
    (folder / "ref").write_text("".join(refs))
    return folder


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return f"hf:{write_model(tmp_path_factory.mktemp('lm') / 'tiny')}"


def quick(words):
    """Run a command line, without the figures of trainings."""
    bayeslm.main([*words, "--use_matplotlib", "false"] if words[0] == "train" else words)


def stops(words):
    """Run a command line of all but the last stage."""
    if words[0] == "score":
        raise SystemExit("stopped")
    quick(words)


def times(folder, pattern):
    return {path: path.stat().st_mtime_ns for path in folder.glob(pattern)}


@pytest.fixture(scope="module")
def adapted(lists, tiny, tmp_path_factory):
    """Output of the tool with a context.

    References alone train the adapters. The same command with lists goes on from there, is
    stopped before its last step, and goes on once more.
    """
    output = tmp_path_factory.mktemp("adapted") / "out"
    arpa, text = output.parent / "2gram.arpa", output.parent / "text"
    text.write_text("".join(f"{' '.join(i.ref)}\n" for i in read_nbest(lists / "dev.jsonl")))
    build_ngram(text, arpa, order=2, discount_fallback=True)
    given = {
        **{"source": tiny, "ngrams": [arpa], "precision": "float32", "normalize": "lower"},
        **{"segments": str(lists / "segments"), "context": "previous", "max_epoch": 1},
        **{"workers": 2, "output": str(output)},
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flow, "chosen_row", lambda rows: rows[-1])
        with contextlib.redirect_stdout(io.StringIO()) as said:
            adapt(AdaptOptions.of(ref=str(lists / "ref"), **given), quick)
        assert "the same command with --nbest LISTS" in said.getvalue()
        trained = times(output, "parts/**/valid.loss.ave.pth")
        assert len(trained) == 2 and (output / "bayes_lora" / "valid.loss.ave.pth").exists()
        options = AdaptOptions.of(nbest=str(lists / "dev.jsonl"), **given)
        with pytest.raises(InputError, match="status 1: stopped"):
            adapt(options, stops)
        assert not (output / "adapted.yaml").exists()
        before = times(output / "log", "*.log")
        adapt(options, quick)
    (output / "options.yaml").write_text(yaml.safe_dump({**given, "ngrams": [str(arpa)]}))
    assert times(output, "parts/**/valid.loss.ave.pth") == trained
    redone = [path.stem for path in before if path.stat().st_mtime_ns != before[path]]
    assert redone == ["report"]
    return output


def test_no_adapter_scores_a_recording_that_it_learnt(adapted, lists):
    recording = dict(line.split()[:2] for line in (lists / "segments").read_text().splitlines())
    rows = (adapted / "data" / "bayes_lora.utt2lm").read_text().splitlines()
    refs = {item.utt: item.ref for item in read_nbest(lists / "dev.jsonl")}
    scored = dict(map(str.split, rows))
    assert [*scored] == [*refs] and len({*scored.values()}) == 2
    for lm in {*scored.values()}:
        own = {recording[utt] for utt in refs if scored[utt] == lm}
        rest = {recording[utt] for utt in refs if scored[utt] != lm}
        assert own and rest and not own & rest
        # it learnt the references of the others, in context, a run for each recording
        runs = (adapted / "data" / f"adapt{lm.split('/')[-2]}.txt").read_text().split("\n\n")
        text = [line for run in runs for line in run.splitlines()]
        assert text == [" ".join(refs[utt]).lower() for utt in refs if scored[utt] != lm]
        assert len(runs) == len(rest)
        assert read_yaml_mapping(f"{lm}/config.yaml")["lm_conf"]["context"] == 256
    assert [i.utt for i in read_nbest(adapted / "data" / "tune.jsonl")] == [*refs]


def test_the_table_has_each_system_and_its_figures(adapted):
    text = (adapted / "RESULTS.md").read_text()
    rows = re.findall(r"^\| ([a-z ,]+?) *\| *([\d.]*) *\| *([\d.]+) *\|", text, re.MULTILINE)
    systems = ["as it is", "as it is, in context", "adapted, in context"]
    assert [name for name, *_ in rows] == [FIRST_PASS, TUNED_FIRST_PASS, *systems]
    scores = json.loads((adapted / "score.json").read_text())
    for name, perplexity, wer in rows:
        assert wer == f"{scores[name]['wer']:.2f}"
        assert bool(perplexity) == (name in (systems[0], systems[2]))
    assert "Used: adapted, in context." in text
    assert "30 lists" in text and "by recordings" in text
    assert (adapted / "report.html").exists()
    assert "no references" not in (adapted / "log" / "report.log").read_text()
    assert re.search(r"^counted: words; normalisation lower; .* tuned on ", text, re.MULTILINE)


def test_a_folder_brings_all_that_rescoring_needs(adapted, lists, tmp_path):
    """`--adapted` gives what its parts give by name, of a copy too, whose weights are edited."""
    content = read_yaml_mapping(adapted / "adapted.yaml")
    assert content["normalize"] == "lower" and content["context"] == "previous"
    assert content["lm"] == ["bayes_lora"] and content["used"] == "adapted, in context"
    folder = tmp_path / "copy"
    shutil.copytree(adapted, folder)
    (folder / content["scales"]).write_text("lmwt: 0.5\nword_penalty: -1.0\n")
    nbest = ["--nbest", lists / "dev.jsonl", "--segments", lists / "segments"]
    by_name = [
        *("--lm", folder / "bayes_lora"),
        *("--ngram", content["ngram"][0], "--weights", folder / content["weights"]),
        *("--scales", folder / content["scales"], "--normalize", "lower"),
        *("--context", "previous", "--precision", "float32"),
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


def test_weights_that_were_tuned_with_parts_belong_to_the_adapter_of_all(adapted, lists, caplog):
    """Neither a warning of other LMs, nor of other forms."""
    items = read_nbest(lists / "dev.jsonl")
    next(espnet_bayeslm.rescore(items, adapted=adapted, segments=lists / "segments"))
    assert not [r for r in caplog.records if r.levelname == "WARNING"]
    scales = read_yaml_mapping(adapted / "scales.yaml")
    assert {*scales["fingerprints"]} == {"bayes_lora", "2gram"}


MORE = {"lmwt": 1.0, "word_penalty": 0.0}
RESULTS = ("RESULTS.md", "adapted.yaml", "scales.yaml")


@pytest.fixture(params=["adapted, in context", FIRST_PASS, TUNED_FIRST_PASS])
def with_bias(request, adapted, lists, monkeypatch):
    """Return the folder after the same command with a bias list, and the row that was used."""
    used, before = request.param, {name: (adapted / name).read_text() for name in RESULTS}
    # words that other hypotheses have right
    rows = (
        {"utt": item.utt, "words": sorted({*item.ref} - {*item.hypotheses[0].words})}
        for item in read_nbest(lists / "dev.jsonl")
    )
    (lists / "bias").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    monkeypatch.setattr(flow, "chosen_row", lambda rows: {row.name: row for row in rows}[used])
    given = read_yaml_mapping(adapted / "options.yaml")
    done = {p: t for p, t in times(adapted / "log", "*.done").items() if "bias" not in p.name}
    options = AdaptOptions.of(nbest=str(lists / "dev.jsonl"), bias=str(lists / "bias"), **given)
    with contextlib.redirect_stdout(io.StringIO()):
        adapt(options, quick)
    assert times(adapted / "log", "*.done").items() >= done.items()
    yield adapted, used
    for name, text in before.items():
        (adapted / name).write_text(text)


def test_a_bias_list_joins_the_system_that_is_used(with_bias, lists, tmp_path):
    """It is a row of its own, tested against this system; without a list the folder still works."""
    folder, used = with_bias
    name = f"{used}, and the bias list"
    scores = json.loads((folder / "bias_score.json").read_text())
    (pair,) = (p for p in scores["significance"]["pairs"] if (p["a"], p["b"]) == (used, name))
    text = (folder / "RESULTS.md").read_text()
    row = next(line for line in text.splitlines() if line.startswith(f"| {name}"))
    cells = [cell.strip() for cell in row.split("|")[1:-1]]
    assert cells[2:4] == [f"{scores[name]['wer']:.2f}", f"{pair['mapsswe']['p']:.2g}"]
    assert cells[4] == ("used" if used.startswith("adapted") else "")
    for rate, part in scores["bias"].items():
        assert f"{rate} {part[used]['wer']:.2f} -> {part[name]['wer']:.2f} %" in text
    # of few lists no weights are sure
    assert scores[name]["errors"] <= scores[used]["errors"] and f"Used: {name}" in text
    assert read_yaml_mapping(folder / "adapted.yaml")["used"] == name
    assert (folder / "bias_report.html").exists()
    assert read_scales(folder / "scales.yaml").knows_bias
    # weights that say something, for lists with bias lists and without
    weights = read_yaml_mapping(folder / "scales.yaml")["unbiased"]
    (folder / "scales.yaml").write_text(
        yaml.safe_dump({**weights, **MORE, "bias": 50.0, "unbiased": {**weights, **MORE}})
    )
    words = ["--nbest", lists / "dev.jsonl", "--segments", lists / "segments", "--adapted", folder]
    texts = {}
    for key, more in {"with": ["--bias", lists / "bias"], "without": []}.items():
        rescore([str(word) for word in [*words, *more, "--output", tmp_path / key]])
        texts[key] = (tmp_path / key / "text").read_text()
    assert texts["with"] != texts["without"]
    assert (tmp_path / "with" / "text_without_bias").read_text() == texts["without"]


def test_a_bias_list_that_does_harm_is_not_used(tmp_path):
    """Lists are then weighed as without it, whether one is given or not."""
    options = AdaptOptions.of(source="hf:lm", output=str(tmp_path))
    plan = planned(options)
    system = plan.systems("lora")[0]
    biased = system._replace(name="as it is, and the bias list", biased=True)
    weights = {"lmwt": 2.0, "word_penalty": 0.5}
    for item, more in ((system, {}), (biased, {"bias": 3.0, "unbiased": weights})):
        plan.rescored(item).mkdir(parents=True)
        content = yaml.safe_dump({**weights, **more, "counted": {"tuned_on": item.key}})
        (plan.rescored(item) / "scales.yaml").write_text(content)
    used = Result(system.name, 9, 9.0, system=system)
    for unused in ("", "worse"):
        row = Result(biased.name, 10, 10.0, system=biased, unused=unused)
        finish(plan, options, [used], used, Biased(row, used.name, {"U-WER": (1.0, 2.0)}))
        scales = read_scales(tmp_path / "scales.yaml")
        assert scales.knows_bias and scales.uses_bias == (not unused)
        assert scales.without_bias.lmwt == scales.lmwt == 2.0
        row = read_yaml_mapping(tmp_path / "adapted.yaml")
        assert row["used"] == (system if unused else biased).name


@pytest.mark.parametrize("used", [FIRST_PASS, TUNED_FIRST_PASS])
def test_without_an_lm_nothing_is_read_and_scored(used, adapted, lists, tmp_path, caplog, capsys):
    """The folder says why, the lists are those of its scales, and no LM need be there."""
    options = AdaptOptions.of(source="hf:lm", normalize="lower", output=str(tmp_path))
    shutil.copytree(adapted / "rescored", tmp_path / "rescored")
    plan = planned(options)
    system = plan.systems("lora")[0]
    rows = [Result(FIRST_PASS, 9, 9.0), Result(TUNED_FIRST_PASS, 9, 9.0)]
    rows.append(Result(system.name, 9, 9.0, system=system, unused=NOT_USED))
    finish(plan, options, rows, next(row for row in rows if row.name == used))
    content = read_yaml_mapping(tmp_path / "adapted.yaml")
    assert content["used"] == used and content["note"] == NOT_USED and "lm" not in content
    words = ["--nbest", lists / "dev.jsonl", "--adapted", tmp_path, "--output", tmp_path / "out"]
    rescore([str(word) for word in [*words, "--decision", "mbr", "--write_best", 1]])
    assert f"used: {used}; {NOT_USED}" in caplog.text
    expected = [
        f"{i.utt} {' '.join(i.hypotheses[0].words)}" for i in read_nbest(lists / "dev.jsonl")
    ]
    if used == TUNED_FIRST_PASS:
        expected = (tmp_path / "rescored" / "as_it_is" / "text_without_lm").read_text().splitlines()
        # held out there, by all weights here: alike but for some
        assert len(expected) == NUM_LISTS
    else:
        assert (tmp_path / "out" / "text").read_text().splitlines() == expected
        assert "as it came" in capsys.readouterr().out
    assert not (tmp_path / "out" / "lmwt.nn").exists()


@pytest.mark.parametrize("key", [0, 1, 2])
def test_a_folder_names_what_belongs_to_the_system_that_is_used(key, tmp_path, monkeypatch):
    """Scales, weights, context and all options of counting, of each system as the one used."""
    monkeypatch.setattr("espnet_bayeslm.loading.pretrained_lm.adapted_digest", lambda path: "d")
    options = AdaptOptions.of(
        **{"source": "hf:lm", "ngrams": ["a.arpa"], "precision": "bfloat16", "unit": "char"},
        **{"context": "previous", "recording_of": "(.)", "ignore_words": str(tmp_path / "noise")},
        **{"normalize": "lower", "output": str(tmp_path)},
    )
    (tmp_path / "noise").write_text("[noise]\n")
    plan = planned(options)
    systems = plan.systems("lora")
    rows = [Result(FIRST_PASS, 9, 9.0), Result(TUNED_FIRST_PASS, 9, 9.0)]
    rows += [Result(s.name, 9, 9.0, system=s) for s in systems]
    for system in systems:
        plan.rescored(system).mkdir(parents=True)
        text = f"lmwt: 1.0\nword_penalty: 0.0\ntuned_on: {system.key}\n"
        (plan.rescored(system) / "scales.yaml").write_text(text)
    finish(plan, options, rows, rows[2 + key])
    content, system = read_yaml_mapping(tmp_path / "adapted.yaml"), systems[key]
    assert content["lm"] == ["hf:lm" if system.config is None else str(plan.exp("lora"))]
    assert content["weights"] == str(plan.mixture(system.config).weights)
    assert content.get("context") == ("previous" if system.in_context else None)
    assert content.get("recording_of") == ("(.)" if system.in_context else None)
    assert content["precision"] == "bfloat16" and content["unit"] == "char"
    assert content["normalize"] == "lower" and content["ignore_words"] == "noise"
    scales = read_yaml_mapping(tmp_path / content["scales"])
    assert scales["tuned_on"] == system.key
    assert scales.get("fingerprints") == (None if system.config is None else {"lora": "d"})


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (["--from", "{lists}"], "is no pretrained LM"),
        (["--context", "previous"], "needs to know the recordings"),
        (["--ref", "{lists}/few"], "reference"),
        (["--ref", "{lists}/empty"], "no references with words"),
        (["--nbest", "{lists}/few.jsonl"], "3 lists with references, and 20 or more"),
        (["--text", "{lists}/blank"], "blank: no words"),
        (["--max_epoch", "0"], "max_epoch"),
        (["--bias", "{lists}/no_list"], "none of its 1 utterances (first: 'u9') is among the 30"),
        (["--bias", "{lists}/no_weight"], "no_weight:1: the weight 'much' of 'kite' is no number"),
        (["--bias", "{lists}/no_list", "--unit", "char"], "bias lists hold words"),
    ],
)
def test_bad_input(change, problem, lists, tiny, tmp_path, fails):
    (lists / "few").write_text("dev-x some words\n")
    (lists / "blank").write_text("\n\n")
    (lists / "no_list").write_text('{"utt": "u9", "words": ["kite"]}\n')
    (lists / "no_weight").write_text("kite\tmuch\n")
    rows = (lists / "dev.jsonl").read_text().splitlines(keepends=True)
    (lists / "few.jsonl").write_text("".join(rows[:3]))
    utts = (f"{item.utt}\n" for item in read_nbest(lists / "dev.jsonl"))
    (lists / "empty").write_text("".join(utts))
    words = [
        *("--nbest", lists / "dev.jsonl", "--from", tiny, "--output", tmp_path / "out"),
        *(word.format(lists=lists) for word in change),
    ]
    assert problem in fails(main, words)
    assert not (tmp_path / "out").exists()


def test_another_lm_or_other_references_are_refused(adapted, lists, tiny, fails):
    """Nothing is trained on from adapters of others; what was written stays."""
    words = ["--from", tiny, "--segments", lists / "segments", "--context", "previous"]
    words += ["--precision", "float32", "--max_epoch", 1, "--normalize", "lower"]
    words += ["--output", adapted]
    rows = (lists / "dev.jsonl").read_text().splitlines(keepends=True)
    (lists / "some.jsonl").write_text("".join(rows[:25]))
    before = times(adapted, "**/*.pth") | times(adapted, "log/*")
    assert "neither lists nor references" in fails(main, words)
    message = fails(main, ["--nbest", lists / "some.jsonl", *words])
    assert "data: holds parts of other lists or texts than those given now" in message
    more = Path(tiny.removeprefix("hf:")) / "more.json"
    more.write_text("{}")
    message = fails(main, ["--ref", lists / "ref", *words])
    more.unlink()
    assert f"parts/1/bayes_lora: was made with another {more.parent} than there is" in message
    assert before == times(adapted, "**/*.pth") | times(adapted, "log/*")


def test_the_number_of_sentences_chooses_the_adapter(lists, tiny, tmp_path, monkeypatch):
    """A posterior on few of them; --text counts, and blank lines between sentences do not."""
    more = tmp_path / "more.txt"
    more.write_text("\n\n".join(f"sentence {n}" for n in range(5)) + "\n")
    refs = (lists / "ref").read_text().splitlines(keepends=True)[:20]
    (tmp_path / "ref").write_text("".join(refs))
    given = {"ref": str(tmp_path / "ref"), "texts": [more], "source": tiny}
    options = AdaptOptions.of(**given, precision="float32", output=str(tmp_path / "out"))
    plan, data = planned(options), checked_data(options)
    write_texts(plan, data)
    monkeypatch.setattr(flow, "measured", lambda *_: ("as_is", 9.0))
    for few, config in ((25, "lora"), (26, "bayes_lora")):
        monkeypatch.setattr(adapt_systems, "FEW", few)
        assert flow.ready(plan, data, Pool(None, 1)).configs == (config,)


@pytest.mark.parametrize("best", ["lora", "still.v2"])
def test_the_adapter_that_predicts_the_references_best_is_used(best, tmp_path):
    """By the mixture with all LMs, on references that it did not see."""
    plan = Plan(tmp_path, "hf:lm", ["lora", "dir/still.v2.yaml"])
    done = []

    def run(steps):
        done.append([step.name for step in steps])
        for config in plan.configs:
            path = plan.mixture(config).weights
            path.parent.mkdir(exist_ok=True)
            figure = {"perplexity_without_oov": 5.0 - (path.stem == best)}
            content = {"components": [{"perplexity_without_oov": 1.0}], "mixture": figure}
            path.write_text(yaml.safe_dump(content))

    systems = flow.measure(plan, run)
    assert [Path(system.config).stem for system in systems if system.config] == [best]
    trained = ["lora_1", "lora_2", "still.v2_1", "still.v2_2"]
    measured = ["as_it_is_text", "as_it_is", "lora_text", "still.v2_text"]
    assert done == [[*trained, *measured], ["adapted", "report"]]


def test_form_and_speed_are_those_of_the_lm_that_is_given(tmp_path, monkeypatch):
    measure = {"hf:a": ("as_is", 9.0), "hf:b": ("lower", 3.0)}
    monkeypatch.setattr(flow, "form_and_speed", lambda plan: measure[plan.lm])
    (tmp_path / "data").mkdir()
    with concurrent.futures.ThreadPoolExecutor(1) as executor:
        for lm in ("hf:a", "hf:b"):
            assert measured(Pool(executor, 1), Plan(tmp_path, lm, ["lora"])) == measure[lm]
        monkeypatch.setattr(flow, "form_and_speed", None)  # it is not measured again
        assert measured(Pool(executor, 1), Plan(tmp_path, lm, ["lora"])) == measure[lm]
