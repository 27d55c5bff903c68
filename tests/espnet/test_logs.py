"""Log files of ESPnet's programs, as a recipe's `run.pl` collects them, are those of ESPnet."""

import os
import re
import subprocess
import sys
from collections import Counter

import models
import pytest
import yaml
from tiny_training import training, words

LINE = re.compile(r"(?:\[\S+\] )?(\d{4}-\d\d-\d\d \S+) \(\w+:\d+\) (\w+): (.*)")
OPTIONS = {"num_iters_per_epoch": 2, "use_tensorboard": "false"}
SHORT = {"optim": "adam", "max_epoch": 1, "num_iters_per_epoch": 2, "use_matplotlib": False}


@pytest.fixture(scope="module")
def logged(python):
    """Return a function that runs `python WORDS` in a folder, and returns its log's lines."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}

    def run(folder, *words):
        folder.mkdir(exist_ok=True)
        with open(folder / "log", "w") as log:
            command, streams = [python, *map(str, words)], {"stdout": log, "stderr": log}
            subprocess.run(command, cwd=folder, env=environment, check=True, **streams)
        return (folder / "log").read_text().splitlines()

    return run


def infos(lines):
    """Messages of the level INFO, as often as they come, without numbers, which may be times."""
    found = [line[3] for line in map(LINE.fullmatch, lines) if line and line[2] == "INFO"]
    return Counter(re.sub(r"[\d.e+-]*\d", "#", message) for message in found)


def check_has_all(plain, ours):
    """Check that all that ESPnet tells stands among our lines, as often."""
    assert plain == {message: ours[message] for message in plain}


def both(logged, folder, program, *words):
    """Logs of a program as ESPnet runs it, and as we do."""
    plain = logged(folder / "plain", "-m", f"espnet2.bin.{program}", *words)
    launched = ["-m", "espnet_bayeslm", "-m", f"espnet2.bin.{program}", *words]
    return plain, logged(folder / "ours", *launched)


@pytest.fixture(scope="module")
def asr(corpus, tmp_path_factory):
    """Experiment of a recogniser of random weights."""
    tokens = (corpus / "tokens.txt").read_text().split()
    return models.write_recogniser(tmp_path_factory.mktemp("asr") / "exp", tokens)


@pytest.fixture(scope="module")
def recordings(tmp_path_factory):
    folder = tmp_path_factory.mktemp("audio")
    for n in range(3):
        models.write_noise(folder / f"u{n}.wav", seed=n)
    scp = folder / "wav.scp"
    scp.write_text("".join(f"u{n} {folder}/u{n}.wav\n" for n in range(3)))
    return scp


def test_training_of_an_lm(logged, corpus, tmp_path):
    options = training(corpus, "exp", "--lm", "seq_rnn", "--lm_conf", "unit=8", **OPTIONS)
    plain, ours = map(infos, both(logged, tmp_path, "lm_train", *options))
    assert len(plain) > 10
    check_has_all(plain, ours)


def test_training_of_a_recogniser(logged, asr, tmp_path):
    config = words(config=asr / "options.yaml", token_list=asr / "tokens.txt")
    options = [*config, *words(output_dir="exp", dry_run="true")]
    plain, ours = map(infos, both(logged, tmp_path, "asr_train", *options))
    assert len(plain) > 5
    check_has_all(plain, ours)


def marks(lines):
    """Times and what stands there, as ESPnet's `calculate_rtf.py` reads them."""
    names = ("speech length", "best hypo")
    return [name for line in lines for name in names if f"INFO: {name}: " in line]


def test_decoding(logged, asr, recordings, train_lm, tmp_path):
    options = {**models.files_of("asr", asr), "asr_model_file": asr / "valid.acc.ave.pth"}
    options |= {"data_path_and_name_and_type": f"{recordings},speech,sound", "beam_size": 2}
    options |= {"output_dir": "out", "num_workers": 0}
    lms = {"seq_rnn": ["unit=8"], "bayes_lstm": ["unit=8", "uncertainty.cell_input@1=bayes"]}
    exp = {name: tmp_path / name for name in lms}
    for name, conf in lms.items():
        train_lm(exp[name], *words(lm=name, lm_conf=conf))
    given = words(**options, **models.files_of("lm", exp["seq_rnn"]))
    plain, ours = both(logged, tmp_path, "asr_inference", *given)
    check_has_all(infos(plain), infos(ours))
    launched = words(**options, **models.files_of("lm", exp["bayes_lstm"]))
    program = ["-m", "espnet_bayeslm", "-m", "espnet2.bin.asr_inference"]
    bayes = logged(tmp_path / "bayes", *program, *launched)
    assert marks(plain) == marks(ours) == marks(bayes) == 3 * ["speech length", "best hypo"]


def test_training_of_plain_text(logged, plain_text, tmp_path):
    """The log is a file of the experiment, and the terminal has progress only."""
    config = tmp_path / "lm.yaml"
    conf = {"unit": 8, "uncertainty": {"cell_input@1": "bayes"}}
    config.write_text(yaml.safe_dump({"lm": "bayes_lstm", "lm_conf": conf, **SHORT}))
    texts = {f"{part}_text": plain_text / f"{part}.txt" for part in ("train", "valid")}
    options = words(**texts, config=config, exp="exp")
    shown = logged(tmp_path / "ours", "-m", "espnet_bayeslm", "train", *options)
    assert not infos(shown)
    found = infos((tmp_path / "ours" / "exp" / "train.log").read_text().splitlines())
    once = ("#/#epoch started", "Training tokens (with </s>): #", "Optimizer:")
    assert [found[message] for message in once] == [1, 1, 1]
