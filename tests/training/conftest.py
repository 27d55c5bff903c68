"""A trained point-estimate LM that several tests start from, and LMs of random weights."""

import pytest
from training_options import ADAM, LSTM, write_experiment


@pytest.fixture(scope="session")
def point(train_lm, tmp_path_factory):
    return train_lm(tmp_path_factory.mktemp("point") / "exp", *LSTM, *ADAM, max_epoch=2)


@pytest.fixture(scope="session")
def make(point, tmp_path_factory):
    def write(name, lm, lm_conf, options=None):
        folder = tmp_path_factory.mktemp("exp") / name
        return write_experiment(point, folder, lm, lm_conf, **(options or {}))

    return write
