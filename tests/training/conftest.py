"""A trained point-estimate LM that several tests start from."""

import pytest
from training_options import ADAM, LSTM


@pytest.fixture(scope="session")
def point(train_lm, tmp_path_factory):
    return train_lm(tmp_path_factory.mktemp("point") / "exp", *LSTM, *ADAM, max_epoch=2)
