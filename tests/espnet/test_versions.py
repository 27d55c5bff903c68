"""Smoke tests of an ESPnet with our LMs; `make test-espnet` runs them under several versions."""

import contextlib
import email
import importlib.metadata
import json
import os
import platform
import re
import shutil
import sys
import time
from pathlib import Path

import espnet2
import pytest
import torch
from espnet2.train.reporter import Reporter
from models import write_noise, write_recogniser
from tiny_training import training, words

import espnet_bayeslm
from espnet_bayeslm.bin import perplexity
from espnet_bayeslm.loading.experiment import load_state, read_checkpoint
from espnet_bayeslm.loading.trained_lm import load_lm
from espnet_bayeslm.rescoring import score_hypotheses
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.espnet_versions import OLDEST, check_espnet, epoch_seconds, text_cleaner


def options_of(corpus, output, max_epoch):
    """Options of a tiny training of a Bayesian LM."""
    settings = ["att_unit=8", "head=2", "unit=8", "layer=2", "uncertainty.ffn@1=bayes"]
    more = words(lm="bayes_transformer", lm_conf=settings, optim="adam", resume="true")
    return training(corpus, output, *more, max_epoch=max_epoch)


@pytest.fixture(scope="module")
def exp(launch, corpus, tmp_path_factory):
    """Experiment of an LM that was stopped after its first epoch, and resumed."""
    output = tmp_path_factory.mktemp("exp") / "broken"
    for epoch in (1, 2):
        result = launch("lm_train", *options_of(corpus, output, epoch))
        assert result.returncode == 0, result.stderr[-3000:]
    return output


def test_a_resumed_training_ends_where_an_unbroken_one_does(exp, launch, corpus, tmp_path):
    result = launch("lm_train", *options_of(corpus, tmp_path / "unbroken", 2))
    assert result.returncode == 0, result.stderr[-3000:]
    found, expected = (load_state(x / "2epoch.pth") for x in (exp, tmp_path / "unbroken"))
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_espnets_perplexity_is_ours(exp, launch, corpus, tmp_path):
    data = {"data_path_and_name_and_type": f"{corpus}/valid.txt,text,text", "num_workers": 0}
    files = {"train_config": exp / "config.yaml", "model_file": exp / "valid.loss.ave.pth"}
    options = words(**data, **files, output_dir=tmp_path / "ppl")
    result = launch("lm_calc_perplexity", *options)
    assert result.returncode == 0, result.stderr[-3000:]
    ours = {"text": corpus / "valid.txt", "keyed": "true", "lm": exp, "output": tmp_path / "ours"}
    perplexity.main(words(**ours))
    (row,) = json.loads((tmp_path / "ours").read_text())["components"]
    expected = float((tmp_path / "ppl" / "ppl").read_text())
    assert row["perplexity"]["token"] == pytest.approx(expected, rel=1e-5)


def test_a_beam_search_uses_the_lm(exp, corpus, tmp_path):
    page = Path(__file__).parents[2] / "docs" / "howto" / "espnet.md"
    names: dict = {}
    exec(re.search(r"```python\n(.*?)```", page.read_text(), re.DOTALL)[1], names)
    asr = write_recogniser(tmp_path / "asr", (corpus / "tokens.txt").read_text().split())
    options = {"beam_size": 5, "nbest": 5, "ctc_weight": 0.3, "lm_weight": 0.5}
    decode = names["recogniser"](asr, exp, **options)
    found = decode(write_noise(tmp_path / "u1.wav"))
    (expected,) = score_hypotheses(load_lm(exp).lm, [[ids for _, _, ids, _ in found]])
    assert len(found) == 5
    assert [float(hyp.scores["lm"]) for *_, hyp in found] == pytest.approx(expected, abs=1e-4)


def test_a_packed_recogniser_decodes_elsewhere(exp, corpus, launch, tmp_path, monkeypatch):
    """`espnet2.bin.pack` of a recogniser with our LM, and `Speech2Text.from_pretrained` of it."""
    pytest.importorskip("espnet_model_zoo", reason="ESPnet reads packed models by it")
    from espnet2.bin.asr_inference import Speech2Text

    espnet_bayeslm.register()
    recipe, elsewhere = tmp_path / "recipe", tmp_path / "elsewhere"
    shutil.copytree(exp, recipe / "lm")
    write_recogniser(recipe / "asr", (corpus / "tokens.txt").read_text().split())
    elsewhere.mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(recipe)
    files = {"asr_train_config": "asr/config.yaml", "asr_model_file": "asr/valid.acc.ave.pth"}
    files |= {"lm_train_config": "lm/config.yaml", "lm_file": "lm/valid.loss.ave.pth"}
    archive = tmp_path / "packed.zip"
    result = launch("pack", "asr", *words(**files, outpath=archive))
    assert result.returncode == 0, result.stderr[-3000:]
    search = {"beam_size": 5, "nbest": 5, "lm_weight": 0.5}
    samples = write_noise(tmp_path / "u1.wav")
    found = Speech2Text(**files, **search)(samples)
    recipe.rename(tmp_path / "gone")
    monkeypatch.chdir(elsewhere)
    unpacked = Speech2Text.from_pretrained(str(archive), **search)(samples)
    assert [hyp[0] for hyp in unpacked] == [hyp[0] for hyp in found]
    assert [float(hyp[-1].score) for hyp in unpacked] == [float(hyp[-1].score) for hyp in found]


