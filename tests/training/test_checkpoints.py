"""Checkpoints: resumed, damaged, of other models, in parts."""

import os

import pytest
import torch
from training_options import ADAM, CELL, LSTM, TRANSFORMER

from espnet_bayeslm.training.checkpoint import load_state
from espnet_bayeslm.training.load import load_lm


def test_a_resumed_run_repeats_the_unbroken_one(train_lm, tmp_path):
    options = [*TRANSFORMER, "--lm_conf", "uncertainty.ffn@1=bayes", *ADAM]
    unbroken = train_lm(tmp_path / "unbroken", *options, max_epoch=3)
    train_lm(tmp_path / "broken", *options, max_epoch=1)
    broken = train_lm(tmp_path / "broken", *options, "--resume", "true", max_epoch=3)
    a, b = load_state(unbroken / "3epoch.pth"), load_state(broken / "3epoch.pth")
    assert all(torch.equal(a[key], b[key]) for key in a)
    assert int(a["lm.noise_step"]) == 3 * (120 // 16)


@pytest.mark.parametrize("option", ["--init_param", "--model_conf=prior"])
def test_checkpoint_of_another_architecture(point, train_lm, tmp_path, option):
    value = f"{point}/valid.loss.best.pth"
    words = ["--model_conf", f"prior={value}"] if "prior" in option else [option, value]
    with pytest.raises(ValueError, match="another architecture"):
        train_lm(tmp_path / "exp", *TRANSFORMER, *words)
    with pytest.raises(ValueError, match="has shape"):
        train_lm(tmp_path / "exp", *LSTM, "--lm_conf", "unit=12", *words)


def test_damaged_checkpoints(point, train_lm, tmp_path):
    whole = (point / "checkpoint.pth").read_bytes()
    exp = tmp_path / "exp"
    exp.mkdir()
    (exp / "checkpoint.pth").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"checkpoint\.pth: cannot be read as a checkpoint"):
        train_lm(exp, *LSTM, "--resume", "true", max_epoch=3)


def test_checkpoints_with_code_are_refused(tmp_path):
    class Code:
        def __reduce__(self):
            return os.system, ("touch " + str(tmp_path / "ran"),)

    torch.save({"lm": Code()}, tmp_path / "bad.pth")
    with pytest.raises(ValueError, match="cannot be read"):
        load_state(tmp_path / "bad.pth")
    assert not (tmp_path / "ran").exists()


def test_point_checkpoint_is_not_taken_for_a_bayesian_one(point, train_lm, tmp_path):
    bayes = train_lm(tmp_path / "exp", *LSTM, *CELL)
    target = (bayes / "valid.loss.ave.pth").resolve()
    target.write_bytes((point / "valid.loss.best.pth").read_bytes())
    with pytest.raises(ValueError, match="not in the checkpoint"):
        load_lm(bayes)


def test_resuming_another_architecture(point, train_lm):
    with pytest.raises(ValueError, match="has shape"):
        train_lm(point, *LSTM, "--lm_conf", "unit=12", "--resume", "true", max_epoch=3)


def test_a_kill_between_checkpoint_and_model_heals(train_lm, tmp_path):
    """ESPnet writes checkpoint.pth before the epoch's model."""
    options = [*LSTM, *CELL, *ADAM, "--keep_nbest_models", "3"]
    exp = train_lm(tmp_path / "exp", *options, max_epoch=2)
    expected = load_state(exp / "2epoch.pth")
    (exp / "2epoch.pth").unlink()
    (exp / ".2epoch.pth.x1y2").write_bytes(b"half")
    with pytest.raises(ValueError, match="goes on where it was stopped"):
        (exp / "valid.loss.ave.pth").unlink()
        (exp / "valid.loss.ave.pth").symlink_to("2epoch.pth")
        load_lm(exp)
    train_lm(exp, *options, "--resume", "true", max_epoch=3)
    assert not list(exp.glob(".*.pth.*"))
    again = load_state(exp / "2epoch.pth")
    assert all(torch.equal(again[key], expected[key]) for key in expected)
    assert load_lm(exp).lm.locations() == ["cell_input@1", "cell_input@2"]


def test_resuming_with_other_locations_is_refused_before_anything_is_written(train_lm, tmp_path):
    exp = train_lm(tmp_path / "exp", *LSTM, *CELL)
    before = (exp / "config.yaml").read_bytes()
    other = ["--lm_conf", "uncertainty.forget_gate@2=bayes"]
    with pytest.raises(ValueError, match="another architecture"):
        train_lm(exp, *LSTM, *other, "--resume", "true", max_epoch=2)
    assert (exp / "config.yaml").read_bytes() == before


def test_resuming_with_other_tokens_of_the_same_number_is_refused(corpus, train_lm, tmp_path):
    exp = train_lm(tmp_path / "exp", *LSTM)
    tokens = (corpus / "tokens.txt").read_text().split()
    tokens[2], tokens[3] = tokens[3], tokens[2]
    (tmp_path / "tokens.txt").write_text("\n".join(tokens) + "\n")
    with pytest.raises(ValueError, match="another token list"):
        options = ["--token_list", tmp_path / "tokens.txt", "--resume", "true"]
        train_lm(exp, *LSTM, *options, max_epoch=2)


def test_the_prior_asked_for_wins_over_the_initial_checkpoints(point, train_lm, tmp_path):
    bayes = train_lm(tmp_path / "bayes", *LSTM, *CELL, *ADAM)
    prior = point / "valid.loss.best.pth"
    options = ["--init_param", bayes / "1epoch.pth", "--model_conf", f"prior={prior}"]
    still = ["--optim", "sgd", "--optim_conf", "lr=0.0"]
    state = load_state(train_lm(tmp_path / "exp", *LSTM, *CELL, *options, *still) / "1epoch.pth")
    name = "lm.rnn.weight_hh_l0"
    assert torch.equal(state[f"{name}_cell_input_prior_mean"], load_state(prior)[name][16:24])
    assert torch.equal(state[name], load_state(bayes / "1epoch.pth")[name])


def test_a_deeper_model_is_no_prior_and_no_start(train_lm, tmp_path):
    deep = train_lm(tmp_path / "deep", *LSTM, "--lm_conf", "nlayers=3") / "1epoch.pth"
    for option in (["--model_conf", f"prior={deep}"], ["--init_param", deep]):
        with pytest.raises(ValueError, match="have no place in the model"):
            train_lm(tmp_path / "exp", *LSTM, *CELL, *option)


def test_parts_of_a_checkpoint(train_lm, tmp_path):
    bayes = train_lm(tmp_path / "bayes", *LSTM, *CELL, *ADAM) / "1epoch.pth"
    still = ["--optim", "sgd", "--optim_conf", "lr=0.0"]
    for n, form in enumerate(
        (f"{bayes}:lm:lm", f"{bayes}:lm.rnn:lm.rnn", f"{bayes}:::lm.encoder,lm.decoder")
    ):
        exp = train_lm(tmp_path / f"exp{n}", *LSTM, *still, "--init_param", form)
        name = "lm.rnn.weight_ih_l1"
        assert torch.equal(load_state(exp / "1epoch.pth")[name], load_state(bayes)[name])
    for form, word in (
        (f"{bayes}:lmx:lm", "no tensor of it is named lmx"),
        (f"{bayes}:lm:foo", "no foo"),
    ):
        with pytest.raises(ValueError, match=word):
            train_lm(tmp_path / "exp", *LSTM, "--init_param", form)
