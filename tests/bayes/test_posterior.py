import math

import pytest
import torch
from torch import nn
from torch.autograd import gradcheck
from torch.distributions import Normal, kl_divergence

from espnet_bayeslm.bayes import (
    Bayes,
    Draw,
    UncertainModule,
    Weights,
    kl_per_token,
    noise_generator,
)
from espnet_bayeslm.bayes.gaussian import draw_weights
from espnet_bayeslm.kernels import draw as kernel
from espnet_bayeslm.kernels.draw import draw_rows, kl_weights


class Vector(UncertainModule):
    """A module with one parameter of 5 rows."""

    def __init__(self, *shape):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(*shape, dtype=torch.float64))


def make(rows=((1, 2), (3, 5)), init_std=0.3):
    module = Vector(5, 2)
    for n, block in enumerate(rows):
        kind = Bayes(init_std=init_std, prior_variance=2.0)
        kind.make_random([Weights(module, "weight", block, f"b{n}")], f"w@{n}")
    return module


def test_kl_of_half_precision_weights_is_float32():
    half = torch.full((1000, 1000), 0.1, dtype=torch.float16)
    kl = kl_weights(half, half - 5, torch.zeros_like(half), 0.01)
    assert kl.dtype == torch.float32 and torch.isfinite(kl)


def test_draw_and_kl_of_views_have_the_right_gradients():
    mean, log_std, prior, noise = (torch.randn(7, 3, dtype=torch.float64) for _ in range(4))
    inputs = (mean.requires_grad_(), log_std.requires_grad_())
    assert gradcheck(lambda m, s: kl_weights(m[2:5], s[2:5], prior[2:5], 0.7), inputs)
    assert gradcheck(lambda m, s: draw_weights(m.t(), s.t(), noise.t()), inputs)


def plain_draw(mean, draw):
    """As `draw_rows`, by the formulas."""
    rows, log_std = slice(draw.first, draw.last), draw.log_std.clamp(-20, 4)
    value = mean.clone()
    value[rows] = mean[rows] + log_std.exp() * draw.noise
    prior = Normal(draw.prior_mean, draw.prior_std)
    return value, kl_divergence(Normal(mean[rows], log_std.exp()), prior).sum()


@pytest.mark.parametrize("spans", [[(0, 7)], [(2, 5)], [(0, 2), (3, 4), (6, 7)]])
def test_a_draw_and_its_kl_are_those_of_the_formulas(spans):
    mean = torch.randn(7, 3, dtype=torch.float64, requires_grad=True)
    draws = []
    for n, (first, last) in enumerate(spans):
        log_std, noise, prior = torch.randn(3, last - first, 3, dtype=torch.float64)
        log_std[0, 1] = -25.0  # clamped
        draws.append(kernel.Draw(first, last, log_std.requires_grad_(), noise, prior, 0.7 + n))
    value, kl = draw_rows(mean, draws)
    expected, expected_kl = mean, []
    for draw in draws:
        expected, term = plain_draw(expected, draw)
        expected_kl.append(term)
    leaves = [mean, *(draw.log_std for draw in draws)]
    weights = torch.arange(1.0, len(draws) + 1)
    results = [(value, kl), (expected, torch.stack(expected_kl))]
    for found, terms in results:
        torch.testing.assert_close(terms, results[1][1], rtol=1e-12, atol=0)
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)
    grads = [torch.autograd.grad((v.sin().sum() + (weights * k).sum()), leaves) for v, k in results]
    torch.testing.assert_close(*grads, rtol=1e-12, atol=1e-12)


def test_the_gradient_that_autograd_gave_is_not_changed():
    """The KL's gradient is added to it, and others may have it too."""
    mean, log_std, noise, prior = torch.randn(4, 6, 4, dtype=torch.float64)
    leaves = (mean.requires_grad_(), log_std.requires_grad_())
    given = torch.randn(6, 4, dtype=torch.float64)
    kept, one = given.clone(), torch.ones(1, dtype=torch.float64)
    value, kl = draw_rows(mean, [kernel.Draw(0, 6, log_std, noise, prior, 0.7)])
    alone = torch.autograd.grad(kl, leaves, one, retain_graph=True)
    found = torch.autograd.grad((value, kl), leaves, (given, one))
    assert torch.equal(given, kept)
    torch.testing.assert_close(found[0], alone[0] + kept)


def test_the_kl_of_a_draw_is_computed_with_it(monkeypatch, fast_kernels):
    module = make()
    with Draw(module, None).used() as mean:
        expected = mean.kl()
    calls = []
    monkeypatch.setattr(
        "espnet_bayeslm.kernels.draw.kl_weights",
        lambda *args: calls.append(args) or kl_weights(*args),
    )
    with Draw(module, noise_generator(0, 0, 0), weight_kl=True).used() as draw:
        assert torch.allclose(draw.kl(), expected) and len(calls) == len(module.random_blocks)
        module.value("weight")
    assert torch.allclose(draw.kl(), expected) and len(calls) == len(module.random_blocks)
    with Draw(module, noise_generator(0, 0, 0)).used() as draw:
        module.value("weight")
    assert torch.allclose(draw.kl(), expected) and len(calls) == 2 * len(module.random_blocks)


def test_standard_deviations_are_clamped_and_get_no_gradient_outside():
    log_std = torch.tensor([-30.0, 0.0, 9.0], requires_grad=True)
    zeros, noise = torch.zeros(3), torch.ones(3)
    draw = draw_weights(zeros, log_std, noise)
    assert torch.allclose(draw, torch.tensor([math.exp(-20), 1.0, math.exp(4)]))
    (draw.sum() + kl_weights(zeros, log_std, zeros, 2.0)).backward()
    assert log_std.grad[0] == 0 and log_std.grad[1] != 0 and log_std.grad[2] == 0


def test_only_the_blocks_rows_are_drawn():
    module = make()
    with Draw(module, noise_generator(0, 0, 0)).used():
        same = (module.value("weight") == module.weight).all(dim=1)
    assert same.tolist() == [True, False, True, False, False]
    assert module.value("weight") is module.weight


@pytest.mark.parametrize("other", [(1, 0, 0), (0, 1, 0), (0, 0, 1)])
def test_noise_depends_on_seed_rank_and_step(other):
    draw = [
        torch.randn(9, generator=noise_generator(*key)) for key in ((0, 0, 0), (0, 0, 0), other)
    ]
    assert torch.equal(draw[0], draw[1])
    assert not torch.allclose(draw[0], draw[2])


def test_gradients_equal_finite_differences():
    module = make()
    inputs = [module.weight, module.weight_b0_log_std, module.weight_b1_log_std]

    def loss(*_):
        with Draw(module, noise_generator(0, 0, 0)).used() as draw:
            return module.value("weight").square().sum() + draw.kl()

    assert torch.autograd.gradcheck(loss, inputs)


def test_kl_per_token_divides_once():
    assert kl_per_token(torch.tensor(8.0), num_train_tokens=4, weight=0.5) == 1.0
