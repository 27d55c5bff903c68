"""Every shipped configuration parses, builds its LM and takes a training step."""

from pathlib import Path

import pytest
import torch
import yaml

from espnet_bayeslm.training.task import BayesLMTask

CONF = Path(__file__).parent.parent / "conf"
FILES = sorted(CONF.glob("**/*.yaml"))


def test_there_are_configurations():
    assert {"point_lstm", "bayes_lstm", "point_transformer", "bayes_transformer"} <= {
        path.stem for path in FILES
    }


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_configuration_builds_and_takes_a_step(path, corpus):
    # ESPnet's parser knows each option
    args = BayesLMTask.get_parser().parse_args(
        ["--config", str(path), "--token_list", f"{corpus}/tokens.txt", "--output_dir", "exp"]
    )
    config = yaml.safe_load(path.read_text())
    assert args.lm_conf == config["lm_conf"]
    args.model, args.train_shape_file = "bayes_lm", [f"{corpus}/train.shape"]
    model = BayesLMTask.build_model(args).train()
    assert bool(model.lm.locations()) == ("bayes" in path.stem)
    (optimizer,) = BayesLMTask.build_optimizers(args, model)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    loss, _, _ = model(torch.tensor([[2, 3, 4]]), torch.tensor([3]))
    loss.backward()
    optimizer.step()
    assert torch.isfinite(loss)
    assert all(not torch.equal(p, before[name]) for name, p in model.named_parameters())
