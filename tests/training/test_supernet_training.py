"""Architecture search: what it learns, from what, and how it is kept."""

import json

import pytest
import torch
from training_options import ADAM, LSTM, SEARCH, STILL, stats

from espnet_bayeslm.kinds.search import choices
from espnet_bayeslm.kinds.search.history import HISTORY, read_history, write_history
from espnet_bayeslm.kinds.search.mixed import name_in_path, path_name
from espnet_bayeslm.lm import BayesLSTMLM, BayesTransformerLM
from espnet_bayeslm.loading.checkpoint import load_state
from espnet_bayeslm.training.model import BayesLanguageModel
from espnet_bayeslm.training.optimizer import split_posterior

VOCAB = 13
POINT_BAYES = {"kind": "search", "candidates": ["point", "bayes"]}


def test_architecture_weights_are_learnt_and_shown(train_lm, tmp_path, caplog):
    caplog.set_level("INFO")
    options = [*LSTM, *SEARCH, *ADAM, "--model_conf", "architecture_lr=0.05"]
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


def source(num_sentences, seed):
    """Sentences in which a letter is often followed by the next."""
    generator = torch.Generator().manual_seed(seed)
    text = torch.randint(1, VOCAB - 1, (num_sentences, 8), generator=generator)
    keep = torch.rand(text.shape, generator=generator) < 0.8
    for t in range(1, 8):
        text[:, t] = torch.where(keep[:, t], text[:, t - 1] % (VOCAB - 2) + 1, text[:, t])
    return text, torch.full((num_sentences,), 8)


def train(model, steps, *, seed, **rates):
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    optimizer = split_posterior(optimizer, model, **rates)
    for step in range(steps):
        optimizer.zero_grad()
        model(*source(16, 1000 * seed + step))[0].backward()
        optimizer.step()
    return model


CANDIDATES = {
    "lstm": (BayesLSTMLM, dict(unit=16), ["input_gate@1", "cell_input@2", "output_gate@1"]),
    "transformer": (
        BayesTransformerLM,
        dict(att_unit=16, head=2, unit=32, layer=2, init_std=1e-3),
        ["ffn@1", "ffn@2", "attention@1"],
    ),
}


@pytest.mark.parametrize("family", CANDIDATES)
def test_a_path_that_was_spoilt_is_not_chosen(family):
    """In a trained LM one path of each location is replaced by noise: with each seed the search
    must choose the other one at all locations."""
    cls, conf, places = CANDIDATES[family]
    conf = {**conf, "dropout_rate": 0.1}
    torch.manual_seed(0)
    point = BayesLanguageModel(cls(VOCAB, **conf), VOCAB, num_train_tokens=10**4).train()
    train(point, 100, seed=1, lr=None)
    for seed in range(2):
        torch.manual_seed(seed)
        lm = cls(VOCAB, uncertainty=dict.fromkeys(places, POINT_BAYES), **conf)
        model = BayesLanguageModel(lm, VOCAB, num_train_tokens=10**4).train()
        model.load_state_dict(point.state_dict())
        model.lm.posterior.set_prior_means(point.lm.state_dict())
        planted = {place: ("point", "bayes")[int(torch.randint(2, ()))] for place in places}
        spoil(lm, planted)
        train(model, 20, seed=seed + 2, lr=0.01, architecture_lr=0.06)
        picked = {place: c.kinds[int(c.weights.argmax())] for place, c in choices(lm)}
        assert picked == planted, seed


def spoil(lm, planted):
    """Replace the weights of the paths that are not planted by noise."""
    for location in lm.kinds:
        place = str(location)
        weights = lm.place(location).weights()
        for found in (found for w in weights for found in lm.posterior.find(w)):
            parameter = found.mean.data
            if planted[place] == "point":
                path = getattr(found.owner, path_name(found.owner, "bayes", place))
                parameter = getattr(path, name_in_path(found.owner, found.parameter, place)).data
            parameter.copy_(0.5 * torch.randn_like(parameter))
