"""The tools' front doors: command lines, `load`, `rescore`, and what each imports."""

import gc
import importlib
import inspect
import itertools
import json
import multiprocessing
import re
import runpy
import subprocess
import sys

import numpy as np
import pytest
import torch
import yaml
from command_lines import run, settings
from tiny_training import words

import espnet_bayeslm
from espnet_bayeslm.bin import perplexity, rescore, score
from espnet_bayeslm.bin.bayeslm import TOOLS, main
from espnet_bayeslm.bin.ngram import NgramOptions
from espnet_bayeslm.bin.train import train
from espnet_bayeslm.evaluation.wer import read_transcripts
from espnet_bayeslm.ngram.estimation import build_ngram
from espnet_bayeslm.rescoring import read_nbest, token_log_probs
from espnet_bayeslm.rescoring.scales import Scales
from espnet_bayeslm.training.train_options import TrainOptions
from espnet_bayeslm.utils.cli import device_of
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import read_keyed_lines
from espnet_bayeslm.utils.imports import no_collections, quiet_imports, stand_in_for
from espnet_bayeslm.utils.options import ToolOptions, described_fields


@pytest.mark.parametrize(
    "word, code, said",
    [
        ("--help", 0, TOOLS),
        ("--version", 0, [f"bayeslm {espnet_bayeslm.__version__}\n"]),
        ("rescor", 2, ["unknown tool 'rescor'"]),
    ],
)
def test_what_is_said_without_a_tool(word, code, said, capsys):
    with pytest.raises(SystemExit) as stop:
        main([word])
    assert stop.value.code == code
    shown = "".join(capsys.readouterr())
    assert all(part in shown for part in said)


@pytest.mark.parametrize("tool", sorted(TOOLS))
def test_every_tool_is_a_module(tool, capsys, monkeypatch):
    """`python -m espnet_bayeslm.bin.TOOL`, as ESPnet's scripts call theirs."""
    name = f"espnet_bayeslm.bin.{tool}"
    monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(sys, "argv", [tool, "--help"])
    with pytest.raises(SystemExit) as stop:
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    assert stop.value.code == 0
    out = capsys.readouterr().out
    assert "--config" in out
    # that of lm_train is ESPnet's
    assert tool == "lm_train" or not re.search(r"default:\s+(None|True|False|\[\])", out)


