"""`python -m espnet_bayeslm`: ESPnet's programs with our LMs, anything else untouched."""

import os
import subprocess
import sys

import pytest

from espnet_bayeslm.training.launch import launch as launch_here


def run(*words, input=None, python=sys.executable):
    command = [python, *words]
    return subprocess.run(command, capture_output=True, text=True, input=input)


def launch(*words, **kwargs):
    return run("-m", "espnet_bayeslm", *words, **kwargs)


@pytest.mark.parametrize(
    "words, input",
    [
        (["-c", "import sys; print(sys.argv)", "x"], None),
        (["-m", "platform"], None),
        (["-u", "-c", "print(1)"], None),
        (["-V"], None),
        ([], "print(2 + 2)"),
        (["-c", "raise SystemExit(3)"], None),
    ],
)
def test_anything_else_passes_through(words, input):
    ours, plain = launch(*words, input=input), run(*words, input=input)
    assert (ours.returncode, ours.stdout) == (plain.returncode, plain.stdout)


@pytest.mark.parametrize(
    "words, become",
    [
        (["-m", "platform"], ["-m", "platform"]),
        (["script.py", "-u"], ["script.py", "-u"]),
        (["-W", "ignore", "-m", "platform"], ["-W", "ignore", "-m", "platform"]),
        (
            ["-u", "-X", "dev", "-m", "espnet2.bin.lm_train", "--help"],
            ["-u", "-X", "dev", "-m", "espnet_bayeslm", "-m", "espnet2.bin.lm_train", "--help"],
        ),
    ],
)
def test_the_interpreters_options_stay_before_the_module(words, become, monkeypatch):
    commands = []
    monkeypatch.setattr(os, "execv", lambda *command: commands.append(command))
    launch_here(words)
    assert commands == [(sys.executable, [sys.executable, *become])]


def test_espnets_programs_know_our_lms(python):
    result = launch("-m", "espnet2.bin.lm_train", "--help", python=python)
    assert result.returncode == 0
    assert "bayes_lstm" in result.stdout and "bayes_lm" in result.stdout
    assert result.stdout.startswith("usage: ")


def test_unknown_position_is_one_line(python, corpus, tmp_path):
    result = launch(
        *["-m", "espnet2.bin.lm_train", "--token_list", f"{corpus}/tokens.txt"],
        *["--output_dir", f"{tmp_path}/exp", "--dry_run", "true", "--lm", "bayes_lstm"],
        *["--lm_conf", "uncertainty.cell@1=bayes"],
        python=python,
    )
    assert result.returncode == 1
    last = result.stderr.splitlines()[-1]
    assert last.startswith("espnet2.bin.lm_train: error:") and "cell_input" in last
    assert "Traceback" not in result.stderr


def test_register_is_idempotent():
    from espnet2.tasks.lm import lm_choices, model_choices

    from espnet_bayeslm import register

    register()
    register()
    assert {"seq_rnn", "bayes_lstm", "bayes_transformer"} <= set(lm_choices.classes)
    assert {"lm", "bayes_lm"} <= set(model_choices.classes)
