"""A trained point-estimate LM that several tests start from, and LMs of random weights."""

import pytest
from experiments import write_experiment
from training_options import ADAM, LSTM


@pytest.fixture(scope="session")
def point(train_lm, tmp_path_factory):
    return train_lm(tmp_path_factory.mktemp("point") / "exp", *LSTM, *ADAM, max_epoch=2)


@pytest.fixture(scope="session")
def make(point, tmp_path_factory):
    """Return a function that writes an experiment folder."""

    def write(name, lm, lm_conf, options=None):
        folder = tmp_path_factory.mktemp("exp") / name
        return write_experiment(point, folder, lm, lm_conf, **(options or {}))

    return write


@pytest.fixture(scope="session")
def pretrained_opt(tmp_path_factory):
    """Return the folder of a tiny OPT model, as Hugging Face's transformers write it."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    sizes = dict(hidden_size=8, ffn_dim=12, num_hidden_layers=2, num_attention_heads=2)
    config = transformers.OPTConfig(
        vocab_size=30, max_position_embeddings=256, word_embed_proj_dim=8, **sizes
    )
    folder = tmp_path_factory.mktemp("opt") / "pretrained"
    transformers.OPTModel(config).save_pretrained(folder)
    return folder