def test_tools_by_the_package_and_with_a_config_file(tmp_path, capsys):
    config = tmp_path / "ngram.yaml"
    config.write_text("order: 2\nlmplz: none\ndiscount_fallback: true\n")
    (tmp_path / "text").write_text("a b c\na b d\n")
    options = {"config": config, "text": tmp_path / "text", "arpa": tmp_path / "out.arpa"}
    main(["ngram", *words(**options)])
    arpa = (tmp_path / "out.arpa").read_text()
    assert "\\2-grams:" in arpa and "\\3-grams:" not in arpa
    # what is needed, numbers for words, one value of a repeated option
    (tmp_path / "ref").write_text("u a b c\n")
    content = {"ref": str(tmp_path / "ref"), "hyp": f"x={tmp_path}/ref", "ignore_words": None}
    config.write_text(yaml.safe_dump(content))
    main(["score", "--config", str(config)])
    assert "0.00" in capsys.readouterr().out
    options = {"nbest": "x.jsonl", "ngram": "x.arpa", "weights": 1.0, "subtract_weight": -0.3}
    config.write_text(yaml.safe_dump({**options, "tune_lms": True, "output": "o"}))
    found = rescore.TOOL.parser().parse_args(["--config", str(config)])
    assert (found.ngram, found.weights, found.tune_lms) == (["x.arpa"], "1.0", True)
    assert found.subtract_weight == [-0.3] and found.nbest == "x.jsonl"
    config.write_text("weights: [0.4, 0.6]\n")
    with pytest.raises(SystemExit):
        rescore.TOOL.parser().parse_args(["--config", str(config)])
    assert "arguments are required: --nbest, --output" in capsys.readouterr().err
    command = [sys.executable, "-m", "espnet_bayeslm", "lattice", "--help"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0 and result.stdout.startswith("usage: bayeslm lattice")


def test_references_of_some_utterances(tmp_path, refused, capsys, caplog):
    (tmp_path / "hyp").write_text("u1 a b\nu2 a x\nu3 a\n")
    (tmp_path / "ref").write_text("u1 a b\nu2 a c\n")
    output = tmp_path / "scores.json"
    command = words(ref=tmp_path / "ref", hyp=f"A={tmp_path}/hyp", output=output)
    refused(score.main, command, "1 utterances have no reference", "--partial_ref true")
    score.main([*command, "--partial_ref", "true"])
    assert output.exists() and re.search(r"A +25.00 +1 +0 +0 +4", capsys.readouterr().out)
    assert "2 of 3 have a reference" in caplog.text
    (tmp_path / "ref").write_text("u1 a b\nu9 a c\n")
    refused(score.main, [*command, "--partial_ref", "true"], "have no hypothesis (first: 'u9')")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_no_gpu(bayes, plain_text, train_lm, tmp_path, fails):
    text = ["--text", plain_text / "valid.txt", "--lm", bayes]
    message = fails(perplexity.main, [*text, "--ngpu", 1])
    assert message.endswith("--ngpu 1, and torch finds no GPU. Give --ngpu 0.")
    with pytest.raises(InputError, match="Give --ngpu 0"):
        train_lm(tmp_path / "exp", "--lm", "bayes_lstm", "--ngpu", 1)
    assert not (tmp_path / "exp").exists()


def test_the_device_of_a_gpu(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert [device_of(0), device_of(1)] == ["cpu", "cuda"]


def defaults_of(options):
    """Return {name: default} of a function's parameters or of the fields of a dataclass."""
    return {name: p.default for name, p in inspect.signature(options).parameters.items()}


# Options of `bayeslm rescore` that `espnet_bayeslm.rescore` has not
OF_FILES = {
    "nbest": "the lists are given as such",
    "nbest_format": "`read_nbest` reads them",
    "nbest_size": "`read_nbest` takes as many of a lattice",
    "tune_ref": "references are given by `refs`",
    "ref": "nothing is counted",
    "train_texts": "no references are looked for in a training text",
    "output": "nothing is written",
    "token_scores": "nothing is written; each result has `word_log_probs`",
    "write_best": "nothing is written; each result has all hypotheses and their scores",
}


def test_options_that_go_together_are_nested():
    """No class of options has more than four classes of the package, itself among them."""
    for name in TOOLS:
        importlib.import_module(f"espnet_bayeslm.bin.{name}")
    classes = [ToolOptions]
    for cls in classes:
        classes += cls.__subclasses__()
    assert rescore.RescoreCommand in classes
    assert max(len(cls.__mro__) for cls in classes) <= 4 + 1  # `object`


def test_functions_have_the_options_of_their_tools():
    fields = described_fields(rescore.RescoreCommand).values()
    found, expected = defaults_of(espnet_bayeslm.rescore), {f.name: f.default for f in fields}
    # Python has lists and references, the tool their files
    assert found.keys() - expected.keys() == {"lists", "tune", "refs", "device"}
    assert expected.keys() - found.keys() == OF_FILES.keys()
    shared = expected.keys() & found.keys()
    assert all(found[name] == expected[name] for name in shared)
    assert {"lmwt", "word_penalty", "workers", "engine", "engine_conf", "ngpu"} <= shared
    assert defaults_of(train) == defaults_of(TrainOptions)
    found, expected = defaults_of(build_ngram), defaults_of(NgramOptions)
    # Python has a tokenizer, the tool its experiment
    assert found.pop("tokens") is expected.pop("asr_exp") is None and found == expected


HEAVY = {"torch", "scipy", "matplotlib", "espnet2.lm", "transformers", "nltk", "g2p_en", "kaldiio"}
# of packages that have a stand-in, a module that each imports
PHONEMES = {"g2p_en.g2p", "nltk.tokenize", "inflect"}
TASKS = {"espnet2.tasks.lm", "transformers", "librosa", "sklearn", *PHONEMES}

# main() of each tool in one process: what the modules of one bring is there for the next
HELP = """
import contextlib, json, sys
from espnet_bayeslm.bin.bayeslm import main
found = {}
for tool in sys.argv[1:]:
    with contextlib.redirect_stdout(sys.stderr), contextlib.suppress(SystemExit):
        main([*tool.split(), "--help"])
    found[tool] = sorted(sys.modules)
print(json.dumps(found))
"""
SCORE = """
import json, sys, espnet_bayeslm
scores = [espnet_bayeslm.load(path).score("a b c") for path in sys.argv[1:]]
print(json.dumps([scores, sorted(sys.modules)]))
"""
TRAIN = """
import json, sys, espnet_bayeslm.training.text, espnet_bayeslm.training.task
print(json.dumps(sorted(sys.modules)))
"""


def run_script(script, *words):
    """Run a script in a process of its own; return what it prints, all of which is JSON."""
    command = [sys.executable, "-c", script, *map(str, words)]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(result.stdout), result.stderr


def test_what_takes_nothing_heavy(bayes, seq_rnn):
    modules, shown = run_script(HELP, "", *TOOLS)
    assert shown.count("usage: ") == len(TOOLS) + 1
    assert {tool: HEAVY & set(found) for tool, found in modules.items() if HEAVY & set(found)} == {}
    script = "import sys, json, espnet_bayeslm; print(json.dumps(sorted(sys.modules)))"
    loaded, _ = run_script(script)
    assert "espnet_bayeslm" in loaded
    assert not {"torch", "numpy", "espnet2", "matplotlib"} & set(loaded)
    (scores, loaded), _ = run_script(SCORE, bayes, seq_rnn)
    assert max(scores) < 0 and "torch" in loaded
    assert not TASKS & set(loaded)


@pytest.mark.slow
def test_a_training_needs_no_phonemes():
    """NLTK asks the network for its data where ESPnet's converter of phonemes is imported."""
    loaded, shown = run_script(TRAIN)
    assert "espnet2.tasks.lm" in loaded
    assert not PHONEMES & set(loaded)
    assert "nltk" not in shown and "flash" not in shown.lower()


def test_imports_collect_no_garbage():
    with pytest.raises(ImportError), quiet_imports():
        assert not gc.isenabled()
        raise ImportError
    assert gc.isenabled()
    with no_collections():
        with quiet_imports():
            pass
        assert not gc.isenabled()


def test_a_stand_in_becomes_the_module(tmp_path, monkeypatch):
    (tmp_path / "spoken.py").write_text("print('imported')\nSOUND = 'boo'\n")
    monkeypatch.syspath_prepend(tmp_path)
    stand_in_for("spoken")
    import spoken

    assert sys.modules["spoken"] is spoken and not hasattr(spoken, "__file__")
    assert spoken.SOUND == "boo" and sys.modules["spoken"] is not spoken
    # whoever holds the stand-in may ask it again
    module = sys.modules["spoken"]
    assert spoken.SOUND == "boo" and sys.modules["spoken"] is module
    monkeypatch.delitem(sys.modules, "spoken")
    stand_in_for("no_such_module")
    stand_in_for("no_such_package.module")
    assert "no_such_module" not in sys.modules


WAYS = {
    "samples": {"num_samples": 2},
    "workers": {"workers": 2, "lmwt": 7.0, "word_penalty": 0.5},
    "context": {"context": "previous", "segments": "segments"},
    "tuned": {"tune": True, "tune_lms": True, "tune_folds": 2},
}


@pytest.mark.parametrize("way", WAYS)
def test_rescore_is_the_tool(nbest, bayes, ngram, segments, tmp_path, monkeypatch, way):
    monkeypatch.setattr("espnet_bayeslm.rescoring.list_worker.BLOCK_SIZE", 40)
    options = dict(WAYS[way])
    if "segments" in options:
        options["segments"] = segments
    tool = {name: value for name, value in options.items() if name != "tune"}
    if "tune" in options:
        tool["tune_ref"] = nbest / "dev.ref"
        options["refs"] = read_transcripts(nbest / "dev.ref")
    mixture = {"lm": bayes, "ngram": ngram, "weights": "0.6,0.4", "token_scores": "true"}
    run(nbest=nbest / "dev", **mixture, **tool, output=tmp_path / "out")
    lists = list(read_nbest(nbest / "dev"))
    lm = espnet_bayeslm.load(bayes) if way == "tuned" else bayes
    given = dict(lms=[lm], ngrams=[ngram], weights=[0.6, 0.4], **options)
    rescoring = espnet_bayeslm.rescore(iter(lists), **given)
    # digit for digit
    output, found = tmp_path / "out", 0
    costs, by_word = (read_keyed_lines(output / f"lmwt.nn{end}") for end in ("", ".words"))
    best = read_transcripts(output / "text")
    for item in rescoring:
        assert item.words == best[item.nbest.utt]
        assert item.words == item.nbest.hypotheses[item.best].words
        pairs = zip(item.lm_scores, item.word_log_probs, strict=True)
        for rank, (total, log_probs) in enumerate(pairs, 1):
            key = f"{item.nbest.utt}-{rank}"
            assert f"{-total:.6f}" == costs[key][1]
            assert " ".join(f"{-x:.6f}" for x in log_probs) == by_word[key][1]
            found += 1
    assert found == len(costs) > 0
    scales = settings(output)
    # weights of features have no LMWT where the LM has no weight
    assert rescoring.scales.lmwt == scales.get("lmwt", Scales.lmwt)
    assert list(rescoring.mixture.weights) == list(scales["components"].values())
    assert (rescoring.tuned is not None) == ("tune" in options)


def test_workers_end_with_the_iterator_or_with_what_holds_it(nbest, bayes, monkeypatch):
    monkeypatch.setattr("espnet_bayeslm.rescoring.list_worker.BLOCK_SIZE", 10)
    children = multiprocessing.active_children
    assert not children()
    given = dict(lms=[bayes], workers=2)
    lists = list(read_nbest(nbest / "dev"))
    assert lists == [r.nbest for r in espnet_bayeslm.rescore(lists, **given)] and not children()
    unread = espnet_bayeslm.rescore(lists, **given)
    assert len(children()) == 2
    begun = espnet_bayeslm.rescore(lists, **given)
    next(begun)
    assert len(children()) == 4
    del unread, begun
    assert not children()
    broken = espnet_bayeslm.rescore(itertools.chain(lists, [None]), **given)
    with pytest.raises(AttributeError):
        list(broken)
    assert not children()


def test_workers_have_no_gpu_that_the_program_uses(nbest, bayes, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_initialized", lambda: True)
    lists = list(read_nbest(nbest / "dev"))
    with pytest.raises(InputError, match="processes of this machine cannot use a GPU that this"):
        list(espnet_bayeslm.rescore(lists, lms=[bayes], workers=2, device="cuda"))


# a program that has computed with two threads, which a forked process does not have
AFTER_WORK = """
import json, sys, torch, espnet_bayeslm
from espnet_bayeslm.nbest import read_nbest
torch.set_num_threads(2)
[(torch.rand(500, 500) @ torch.rand(500, 500)).softmax(-1) for _ in range(3)]
lm, lists = sys.argv[1], list(read_nbest(sys.argv[2]))[:3]
found = [espnet_bayeslm.rescore(lists, lms=[lm], workers=n) for n in (1, 2)]
print(json.dumps([[[*map(float, item.lm_scores)] for item in items] for items in found]))
"""


def test_workers_of_a_program_that_has_computed(bayes, nbest, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    (here, there), _ = run_script(AFTER_WORK, bayes, nbest / "dev")
    for one, other in zip(here, there, strict=True):
        assert one == pytest.approx(other, abs=1e-5)


def test_options_that_do_not_fit_are_refused(bayes, nbest):
    lists = list(read_nbest(nbest / "dev"))
    refused = {
        "cannot share an LM that is loaded": {"lms": [espnet_bayeslm.load(bayes)], "workers": 2},
        "--workers 0: 1 or more": {"workers": 0},
        "--engine_conf without --engine dask": {"engine_conf": "x.yaml"},
        "tune=True, --lmwt": {"lmwt": 3.0, "tune": True, "refs": {}},
        "--scales, --word_penalty": {"scales": Scales(), "word_penalty": 3.0},
    }
    for message, options in refused.items():
        with pytest.raises(InputError, match=message):
            espnet_bayeslm.rescore(lists, **{"lms": [bayes], **options})


def test_lists_are_taken_as_they_are_needed_or_refused(nbest, ngram, monkeypatch):
    monkeypatch.setattr("espnet_bayeslm.rescoring.list_worker.BLOCK_SIZE", 10)
    taken = []

    def lists():
        for item in read_nbest(nbest / "dev"):
            taken.append(item.utt)
            yield item

    rescoring = espnet_bayeslm.rescore(lists(), ngrams=[ngram])
    assert not taken
    assert next(rescoring).nbest.utt == taken[0] and len(taken) == 2
    with pytest.raises(InputError, match="has no reference to tune on"):
        espnet_bayeslm.rescore(read_nbest(nbest / "dev"), ngrams=[ngram], tune=True)


def test_a_loaded_lm_scores_strings_and_words(bayes, plain_text, capfd):
    trained = espnet_bayeslm.load(bayes)
    assert trained.tokens[-1] == "<sos/eos>" and len(trained.tokens) == trained.lm.vocab_size
    lines = (plain_text / "valid.txt").read_text().splitlines()[:5]
    for num_samples in (0, 3):
        ids = [trained.ids(line.split()) for line in lines]
        expected = token_log_probs(trained.lm, ids, num_samples=num_samples)
        for texts in (lines, [line.split() for line in lines]):
            found = trained.word_scores(texts, num_samples=num_samples)
            for scores, log_probs, text in zip(found, expected, texts, strict=True):
                np.testing.assert_array_equal(scores.log_probs, log_probs)
                score = trained.score(text, num_samples=num_samples)
                assert score == pytest.approx(log_probs.sum(), abs=1e-5)
    assert trained.score("") == trained.score([]) < 0
    assert trained.word_scores(["a zebra"])[0].oov.tolist() == [False, True, False]
    with pytest.raises(InputError, match="where a list of sentences was expected"):
        trained.word_scores("a b")
    capfd.readouterr()
    trained.score("a b c")
    found = trained.uncertainty("a b c", num_samples=3)
    assert found.draws.shape == (3, 4) and found.mutual_information.max() > 0
    same = trained.uncertainty(["a", "b", "c"], num_samples=3)
    np.testing.assert_array_equal(found.draws, same.draws)
    assert capfd.readouterr() == ("", "")  # no bar where nobody waits