def test_this_espnet_is_the_one_that_is_meant():
    assert espnet2.__version__ == os.environ.get("ESPNET_VERSION", espnet2.__version__)
    check_espnet()


@pytest.mark.parametrize("version", ["202402", "202308.post1", "0.10.7a1"])
def test_an_espnet_that_is_too_old_is_one_line(version, monkeypatch):
    from espnet_bayeslm.bin import bayeslm
    from espnet_bayeslm.training.launch import run_program

    monkeypatch.setattr(espnet2, "__version__", version)
    with pytest.raises(InputError, match=f"ESPnet {version} is too old: {OLDEST} or newer"):
        espnet_bayeslm.register()
    for run in (
        lambda: bayeslm.main(["perplexity", "--help"]),
        lambda: run_program("espnet2.bin.lm_train", []),
    ):
        with pytest.raises(SystemExit) as stop:
            run()
        assert f"error: ESPnet {version} is too old" in str(stop.value.code)


def test_a_missing_espnet_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "espnet2", None)
    with pytest.raises(InputError, match=r"ESPnet is not installed\. Run: pip install 'espnet>="):
        check_espnet()


@pytest.mark.parametrize("version", ["3.9.18", "3.14.0", "3.15.0rc1", "4.0.1"])
def test_a_python_that_does_not_work_is_one_line(version, monkeypatch):
    monkeypatch.setattr(platform, "python_version", lambda: version)
    with pytest.raises(InputError, match=f"Python {version} does not work: .* 3.10 to 3.13 was"):
        check_espnet()


@pytest.mark.parametrize("needed, works", [(">=3.9", True), ("", True), ("<3.15,>=3.14", False)])
def test_an_espnet_of_other_pythons_is_one_line(needed, works, monkeypatch):
    metadata = email.message_from_string(f"Requires-Python: {needed}" if needed else "")
    monkeypatch.setattr(importlib.metadata, "metadata", lambda _: metadata)
    said = f"does not work with Python .*: it needs Python {needed}. "
    with contextlib.nullcontext() if works else pytest.raises(InputError, match=said):
        check_espnet()


def test_a_checkout_of_espnet_says_nothing_of_pythons(monkeypatch):
    def metadata(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "metadata", metadata)
    check_espnet()


@pytest.mark.parametrize("cleaner", ["vietnamese", "no_such_cleaner"])
def test_a_cleaner_that_is_not_there_is_one_line(cleaner, monkeypatch):
    """Only the extra `tts` of ESPnet 202609 and newer installs `jaconv` and `tacotron`."""
    monkeypatch.setattr("espnet2.text.cleaner.vietnamese_cleaners", None)
    with pytest.raises(InputError, match=rf"--cleaner {cleaner} cannot be used \(.+\)$") as error:
        text_cleaner(cleaner)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("written", ["by this ESPnet", 61.5])
def test_the_time_of_an_epoch_is_read(written, tmp_path):
    """A number: as another ESPnet wrote it."""
    reporter = Reporter()
    reporter.set_epoch(1)
    begin = time.perf_counter()
    with reporter.observe("train") as part:
        part.register({"loss": torch.tensor(2.0)})
        part.next()
    longest = time.perf_counter() - begin
    state = reporter.state_dict()
    if written != "by this ESPnet":
        state["stats"][1]["train"]["time"] = {"__timedelta_seconds__": written}
    torch.save({"reporter": state}, tmp_path / "checkpoint.pth")
    stats = read_checkpoint(tmp_path / "checkpoint.pth")["reporter"]["stats"]
    found = epoch_seconds(stats[1]["train"]["time"])
    assert found == written or 0 < found < longest


@pytest.mark.parametrize("version", [OLDEST, "202512.dev1", "3.0.0"])
def test_a_newer_espnet_is_taken(version, monkeypatch):
    monkeypatch.setattr(espnet2, "__version__", version)
    check_espnet()
