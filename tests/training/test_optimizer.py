"""The optimizer of the log standard deviations: what it learns, and how it travels."""

import math

import pytest
import torch
from training_options import ADAM, CELL, IVON, LSTM, SGD, stats

from espnet_bayeslm.bayes import Posterior, kl_per_token
from espnet_bayeslm.evaluation.signal_to_noise import summarize_weights
from espnet_bayeslm.lm import BayesLSTMLM
from espnet_bayeslm.loading.experiment import load_state, read_checkpoint
from espnet_bayeslm.loading.trained_lm import load_lm
from espnet_bayeslm.training.model import BayesLanguageModel
from espnet_bayeslm.training.optimizer import fused_on_cpu, split_posterior


class Regression(torch.nn.Module):
    """Bayesian linear regression as a layer with the per-token bound: its posterior is known.

    The columns of the inputs are orthogonal, so that the exact posterior is mean-field.
    """

    posterior_lr, noise = 0.01, 0.5

    def __init__(self):
        super().__init__()
        self.x = torch.linalg.qr(torch.randn(400, 8))[0] * torch.linspace(2.0, 20.0, 8)
        self.y = self.x @ torch.randn(8) + self.noise * torch.randn(400)
        self.layer = torch.nn.Linear(8, 1, bias=False)
        torch.nn.init.zeros_(self.layer.weight)
        kind = {"kind": "bayes", "init_std": 0.01, "prior_variance": 0.3}
        self.posterior = Posterior(self, {"layer.weight": kind})
        precision = self.x.square().sum(0) / self.noise**2 + 1 / 0.3
        self.sigma = precision.rsqrt()
        self.mean = (self.x.t() @ self.y) / self.noise**2 / precision

    def parameters_of(self, group):
        return self.posterior.parameters_of(group)

    def loss(self, generator):
        with self.posterior.sampled(generator) as sample:
            error = self.y - self.layer(self.x).squeeze(1)
        nll = error.square().mean() / (2 * self.noise**2)
        return nll + kl_per_token(sample.kl(), num_train_tokens=400)


def test_sigma_is_that_of_the_exact_posterior():
    model, generator = Regression(), torch.Generator().manual_seed(1)
    optimizer = split_posterior(torch.optim.SGD(model.parameters(), lr=0.1), model)
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 1500)
    for _ in range(1500):
        optimizer.zero_grad()
        model.loss(generator).backward()
        optimizer.step()
        decay.step()
    sigma = model.posterior.blocks()[0].std.squeeze(0)
    assert model.sigma.max() / model.sigma.min() > 5
    assert ((sigma / model.sigma).log().abs() < math.log(1.1)).all(), sigma / model.sigma
    assert ((model.layer.weight[0] - model.mean).abs() < 0.5 * model.sigma).all()


@pytest.mark.parametrize("optim", [torch.optim.Adam, torch.optim.AdamW])
def test_a_fused_step_is_the_plain_one(optim):
    def weights(**options):
        torch.manual_seed(0)
        model = torch.nn.Linear(7, 5, dtype=torch.float64)
        # as a product leaves it that was computed the other way round
        model.weight.register_hook(lambda grad: grad.t().contiguous().t())
        optimizer = optim(model.parameters(), **fused_on_cpu(optim, options, model))
        for _ in range(5):
            optimizer.zero_grad()
            model(torch.randn(9, 7, dtype=torch.float64)).sin().sum().backward()
            optimizer.step()
        return optimizer.param_groups[0]["fused"], [*model.parameters()]

    (is_fused, found), (is_plain, expected) = weights(lr=0.1), weights(lr=0.1, fused=False)
    assert is_fused and not is_plain
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


def test_how_a_step_is_done_can_be_chosen():
    model = torch.nn.Linear(2, 2)
    for conf in (dict(fused=False), dict(foreach=True), dict(differentiable=True)):
        assert fused_on_cpu(torch.optim.Adam, conf, model) == conf
    assert fused_on_cpu(torch.optim.Adam, dict(lr=1.0), model) == dict(lr=1.0, fused=True)
    assert fused_on_cpu(torch.optim.RAdam, dict(lr=1.0), model) == dict(lr=1.0)


def rates(optimizer):
    return [group["lr"] for group in optimizer.param_groups]


def test_schedulers_change_both_rates():
    model = Regression()
    model.posterior_lr = 0.02
    optimizer = split_posterior(torch.optim.SGD(model.parameters(), lr=0.4), model)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
    for loss in (1.0, 2.0):
        scheduler.step(loss)
    assert rates(optimizer) == [0.2, 0.01] and rates(optimizer.posterior) == [0.01]
    optimizer.load_state_dict(optimizer.state_dict())
    scheduler.step(3.0)
    assert rates(optimizer.weights) == [0.1] and rates(optimizer.posterior) == [0.005]


