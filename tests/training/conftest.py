"""A trained point-estimate LM that several tests start from, and LMs of random weights."""

import argparse

import pytest
import torch
import yaml
from espnet2.tasks.lm import LMTask
from training_options import ADAM, LSTM

from espnet_bayeslm.training.optimizer import add_optimizer_posterior


@pytest.fixture(scope="session")
def point(train_lm, tmp_path_factory):
    return train_lm(tmp_path_factory.mktemp("point") / "exp", *LSTM, *ADAM, max_epoch=2)


@pytest.fixture(scope="session")
def make(point, tmp_path_factory):
    """Return a function that writes a folder like a trained LM's, with random weights."""

    def write(name, lm, lm_conf, options=None):
        config = yaml.safe_load((point / "config.yaml").read_text())
        config.update(lm=lm, lm_conf=lm_conf, model="bayes_lm" if "bayes" in lm else "lm")
        config.update(model_conf={}, **(options or {}))
        model = LMTask.build_model(argparse.Namespace(**config))
        if config["optim"] == "ivon":
            add_optimizer_posterior(model)
        generator = torch.Generator().manual_seed(1)
        for tensor in model.state_dict().values():
            if tensor.is_floating_point():
                tensor.add_(torch.empty_like(tensor).normal_(0, 0.3, generator=generator))
        folder = tmp_path_factory.mktemp("exp") / name
        folder.mkdir()
        (folder / "config.yaml").write_text(yaml.safe_dump(config))
        torch.save(model.state_dict(), folder / "valid.loss.ave.pth")
        return folder

    return write
