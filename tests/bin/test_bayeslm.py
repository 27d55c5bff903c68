import re
import runpy
import subprocess
import sys

import pytest
import torch
from tiny_training import words

import espnet_bayeslm
from espnet_bayeslm.bin import perplexity, score
from espnet_bayeslm.bin.bayeslm import TOOLS, main
from espnet_bayeslm.utils.errors import InputError


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


def test_options_from_a_config_file(tmp_path, capsys):
    config = tmp_path / "ngram.yaml"
    config.write_text("order: 2\nlmplz: none\ndiscount_fallback: true\n")
    (tmp_path / "text").write_text("a b c\na b d\n")
    options = {"config": config, "text": tmp_path / "text", "arpa": tmp_path / "out.arpa"}
    main(["ngram", *words(**options)])
    arpa = (tmp_path / "out.arpa").read_text()
    assert "\\2-grams:" in arpa and "\\3-grams:" not in arpa


def test_the_package_runs_a_tool():
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