def test_it_works_with_a_gradient_scaler():
    """ESPnet's `use_amp`: to the scaler it is one optimizer, whose gradients are unscaled once."""
    torch.manual_seed(0)
    uncertainty = {"cell_input@1": "bayes", "hidden_output@2": "variational"}
    lm = BayesLSTMLM(20, unit=8, uncertainty=uncertainty)
    model = BayesLanguageModel(lm, 20, num_train_tokens=100).train()
    optimizer = split_posterior(torch.optim.SGD(model.parameters(), lr=0.1), model)
    # networks of latent outputs have a tenth of the rate
    assert rates(optimizer.posterior) == pytest.approx([0.01, 0.001])
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    batch = (torch.randint(1, 19, (4, 6)), torch.full((4,), 6))
    # the prior networks of a variational LM start with a zero gradient
    for _ in range(2):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss, _, _ = model(*batch)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    for name, parameter in model.named_parameters():
        step = (parameter - before[name]).abs().max()
        assert 0 < step < 0.5, name


def moved(output):
    logs = [v for k, v in load_state(output / "1epoch.pth").items() if k.endswith("_log_std")]
    return max((log_std - math.log(0.01)).abs().max().item() for log_std in logs)


def test_sigma_moves_under_sgd_and_the_log_says_how_far(train_lm, tmp_path, caplog):
    caplog.set_level("INFO")
    output = train_lm(tmp_path / "own", *LSTM, *CELL, *SGD)
    assert moved(output) > 0.05
    assert "Epoch 1: cell_input@1: sigma 0.01 -> 0.01" in caplog.text
    same = train_lm(tmp_path / "same", *LSTM, *CELL, *SGD, "--model_conf", "posterior_lr=null")
    assert moved(same) < 0.005


def test_a_run_cannot_be_resumed_with_the_other_optimizer(train_lm, tmp_path):
    exp = train_lm(tmp_path / "exp", *LSTM, *CELL, *SGD)
    before = (exp / "config.yaml").read_bytes()
    options = [*LSTM, *CELL, *SGD, "--model_conf", "posterior_lr=null", "--resume", "true"]
    with pytest.raises(ValueError, match="posterior_lr"):
        train_lm(exp, *options, max_epoch=2)
    assert (exp / "config.yaml").read_bytes() == before


def test_a_loss_that_is_not_finite_leaves_the_last_checkpoint(train_lm, tmp_path):
    exp = train_lm(tmp_path / "exp", *LSTM, *CELL, *ADAM)
    # the rate of a resumed run is the checkpoint's: the noise makes this one diverge
    broken = read_checkpoint(exp / "checkpoint.pth")
    broken["model"]["lm.rnn.weight_hh_l0_cell_input_log_std"] += 1e30
    broken["model"]["lm.rnn.weight_hh_l0"][:] = 1e38
    torch.save(broken, exp / "checkpoint.pth")
    before = {path: path.read_bytes() for path in exp.glob("*.pth")}
    with pytest.raises(ValueError, match=r"training loss is .* at step 1 .*cell_input@1 has sigma"):
        train_lm(exp, *LSTM, *CELL, *ADAM, "--resume", "true", max_epoch=2)
    assert {path: path.read_bytes() for path in exp.glob("*.pth")} == before


def test_ivon_trains_and_leaves_a_posterior(train_lm, tmp_path):
    output = train_lm(tmp_path / "exp", *LSTM, *IVON, max_epoch=3)
    losses = [stats(output, epoch, "valid")["loss"] for epoch in (1, 2, 3)]
    assert losses[2] < losses[0]
    lm = load_lm(output).lm
    pieces = lm.posterior.blocks()
    assert {id(p) for p in lm.parameters()} == {
        id(dict(lm.named_parameters(remove_duplicate=False))[piece.name]) for piece in pieces
    }
    # sigma = 1 / sqrt(ess (h + delta)), far from the buffers' start of exp(-20)
    assert all((piece.std > 1e-4).all() and (piece.std < 1.0).all() for piece in pieces)
    for summary in summarize_weights(pieces):
        assert summary.median > 0 and summary.median_std_ratio is None
    x = torch.tensor([[12, 3, 4]])
    mean = lm(x)[0]
    with lm.sampled(0):
        draw = lm(x)[0]
    assert not torch.allclose(draw, mean) and torch.equal(lm(x)[0], mean)
    assert set(lm.locations()) == {piece.location for piece in pieces}
