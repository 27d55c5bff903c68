import copy
import math

import numpy as np
import pytest
import torch
from oracles.ivon_plain import ivon_plain
from torch import nn

from espnet_bayeslm.bayes import Posterior, noise_generator
from espnet_bayeslm.kinds.whole_posterior import add_whole_posterior, whole_blocks
from espnet_bayeslm.lm import BayesLSTMLM
from espnet_bayeslm.training.ivon import IVON
from espnet_bayeslm.training.model import BayesLanguageModel
from espnet_bayeslm.training.optimizer import add_optimizer_posterior
from espnet_bayeslm.utils.errors import InputError

OPTIONS = dict(lr=0.05, ess=500.0, hess_init=0.3, beta1=0.9, beta2=0.99, weight_decay=1e-3)


class Net(nn.Module):
    """A small regression network; `forward` returns the mean loss of a batch."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.body = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()
        self.seen = []

    def forward(self, batch):
        self.seen.append(flat(self))
        x, y = batch
        return (self.body(x) - y).square().mean()


def make_net():
    net = Net()
    net.posterior = Posterior(net)
    add_whole_posterior(net.posterior)
    return net


def make(net=None, **options):
    net = net or make_net()
    optimizer = IVON(net.parameters(), **{**OPTIONS, **options})
    optimizer.attach(net, net.posterior)
    return net, optimizer


def batch(index):
    generator = torch.Generator().manual_seed(100 + index)
    x = torch.randn(8, 3, dtype=torch.float64, generator=generator)
    return x, x.sin().sum(dim=1, keepdim=True)


def flat(net):
    return nn.utils.parameters_to_vector(net.parameters()).detach()


def train(net, optimizer, indices):
    for index in indices:
        net.train()
        net(batch(index)).backward()
        optimizer.step()
        optimizer.zero_grad()


def noises(net, draws):
    """Noise of each draw of the optimizer."""
    found = []
    for draw in range(draws):
        generator = noise_generator(torch.initial_seed(), 0, draw)
        pieces = [torch.empty_like(p).normal_(generator=generator) for p in net.parameters()]
        found.append(nn.utils.parameters_to_vector(pieces).detach().numpy())
    return found


def gradient(theta, t):
    """Gradient of the loss of batch t at the weights theta."""
    plain = Net()
    nn.utils.vector_to_parameters(torch.from_numpy(theta), plain.parameters())
    gradients = torch.autograd.grad(plain(batch(t)), [*plain.parameters()])
    return torch.cat([g.flatten() for g in gradients]).numpy()


@pytest.mark.parametrize(
    "options",
    [{}, {"rescale_lr": False}, {"clip_radius": 0.4}, {"beta1": 0.0, "weight_decay": 0.0}],
    ids=str,
)
def test_every_step_is_that_of_the_algorithm(options):
    net, optimizer = make(**options)
    expected = ivon_plain(flat(net).numpy(), gradient, noises(net, 100), **{**OPTIONS, **options})
    assert not np.allclose(expected[-1][1], expected[0][1], rtol=0.1), "sigma never moved"
    for t, (mean, _) in enumerate(expected, 1):
        train(net, optimizer, [t])
        assert np.allclose(flat(net), mean, rtol=0, atol=1e-12)
    optimizer.use_means()
    assert np.allclose(flat_stds(net), expected[-1][1], rtol=1e-12, atol=0)


def test_a_posterior_is_the_prior_of_the_next_training():
    first, optimizer = make()
    train(first, optimizer, range(30))
    net = make_net()
    net.load_state_dict(first.state_dict())
    means, stds = flat(net), flat_stds(net)
    net, optimizer = make(net, prior="start")
    expected = ivon_plain(
        means.numpy(), gradient, noises(net, 20), **OPTIONS, prior=(means.numpy(), stds)
    )
    for t, (mean, _) in enumerate(expected, 1):
        train(net, optimizer, [t])
        assert np.allclose(flat(net), mean, rtol=0, atol=1e-12)
    optimizer.use_means()
    assert np.allclose(flat_stds(net), expected[-1][1], rtol=1e-12, atol=0)
    assert (flat_stds(net) < stds).all()
    # a run that was stopped keeps its prior
    resumed, again = make(make_net(), prior="start")
    resumed.load_state_dict(net.state_dict())
    again.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for one, its in ((net, optimizer), (resumed, again)):
        train(one, its, [50])
    assert torch.equal(flat(net), flat(resumed))


def flat_stds(net):
    return torch.cat([block.std.flatten() for block in whole_blocks(net.posterior)]).numpy()


def test_days_one_by_one_are_all_days_at_once():
    """Of a Gaussian mean with a known deviation the posteriors of two days are exact."""
    days = torch.tensor([[1.0, 3.0], [6.0, 2.0]], dtype=torch.float64)

    class Mean(nn.Module):
        def __init__(self):
            super().__init__()
            self.mean = nn.Parameter(torch.zeros(1, dtype=torch.float64))
            self.posterior = Posterior(self)
            add_whole_posterior(self.posterior)

        def forward(self, day):
            return (day - self.mean).square().mean() / 2

    options = dict(lr=0.05, ess=2.0, hess_init=1.0, beta2=0.999, weight_decay=0.5)
    precision, mean = 1.0, 0.0  # of the prior: ess * weight_decay
    net = Mean()
    for prior, day in zip(("zero", "start"), days, strict=True):
        before, net = net.state_dict(), Mean()
        net.load_state_dict(before)
        optimizer = IVON(net.parameters(), **options, prior=prior, rescale_lr=False)
        optimizer.attach(net, net.posterior)
        found = []
        for step in range(3000):
            optimizer.param_groups[0]["lr"] = 0.05 / (1 + step / 200)
            net.train()
            net(day).backward()
            optimizer.step()
            optimizer.zero_grad()
            found.append(net.mean.item())
        net.eval()
        optimizer.use_means()
        mean = (precision * mean + float(day.sum())) / (precision + len(day))
        precision += len(day)
        assert np.mean(found[-1000:]) == pytest.approx(mean, abs=0.05)
        assert float(whole_blocks(net.posterior)[0].std) == pytest.approx(precision**-0.5, rel=0.1)


def test_a_prior_needs_a_posterior_to_start_from():
    net, _ = make(prior="start")
    plain = Net()
    IVON(plain.parameters(), **OPTIONS, prior="start").attach(plain)
    for one in (net, plain):
        one.train()
        with pytest.raises(InputError, match="weights without a posterior"):
            one(batch(0))
    with pytest.raises(InputError, match="prior 'yesterday': valid are zero, start"):
        make(prior="yesterday")


def test_micro_batches_share_a_draw():
    net, optimizer = make()
    means = flat(net)
    for index in range(3):
        net(batch(index)).backward()
    assert torch.equal(net.seen[0], net.seen[1]) and torch.equal(net.seen[0], net.seen[2])
    assert not torch.equal(net.seen[0], means)
    optimizer.step()
    optimizer.zero_grad()
    net(batch(4))
    assert not torch.equal(net.seen[3] - flat(net), net.seen[0] - means)


def test_validation_sees_the_means_and_the_draw_goes_on():
    net, optimizer = make()
    train(net, optimizer, range(3))
    means = flat(net)
    net(batch(3)).backward()
    draw = net.seen[-1]
    net.eval()
    net(batch(4))
    assert torch.equal(net.seen[-1], means)
    net.train()
    net(batch(5)).backward()
    assert torch.equal(net.seen[-1], draw) and not torch.equal(draw, means)
    # without a step
    optimizer.zero_grad()
    assert torch.equal(flat(net), means)
    net(batch(5))
    assert not torch.equal(net.seen[-1], draw)


def test_a_draw_without_gradients_ends_at_validation():
    net, _ = make()
    for is_training in (True, False, True):
        net.train(is_training)(batch(0))
    assert not torch.equal(net.seen[0], net.seen[2])


def test_amp_scaler_skips_a_step():
    net, optimizer = make()
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    means = flat(net)
    for factor, moves in ((math.inf, False), (1.0, True)):
        scaler.scale(net(batch(0)) * factor).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        assert torch.equal(flat(net), means) != moves


@pytest.mark.parametrize("held", [False, True], ids=["after a step", "while a draw is held"])
def test_resumed_run_equals_an_unbroken_one(tmp_path, held):
    whole, optimizer = make()
    train(whole, optimizer, range(20))
    first, optimizer = make()
    train(first, optimizer, range(8))
    if held:
        first(batch(8))
    torch.save([first.state_dict(), optimizer.state_dict()], tmp_path / "checkpoint.pth")
    second, optimizer = make(lr=1.0)
    states = torch.load(tmp_path / "checkpoint.pth", weights_only=True)
    second.load_state_dict(states[0])
    optimizer.load_state_dict(states[1])
    train(second, optimizer, range(8, 20))
    torch.testing.assert_close(second.state_dict(), whole.state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize("part", ["", "body", "body.0"])
def test_state_dict_is_never_of_perturbed_weights(part):
    net, optimizer = make()
    train(net, optimizer, range(3))
    expected = copy.deepcopy(net.get_submodule(part).state_dict())
    net(batch(3)).backward()
    found = net.get_submodule(part).state_dict()
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize("part", ["", "body"])
def test_loaded_weights_stay_though_a_draw_was_held(part):
    net, optimizer = make()
    net(batch(0))
    state = {key: torch.ones_like(v) for key, v in net.get_submodule(part).state_dict().items()}
    net(batch(0))
    net.get_submodule(part).load_state_dict(state)
    optimizer.zero_grad()
    assert (flat(net) == 1).all()


def test_a_loaded_state_shows_its_own_deviations():
    """Also where those of another state were shown before."""
    net, optimizer = make()
    train(net, optimizer, range(3))
    early = copy.deepcopy(optimizer.state_dict())
    shown = copy.deepcopy(net.state_dict())
    train(net, optimizer, range(3, 9))
    assert not torch.equal(
        net.state_dict()["body.0.weight_log_std"], shown["body.0.weight_log_std"]
    )
    optimizer.load_state_dict(early)
    for name, value in net.state_dict().items():
        if name.endswith("_log_std"):
            torch.testing.assert_close(value, shown[name])


def test_the_start_of_a_posterior_is_as_its_options_say():
    """By default 1 / sqrt(ess (0.1 + 1e-6)), as the algorithm's authors have it."""
    net = make_net()
    optimizer = IVON(net.parameters(), ess=500.0, lr=1e-12)
    optimizer.attach(net, net.posterior)
    train(net, optimizer, range(1))
    found = net.state_dict()["body.0.weight_log_std"]
    expected = torch.full_like(found, -0.5 * math.log(500 * (0.1 + 1e-6)))
    torch.testing.assert_close(found, expected, atol=0.1, rtol=0)


