import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.autograd import gradcheck
from torch.distributions import Normal, kl_divergence

from espnet_bayeslm.bayes import (
    UncertainModule,
    kl_of_draws,
    kl_per_token,
    noise_generator,
)
from espnet_bayeslm.bayes.gaussian import draw_and_kl, draw_weights, kl_weights


class Vector(UncertainModule):
    """A module with one parameter of 5 rows."""

    def __init__(self, *shape):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(*shape, dtype=torch.float64))


def make(rows=((1, 2), (3, 5)), init_std=0.3):
    module = Vector(5, 2)
    for n, block in enumerate(rows):
        module.make_random(
            "weight",
            location=f"w@{n}",
            init_std=init_std,
            prior_variance=2.0,
            rows=block,
            label=f"b{n}",
        )
    return module


def test_kl_equals_torch_distributions():
    mean, log_std, prior = (torch.randn(7, 3, dtype=torch.float64) for _ in range(3))
    expected = kl_divergence(Normal(mean, log_std.exp()), Normal(prior, math.sqrt(0.5))).sum()
    assert torch.allclose(kl_weights(mean, log_std, prior, math.sqrt(0.5)), expected, rtol=1e-12)


def test_kl_of_half_precision_weights_is_float32():
    half = torch.full((1000, 1000), 0.1, dtype=torch.float16)
    kl = kl_weights(half, half - 5, torch.zeros_like(half), 0.01)
    assert kl.dtype == torch.float32 and torch.isfinite(kl)


def test_kl_is_zero_where_posterior_is_prior():
    mean = torch.randn(4, dtype=torch.float64)
    log_std = torch.full_like(mean, math.log(0.7))
    assert abs(kl_weights(mean, log_std, mean, 0.7)) < 1e-14


def test_draw_and_kl_have_the_right_gradients():
    mean, log_std, prior, noise = (torch.randn(7, 3, dtype=torch.float64) for _ in range(4))
    inputs = (mean.requires_grad_(), log_std.requires_grad_())
    assert gradcheck(lambda m, s: kl_weights(m, s, prior, 0.7), inputs)
    assert gradcheck(lambda m, s: draw_weights(m, s, noise), inputs)
    # a block of rows, as the layers have them, and transposed
    assert gradcheck(lambda m, s: kl_weights(m[2:5], s[2:5], prior[2:5], 0.7), inputs)
    assert gradcheck(lambda m, s: draw_weights(m.t(), s.t(), noise.t()), inputs)


@pytest.mark.parametrize("rows", [slice(0, 7), slice(2, 5)])
def test_draw_and_kl_in_one_pass_are_the_two(rows):
    mean, log_std, prior, noise = (torch.randn(7, 3, dtype=torch.float64) for _ in range(4))
    log_std[3, 1] = -25.0  # clamped
    inputs = (mean.requires_grad_(), log_std.requires_grad_())

    def apart(m, s):
        return draw_weights(m[rows], s[rows], noise[rows]), kl_weights(
            m[rows], s[rows], prior[rows], 0.7
        )

    def together(m, s):
        return draw_and_kl(m[rows], s[rows], noise[rows], prior[rows], 0.7)

    results = []
    for both in (apart, together):
        draw, kl = both(*inputs)
        results.append((draw, kl, *torch.autograd.grad(3 * kl + draw.sin().sum(), inputs)))
    for a, b in zip(*results, strict=True):
        assert torch.allclose(a, b, rtol=1e-12)


def test_the_kl_of_a_draw_is_taken_once(monkeypatch):
    module = make()
    expected = module.kl()
    calls = []
    monkeypatch.setattr(
        "espnet_bayeslm.bayes.posterior.kl_weights",
        lambda *args: calls.append(args) or kl_weights(*args),
    )
    module.draw(noise_generator(0, 0, 0))
    with kl_of_draws(module):
        module.value("weight")
        assert torch.allclose(module.kl(), expected) and not calls
        # the weights may have changed since
        assert torch.allclose(module.kl(), expected) and len(calls) == len(module.random_blocks)
    module.value("weight")
    assert torch.allclose(module.kl(), expected) and len(calls) == 2 * len(module.random_blocks)


