"""Checkpoints: resumed, damaged, of other models, in parts."""

import os
import shutil

import pytest
import torch
from espnet2.torch_utils.load_pretrained_model import load_pretrained_model
from training_options import (
    ADAM,
    CELL,
    FFN,
    FFN_SEARCH,
    LSTM,
    STILL,
    TRANSFORMER,
    assert_same,
    stats,
)

from espnet_bayeslm.bayes.kinds import is_posterior_key
from espnet_bayeslm.lm import BayesLSTMLM
from espnet_bayeslm.loading.checkpoint import load_state
from espnet_bayeslm.loading.experiment import read_config
from espnet_bayeslm.loading.trained_lm import load_lm
from espnet_bayeslm.training.model import BayesLanguageModel
from espnet_bayeslm.training.task import BayesLMTask, check_init_param, check_resume
from espnet_bayeslm.utils.errors import InputError

RUNS = {
    "bayes": [*TRANSFORMER, *FFN, *ADAM],
    "search": [*TRANSFORMER, *FFN_SEARCH, *ADAM],
}


@pytest.mark.parametrize("name", RUNS)
def test_a_resumed_run_repeats_the_unbroken_one(train_lm, tmp_path, name):
    unbroken = train_lm(tmp_path / "unbroken", *RUNS[name], max_epoch=2)
    broken = train_lm(tmp_path / "broken", *RUNS[name], max_epoch=1)
    before = load_state(broken / "1epoch.pth")
    train_lm(broken, *RUNS[name], "--resume", "true", max_epoch=2)
    assert_same(unbroken / "2epoch.pth", broken / "2epoch.pth")
    assert stats(unbroken, 2)["loss"] == stats(broken, 2)["loss"]
    after = load_state(broken / "2epoch.pth")
    if name == "bayes":
        assert int(after["lm.noise_step"]) == 2 * (120 // 16)
    if "search" in name:
        architecture = [key for key in after if ".search." in key]
        assert any(not torch.equal(before[key], after[key]) for key in architecture)
        histories = [(run / "architecture.jsonl").read_text() for run in (unbroken, broken)]
        assert histories[0] == histories[1]


def lm_model(**options):
    return BayesLanguageModel(BayesLSTMLM(12, **{"unit": 8, "nlayers": 2, **options}), 12)


@pytest.fixture
def saved(tmp_path):
    """Return a checkpoint of a model of two layers."""
    torch.save(lm_model().state_dict(), tmp_path / "two.pth")
    return tmp_path / "two.pth"


@pytest.mark.parametrize(
    "form, options, message",
    [
        ("", dict(nlayers=3), "another architecture: .* of the model are not in it"),
        ("", dict(unit=12), "has shape"),
        ("", dict(nlayers=1, uncertainty={"cell_input@1": "bayes"}), "have no place in the model"),
        (":lmx:lm", {}, "no tensor of it is named lmx"),
        (":lm:foo", {}, "no foo"),
    ],
)
def test_initial_checkpoints_that_do_not_fit(saved, form, options, message):
    with pytest.raises(InputError, match=message):
        check_init_param(f"{saved}{form}", lm_model(**options), complete=True)


@pytest.mark.parametrize("form", [":lm:lm", ":lm.rnn:lm.rnn", ":::lm.encoder,lm.decoder"])
def test_parts_of_a_checkpoint(saved, form):
    model = lm_model(uncertainty={"cell_input@1-2": "bayes"})
    check_init_param(f"{saved}{form}", model, complete=True)
    load_pretrained_model(f"{saved}{form}", model, ignore_init_mismatch=False)
    for name in ("lm.rnn.weight_ih_l1", "lm.rnn.bias_hh_l0"):
        assert torch.equal(model.state_dict()[name], load_state(saved)[name])


def test_checkpoints_with_code_are_refused(tmp_path):
    class Code:
        def __reduce__(self):
            return os.system, ("touch " + str(tmp_path / "ran"),)

    torch.save({"lm": Code()}, tmp_path / "bad.pth")
    with pytest.raises(ValueError, match="cannot be read"):
        load_state(tmp_path / "bad.pth")
    assert not (tmp_path / "ran").exists()


def test_point_checkpoint_is_not_taken_for_a_bayesian_one(make):
    exp = make("bayes", "bayes_lstm", dict(unit=8, uncertainty={"cell_input@1": "bayes"}))
    state = load_state(exp / "valid.loss.ave.pth")
    means = {key: value for key, value in state.items() if not is_posterior_key(key)}
    torch.save(means, exp / "valid.loss.ave.pth")
    with pytest.raises(InputError, match="not in the checkpoint"):
        load_lm(exp)


def test_a_model_that_a_kill_left_out_is_written_by_the_next_run(point, tmp_path):
    """ESPnet writes checkpoint.pth before the epoch's model."""
    exp = shutil.copytree(point, tmp_path / "exp", symlinks=True)
    (exp / "valid.loss.ave.pth").unlink()
    (exp / "valid.loss.ave.pth").symlink_to("gone.pth")
    with pytest.raises(ValueError, match="goes on where it was stopped"):
        load_lm(exp)


def test_resuming_with_other_locations_is_refused_before_anything_is_written(train_lm, tmp_path):
    exp = train_lm(tmp_path / "exp", *LSTM, *CELL)
    before = (exp / "config.yaml").read_bytes()
    other = ["--lm_conf", "uncertainty.forget_gate@2=bayes"]
    with pytest.raises(ValueError, match="another architecture"):
        train_lm(exp, *LSTM, *other, "--resume", "true", max_epoch=2)
    assert (exp / "config.yaml").read_bytes() == before


def test_resuming_with_other_tokens_of_the_same_number_is_refused(point):
    args = read_config(point / "config.yaml")
    model = BayesLMTask.build_model(args)
    check_resume(point / "checkpoint.pth", model, args)
    tokens = args.token_list
    args.token_list = [*tokens[:2], tokens[3], tokens[2], *tokens[4:]]
    with pytest.raises(InputError, match="another token list"):
        check_resume(point / "checkpoint.pth", model, args)


def test_the_prior_asked_for_wins_over_the_initial_checkpoints(point, train_lm, tmp_path):
    bayes = train_lm(tmp_path / "bayes", *LSTM, *CELL, *ADAM)
    prior = point / "valid.loss.best.pth"
    options = ["--init_param", bayes / "1epoch.pth", "--model_conf", f"prior={prior}"]
    state = load_state(train_lm(tmp_path / "exp", *LSTM, *CELL, *options, *STILL) / "1epoch.pth")
    for name in (f"lm.rnn.{part}" for part in ("weight_ih_l0", "weight_hh_l1", "bias_ih_l1")):
        # the rows of the cell input, of 8 units
        assert torch.equal(state[f"{name}_cell_input_prior_mean"], load_state(prior)[name][16:24])
        assert torch.equal(state[name], load_state(bayes / "1epoch.pth")[name])
