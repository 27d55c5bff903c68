"""ESPnet's average of the best epochs (`keep_nbest_models`), of Bayesian LMs."""

import pytest
import torch
from training_options import ADAM, CELL, LSTM

from espnet_bayeslm.loading.checkpoint import load_state, read_checkpoint

AVERAGED = [*LSTM, *CELL, *ADAM, "--lm_conf", "uncertainty.embedding=bayes"]
AVERAGED += ["--lm_conf", "prior_variance=learn_rows", "--keep_nbest_models", "2"]


@pytest.fixture(scope="module")
def exp(train_lm, tmp_path_factory):
    """Return an experiment of three epochs after a point-estimate phase of one."""
    warm = ["--model_conf", "warmup_epochs=1", "--model_conf", "prior=start"]
    return train_lm(tmp_path_factory.mktemp("averaged") / "exp", *AVERAGED, *warm, max_epoch=3)


@pytest.fixture(scope="module")
def states(exp):
    """Return the averaged state, and those of the two best epochs."""
    stats = read_checkpoint(exp / "checkpoint.pth")["reporter"]["stats"]
    assert len(stats) == 3  # none of the point-estimate phase
    best = sorted(stats, key=lambda epoch: stats[epoch]["valid"]["loss"])[:2]
    average = exp / "valid.loss.ave.pth"
    assert average.resolve().name == "valid.loss.ave_2best.pth"
    return load_state(average), [load_state(exp / f"{epoch}epoch.pth") for epoch in best]


def test_means_are_averaged_and_standard_deviations_by_their_logarithms(states):
    averaged, epochs = states
    kinds = {"mean": 0, "log_std": 0, "prior_mean": 0}
    for key, value in averaged.items():
        if not value.is_floating_point():
            continue
        each = torch.stack([state[key] for state in epochs])
        torch.testing.assert_close(value, each.mean(0), rtol=1e-5, atol=1e-7, msg=key)
        if key.endswith("_log_std"):  # their geometric mean
            std = each.exp().prod(0).sqrt()
            torch.testing.assert_close(value.exp(), std, rtol=1e-5, atol=0, msg=key)
            kinds["log_std"] += not torch.equal(each[0], each[1])
        elif key.endswith("_prior_mean"):  # the same in all epochs
            torch.testing.assert_close(value, each[0], rtol=1e-6, atol=1e-9, msg=key)
            kinds["prior_mean"] += bool(value.any())
        else:
            kinds["mean"] += not torch.equal(each[0], each[1])
    assert min(kinds.values()) > 0