def test_chunks_change_nothing(monkeypatch):
    mean, log_std, prior, noise = (torch.randn(70, 3, dtype=torch.float64) for _ in range(4))
    results = []
    for chunk in (1, 16, 1000):
        monkeypatch.setattr("espnet_bayeslm.bayes.gaussian.CHUNK", chunk)
        inputs = (mean.clone().requires_grad_(), log_std.clone().requires_grad_())
        kl, draw = kl_weights(*inputs, prior, 0.7), draw_weights(*inputs, noise)
        results.append((kl, draw, *torch.autograd.grad(kl + draw.sin().sum(), inputs)))
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            assert torch.allclose(a, b, rtol=1e-12)


def test_standard_deviations_are_clamped_and_get_no_gradient_outside():
    log_std = torch.tensor([-30.0, 0.0, 9.0], requires_grad=True)
    zeros, noise = torch.zeros(3), torch.ones(3)
    draw = draw_weights(zeros, log_std, noise)
    assert torch.allclose(draw, torch.tensor([math.exp(-20), 1.0, math.exp(4)]))
    (draw.sum() + kl_weights(zeros, log_std, zeros, 2.0)).backward()
    assert log_std.grad[0] == 0 and log_std.grad[1] != 0 and log_std.grad[2] == 0


def test_only_the_blocks_rows_are_drawn():
    module = make()
    module.draw(noise_generator(0, 0, 0))
    same = (module.value("weight") == module.weight).all(dim=1)
    assert same.tolist() == [True, False, True, False, False]
    module.use_mean()
    assert module.value("weight") is module.weight


def test_a_draw_is_held_until_the_next():
    module = make()
    module.draw(noise_generator(0, 0, 0))
    first = module.value("weight")
    assert torch.equal(first, module.value("weight"))
    module.draw(noise_generator(0, 0, 1))
    assert not torch.equal(first, module.value("weight"))


@pytest.mark.parametrize("other", [(1, 0, 0), (0, 1, 0), (0, 0, 1)])
def test_noise_depends_on_seed_rank_and_step(other):
    draw = [
        torch.randn(9, generator=noise_generator(*key)) for key in ((0, 0, 0), (0, 0, 0), other)
    ]
    assert torch.equal(draw[0], draw[1])
    assert not torch.allclose(draw[0], draw[2])


def test_draws_have_the_posteriors_moments():
    module = make(rows=((0, 5),), init_std=0.3)
    draws = []
    for step in range(4000):
        module.draw(noise_generator(0, 0, step))
        draws.append(module.value("weight").detach())
    draws = torch.stack(draws)
    # 10 weights, 4000 draws: five standard errors
    assert torch.allclose(draws.mean(0), module.weight, atol=5 * 0.3 / math.sqrt(4000))
    assert torch.allclose(draws.std(0), torch.tensor(0.3).double(), rtol=5 / math.sqrt(8000))


def test_gradients_equal_finite_differences():
    module = make()
    module.draw(noise_generator(0, 0, 0))
    inputs = [module.weight, module.weight_b0_log_std, module.weight_b1_log_std]

    def loss(*_):
        return module.value("weight").square().sum() + module.kl()

    assert torch.autograd.gradcheck(loss, inputs)


def test_mean_of_sampled_losses_agrees_with_quadrature():
    """E_q of a non-linear loss of one weight, against Gauss-Hermite quadrature."""
    module = Vector(1)
    module.make_random("weight", location="w", init_std=0.5, prior_variance=1.0)

    def loss(weight):
        return torch.log1p(torch.exp(-2 * weight)) + 0.3 * weight

    nodes, weights = np.polynomial.hermite.hermgauss(60)
    points = module.weight.item() + math.sqrt(2) * 0.5 * torch.from_numpy(nodes)
    exact = (torch.from_numpy(weights) * loss(points)).sum() / math.sqrt(math.pi)
    samples = []
    for step in range(20000):
        module.draw(noise_generator(7, 0, step))
        samples.append(loss(module.value("weight")).detach())
    samples = torch.stack(samples)
    error = samples.std() / math.sqrt(len(samples))
    assert abs(samples.mean() - exact) < 4 * error
    assert error < 0.01 * abs(exact)


def test_kl_per_token_divides_once():
    assert kl_per_token(torch.tensor(8.0), num_train_tokens=4, weight=0.5) == 1.0


def test_clamped_log_std_keeps_sample_and_kl_finite():
    module = make(rows=((0, 5),))
    nn.init.constant_(module.weight_b0_log_std, -math.inf)
    module.draw(noise_generator(0, 0, 0))
    assert torch.allclose(module.value("weight"), module.weight, atol=1e-7)
    assert torch.isfinite(module.kl())
