"""`python -m espnet_bayeslm`: ESPnet's programs with our LMs, and what is refused before."""

import importlib
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from espnet2.tasks.lm import lm_choices, model_choices
from tiny_training import words

import espnet_bayeslm
from espnet_bayeslm import register
from espnet_bayeslm.training.launch import check_decoding, run_program
from espnet_bayeslm.training.launch import launch as launch_here
from espnet_bayeslm.utils.errors import InputError


def run(*words, input=None, python=sys.executable):
    command = [python, *words]
    return subprocess.run(command, capture_output=True, text=True, input=input)


def launch(*words, **kwargs):
    return run("-m", "espnet_bayeslm", *words, **kwargs)


@pytest.mark.parametrize("name, calls", [("__mp_main__", 1), ("espnet_bayeslm.__main__", 0)])
def test_a_spawned_worker_knows_our_lms(name, calls, monkeypatch):
    """It imports the program under a name of its own."""
    called = []
    monkeypatch.setattr("espnet_bayeslm.register", lambda: called.append(1))
    runpy.run_path(f"{Path(espnet_bayeslm.__file__).parent}/__main__.py", run_name=name)
    assert len(called) == calls


@pytest.mark.parametrize(
    "line, input",
    [
        (["-c", "import sys; print(sys.argv)", "x"], None),
        (["-m", "platform"], None),
        (["-u", "-c", "print(1)"], None),
        (["-V"], None),
        ([], "print(2 + 2)"),
        (["-c", "raise SystemExit(3)"], None),
    ],
)
def test_anything_else_passes_through(line, input):
    ours, plain = launch(*line, input=input), run(*line, input=input)
    assert (ours.returncode, ours.stdout) == (plain.returncode, plain.stdout)


ESPNETS = "-u -X dev {}-m espnet2.bin.lm_train --help"


@pytest.mark.parametrize("line", ["-m platform", "script.py -u", "-W error -m platform", ESPNETS])
def test_the_interpreters_options_stay_before_the_module(line, monkeypatch):
    commands = []
    monkeypatch.setattr(os, "execv", lambda *command: commands.append(command))
    launch_here(line.format("").split())
    become = line.format("-m espnet_bayeslm ").split()
    assert commands == [(sys.executable, [sys.executable, *become])]


def test_espnets_programs_know_our_lms(python):
    result = launch("-m", "espnet2.bin.lm_train", "--help", python=python)
    assert result.returncode == 0
    assert "bayes_lstm" in result.stdout and "bayes_lm" in result.stdout
    assert result.stdout.startswith("usage: ")
    register()
    register()
    assert {"seq_rnn", "bayes_lstm", "bayes_transformer"} <= set(lm_choices.classes)
    assert {"lm", "bayes_lm"} <= set(model_choices.classes)


TOKENS = ["<blank>", "<unk>", *"abcdefgh", "<sos/eos>"]


@pytest.fixture
def config(tmp_path):
    """Return a function that writes a config.yaml and returns its path."""

    def write(name, **content):
        path = tmp_path / f"{name}.yaml"
        path.write_text(yaml.safe_dump({"token_list": TOKENS, **content}))
        return path

    return write


DATA = {"data_path_and_name_and_type": "wav.scp,speech,sound"}


@pytest.fixture
def check(tmp_path):
    register()

    def run(program, *more, **options):
        module = importlib.import_module(f"espnet2.bin.{program}")
        check_decoding(module, [*words(output_dir=tmp_path, **DATA, **options), *more])

    return run


PROGRAMS = "asr_inference asr_inference_streaming asr_transducer_inference"
PROGRAMS += " st_inference mt_inference s2t_inference"


@pytest.mark.parametrize("program", PROGRAMS.split())
def test_differing_token_lists_are_refused(program, config, check):
    task = program.partition("_")[0]
    given = {f"{task}_train_config": config("recogniser"), "lm_train_config": config("same")}
    files = {f"{task}_model_file": "m.pth", "lm_file": "lm.pth"}
    check(program, **given, **files)
    other = [*TOKENS[:3], "B", *TOKENS[4:]]
    given["lm_train_config"] = config("lm", lm="seq_rnn", token_list=other)
    with pytest.raises(InputError) as error:
        check(program, **given, **files)
    message = str(error.value)
    assert message.startswith(f"{given['lm_train_config']}: 1 of 11 ids")
    assert "3 is 'B' and 'b'" in message and str(given[f"{task}_train_config"]) in message
    assert "1 tokens are only this LM's, 1 only the other's" in message
    assert "--token_list" in message


def test_options_may_come_from_a_file(config, check, tmp_path):
    other = config("lm", token_list=[*TOKENS, "more"])
    options = tmp_path / "decode.yaml"
    given = {"lm_train_config": str(other), "asr_train_config": str(config("asr"))}
    options.write_text(yaml.safe_dump(given))
    with pytest.raises(InputError, match="1 of 12 ids"):
        check("asr_inference", config=options)


def test_token_lists_of_files_numbers_and_models(config, check, tmp_path):
    """A list written by hand may have 1 where ESPnet writes '1'."""
    tokens = tmp_path / "tokens.txt"
    tokens.write_text("".join(f"{token}\n" for token in TOKENS))
    asr, lm = config("asr", token_list=str(tokens)), config("lm")
    check("asr_inference", asr_train_config=asr, lm_train_config=lm)
    tokens.write_text("<blank>\n")
    with pytest.raises(InputError, match="10 of 11 ids"):
        check("asr_inference", asr_train_config=asr, lm_train_config=lm)
    asr, lm = config("asr", token_list=["<blank>", "1"]), config("lm", token_list=["<blank>", 1])
    check("asr_inference", asr_train_config=asr, lm_train_config=lm)
    given = {"asr_train_config": config("asr"), "lm_train_config": config("lm", token_list=["a"])}
    check("asr_inference", **given, model_tag="somebody/model")


@pytest.mark.parametrize("content", [None, "", "[", "a: [1\n", "- 1\n", "token_list: 3\n", "\0"])
def test_what_is_espnets_own_error_is_left_to_it(content, config, check, tmp_path):
    broken = tmp_path / "broken.yaml"
    if content is not None:
        broken.write_text(content)
    for files in ({"asr": broken, "lm": config("lm")}, {"asr": config("asr"), "lm": broken}):
        check("asr_inference", **{f"{part}_train_config": path for part, path in files.items()})
    check("asr_inference", config=broken, lm_train_config=config("lm"))


def test_wrong_options_are_left_to_the_program(check, capsys):
    check("asr_inference", beam_size="x", lm_train_config="lm.yaml")
    check("asr_inference", "--help")
    check("lm_calc_perplexity", train_config="lm.yaml")
    assert capsys.readouterr() == ("", "")


def test_the_launcher_ends_in_one_line(config, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", sys.argv)
    lm = config("lm", token_list=[*TOKENS[:2], "see", *TOKENS[3:]])
    files = {"lm_file": "lm.pth", "asr_model_file": "asr.pth", **DATA}
    given = {"asr_train_config": config("asr"), "lm_train_config": lm, **files}
    with pytest.raises(SystemExit) as stop:
        run_program("espnet2.bin.asr_inference", words(output_dir=tmp_path / "out", **given))
    assert stop.value.code.startswith(f"espnet2.bin.asr_inference: error: {lm}: 1 of 11 ids")
    assert "\n" not in stop.value.code and not (tmp_path / "out").exists()
