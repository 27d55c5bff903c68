"""Recordings, and a tiny recogniser of ESPnet's."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "espnet"))

from random_recogniser import write_noise, write_recogniser

TOKENS = ["<blank>", "<unk>", *"abcdefghij", "<sos/eos>"]


@pytest.fixture
def audio(tmp_path):
    """Folder with two recordings of noise."""
    folder = tmp_path / "audio"
    folder.mkdir()
    for seed, name in enumerate(("u2.wav", "u1.flac")):
        write_noise(folder / name, seed=seed)
    return folder


@pytest.fixture(scope="session")
def asr(tmp_path_factory):
    """Experiment of an ESPnet recogniser of random weights."""
    return write_recogniser(tmp_path_factory.mktemp("asr") / "exp", TOKENS)


@pytest.fixture(scope="session")
def trained_lm(train_lm, tmp_path_factory):
    """Experiment of a Bayesian LM over the recogniser's tokens."""
    conf = {"unit": 8, "uncertainty.cell_input@1": "bayes", "dropout_rate": 0.0}
    words = [word for key, value in conf.items() for word in ("--lm_conf", f"{key}={value}")]
    return train_lm(tmp_path_factory.mktemp("lm") / "exp", "--lm", "bayes_lstm", *words)
