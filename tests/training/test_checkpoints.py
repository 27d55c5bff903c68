"""Checkpoints: resumed, damaged, of other models, in parts."""

import os

import pytest
import torch
from training_options import (
    ADAM,
    CELL,
    FFN,
    FFN_SEARCH,
    IVON,
    LSTM,
    SAMPLED,
    SGD,
    STILL,
    TRANSFORMER,
    assert_same,
    stats,
)

from espnet_bayeslm.loading.checkpoint import load_state
from espnet_bayeslm.loading.trained_lm import load_lm

RUNS = {
    "bayes": [*TRANSFORMER, *FFN, *ADAM],
    "a rate of its own": [*LSTM, *CELL, *SGD],
    "ivon": [*LSTM, *IVON],
    "sampled softmax": [*TRANSFORMER, *FFN, *ADAM, *SAMPLED],
    "search": [*TRANSFORMER, *FFN_SEARCH, *ADAM],
}


@pytest.mark.parametrize("name", RUNS)
def test_a_resumed_run_repeats_the_unbroken_one(train_lm, tmp_path, name):
    unbroken = train_lm(tmp_path / "unbroken", *RUNS[name], max_epoch=3)
    broken = train_lm(tmp_path / "broken", *RUNS[name], max_epoch=1)
    before = load_state(broken / "1epoch.pth")
    train_lm(broken, *RUNS[name], "--resume", "true", max_epoch=3)
    assert_same(unbroken / "3epoch.pth", broken / "3epoch.pth")
    assert stats(unbroken, 3)["loss"] == stats(broken, 3)["loss"]
    after = load_state(broken / "3epoch.pth")
    if name == "bayes":
        assert int(after["lm.noise_step"]) == 3 * (120 // 16)
    if "search" in name:
        architecture = [key for key in after if ".search." in key]
        assert any(not torch.equal(before[key], after[key]) for key in architecture)
        histories = [(run / "architecture.jsonl").read_text() for run in (unbroken, broken)]
        assert histories[0] == histories[1]


def test_checkpoint_of_another_architecture(point, train_lm, tmp_path):
    shallow = point / "valid.loss.best.pth"
    deep = train_lm(tmp_path / "deep", *LSTM, "--lm_conf", "nlayers=3") / "1epoch.pth"
    for options, checkpoint, message in (
        (TRANSFORMER, shallow, "another architecture"),
        ([*LSTM, "--lm_conf", "unit=12"], shallow, "has shape"),
        ([*LSTM, *CELL], deep, "have no place in the model"),
    ):
        for start in (["--init_param", checkpoint], ["--model_conf", f"prior={checkpoint}"]):
            with pytest.raises(ValueError, match=message):
                train_lm(tmp_path / "exp", *options, *start)


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


def test_a_kill_between_checkpoint_and_model_heals(train_lm, tmp_path):
    """ESPnet writes checkpoint.pth before the epoch's model."""
    options = [*LSTM, *CELL, *ADAM, "--keep_nbest_models", "3"]
    exp = train_lm(tmp_path / "exp", *options, max_epoch=2)
    (exp / "2epoch.pth").rename(tmp_path / "whole.pth")
    (exp / ".2epoch.pth.x1y2").write_bytes(b"half")
    with pytest.raises(ValueError, match="goes on where it was stopped"):
        (exp / "valid.loss.ave.pth").unlink()
        (exp / "valid.loss.ave.pth").symlink_to("2epoch.pth")
        load_lm(exp)
    train_lm(exp, *options, "--resume", "true", max_epoch=3)
    assert not list(exp.glob(".*.pth.*"))
    assert_same(exp / "2epoch.pth", tmp_path / "whole.pth")
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
    state = load_state(train_lm(tmp_path / "exp", *LSTM, *CELL, *options, *STILL) / "1epoch.pth")
    for name in (f"lm.rnn.{part}" for part in ("weight_ih_l0", "weight_hh_l1", "bias_ih_l1")):
        # the rows of the cell input, of 8 units
        assert torch.equal(state[f"{name}_cell_input_prior_mean"], load_state(prior)[name][16:24])
        assert torch.equal(state[name], load_state(bayes / "1epoch.pth")[name])


def test_parts_of_a_checkpoint(train_lm, tmp_path):
    bayes = train_lm(tmp_path / "bayes", *LSTM, *CELL, *ADAM) / "1epoch.pth"
    for n, form in enumerate(
        (f"{bayes}:lm:lm", f"{bayes}:lm.rnn:lm.rnn", f"{bayes}:::lm.encoder,lm.decoder")
    ):
        exp = train_lm(tmp_path / f"exp{n}", *LSTM, *STILL, "--init_param", form)
        name = "lm.rnn.weight_ih_l1"
        assert torch.equal(load_state(exp / "1epoch.pth")[name], load_state(bayes)[name])
    for form, word in (
        (f"{bayes}:lmx:lm", "no tensor of it is named lmx"),
        (f"{bayes}:lm:foo", "no foo"),
    ):
        with pytest.raises(ValueError, match=word):
            train_lm(tmp_path / "exp", *LSTM, "--init_param", form)