def test_a_model_without_their_buffers_trains_too():
    bare = Net()
    optimizer = IVON(bare.parameters(), **OPTIONS)
    optimizer.attach(bare)
    train(bare, optimizer, range(5))
    net, optimizer = make()
    train(net, optimizer, range(5))
    assert torch.equal(flat(bare), flat(net))


def test_parameters_without_gradients_are_left_alone():
    net = make_net()
    net.body[0].weight.requires_grad_(False)
    net.unused = nn.Parameter(torch.ones(3, dtype=torch.float64))
    before = net.body[0].weight.clone()
    _, optimizer = make(net)
    net(batch(0))
    assert torch.equal(net.body[0].weight, before)
    train(net, optimizer, range(3))
    assert torch.equal(net.body[0].weight, before) and (net.unused == 1).all()
    assert (net.state_dict()["body.0.weight_log_std"] == -20).all()


BAD = dict(lr=-1.0, ess=0, hess_init=0.0, beta1=1.0, beta2="0.9", weight_decay=-1e-3)


@pytest.mark.parametrize("name, value", [*BAD.items(), ("ess", math.nan), ("clip_radius", 0.0)])
def test_options_out_of_range(name, value):
    with pytest.raises(InputError, match=name):
        make(**{name: value})


def test_wrong_use_is_an_error():
    net, optimizer = make()
    sum(p.sum() for p in net.parameters()).backward()
    with pytest.raises(RuntimeError, match="attach"):
        optimizer.step()
    net, _ = make()
    replica = net._replicate_for_data_parallel()
    with pytest.raises(InputError, match="multiprocessing_distributed"):
        replica(batch(0))
    net, optimizer = make(ess=None)
    with pytest.raises(InputError, match="set_ess"):
        net(batch(0))
    optimizer.set_ess(500.0)
    train(net, optimizer, range(3))
    other, optimizer = make()
    optimizer.set_ess(7.0)
    train(other, optimizer, range(3))
    assert torch.equal(flat(net), flat(other)), "the options' ess is the user's"


@pytest.mark.parametrize(
    "lm_conf, model_conf, problem",
    [
        ({"uncertainty": {"cell_input@1": "bayes"}}, {}, "is uncertain at cell_input@1"),
        ({"uncertainty": {"hidden_output@1": "variational"}}, {}, "is uncertain at hidden_output"),
        ({}, {"regularizer": "l2"}, "has a regularizer"),
        ({}, {"num_samples": 3}, "num_samples is 3"),
    ],
)
def test_models_that_ivon_cannot_train(lm_conf, model_conf, problem):
    model = BayesLanguageModel(BayesLSTMLM(10, unit=4, **lm_conf), 10, **model_conf)
    with pytest.raises(InputError, match=f"optim ivon .*{problem}"):
        add_optimizer_posterior(model)
