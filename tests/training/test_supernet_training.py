"""Architecture search: what it learns, from what, and how it is kept."""

import json

import pytest
import torch
from training_options import LSTM, SEARCH, STILL, stats

from espnet_bayeslm.kinds.architectures import HISTORY, read_history, write_history
from espnet_bayeslm.loading.checkpoint import load_state


def test_architecture_weights_are_learnt_and_shown(train_lm, tmp_path, caplog):
    caplog.set_level("INFO")
    # by a rate of their own: the LM stays as it is
    options = [*LSTM, *SEARCH, *STILL, "--model_conf", "architecture_lr=0.05"]
    exp = train_lm(tmp_path / "exp", *options, max_epoch=2)
    state = load_state(exp / "2epoch.pth")
    weights = {key: value for key, value in state.items() if ".search." in key}
    assert set(weights) == {f"lm.search.cell_input@{layer}.weights" for layer in (1, 2)}
    assert all(value.abs().max() > 0.01 for value in weights.values())
    lines = [json.loads(line) for line in (exp / "architecture.jsonl").read_text().splitlines()]
    epochs = [line["epoch"] for line in lines]
    assert epochs == sorted(set(epochs)) and epochs[-1] == 2.0 and 1.0 in epochs
    last = lines[-1]["weights"]["cell_input@1"]
    assert list(last) == ["point", "bayes"]
    assert list(last.values()) == pytest.approx(weights["lm.search.cell_input@1.weights"].tolist())
    assert "Epoch 2: cell_input@1: point 0." in caplog.text


def test_an_epoch_that_a_kill_undid_is_written_once(tmp_path):
    def record(value):
        return [(share, {"ffn@1": {"point": 0.0, "bayes": value}}) for share in (0.5, 1.0)]

    for epoch in (1, 2, 3):
        write_history(tmp_path, epoch, record(float(epoch)))
    # the third epoch was written, and its checkpoint was not
    write_history(tmp_path, 3, record(5.0))
    found = read_history(tmp_path / HISTORY)
    assert [epoch for epoch, _ in found] == [0.5, 1.0, 1.5, 2.0, 2.5, 3.0]
    assert [weights["ffn@1"]["bayes"] for _, weights in found] == [1, 1, 2, 2, 5, 5]
    write_history(tmp_path, 1, record(0.0))  # a training that begins anew
    assert len(read_history(tmp_path / HISTORY)) == 2


def test_all_paths_start_from_a_point_estimate_lm(point, train_lm, tmp_path):
    checkpoint = point / "valid.loss.best.pth"
    still = [*STILL, "--model_conf", "architecture_lr=null"]
    start = ["--init_param", checkpoint, "--model_conf", f"prior={checkpoint}"]
    exp = train_lm(tmp_path / "exp", *LSTM, *SEARCH, *still, *start)
    state, before = load_state(exp / "1epoch.pth"), load_state(checkpoint)
    rows = before["lm.rnn.weight_hh_l0"][16:24]
    name = "lm.rnn.search_bayes_cell_input_l0.weight_hh"
    assert torch.equal(state[name], rows) and torch.equal(state[f"{name}_prior_mean"], rows)
    assert stats(exp, 1, "valid")["nll"] == pytest.approx(
        min(stats(point, n, "valid")["nll"] for n in (1, 2)), abs=1e-5
    )
