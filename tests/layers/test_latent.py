"""Latent outputs: their KL, their start and their noise."""

import contextlib

import pytest
import torch
from torch.distributions import Normal, kl_divergence

from espnet_bayeslm.layers.latent import LatentOutput, LatentSampling

SIZE = 6


def build(**options):
    torch.manual_seed(0)
    return LatentOutput(SIZE, location="hidden_output@1", **{"init_std": 0.1, **options}).double()


def make_generic(latent):
    for parameter in latent.parameters():
        parameter.data += 0.2 * torch.randn_like(parameter)
    return latent


def hidden(batch=3, length=4):
    return torch.randn(batch, length, SIZE, dtype=torch.float64)


def generator():
    return torch.Generator().manual_seed(1)


@contextlib.contextmanager
def sampling(latent, **how):
    """Sample in some way within the block."""
    latent.sampling = LatentSampling(**how)
    try:
        yield latent.sampling
    finally:
        latent.sampling = None


def kl_of(latent, h):
    """Compute the KL of each token, (B, L), at the mean."""
    with sampling(latent, wants_kl=True) as found:
        latent(h)
        return found.kl


def test_kl_of_a_token_equals_torch_distributions():
    latent, h = make_generic(build()), hidden()
    kl = kl_of(latent, h)
    q = Normal(latent.infer_mean(h), latent.infer_log_std(h).exp())
    p = Normal(latent.prior_mean(h), latent.prior_log_std(h).exp())
    assert torch.allclose(kl, kl_divergence(q, p).sum(-1), rtol=1e-10)


def test_under_autocast_the_kl_is_in_single_precision():
    """Means in bfloat16, divided by small deviations, would be off by far more."""
    latent = make_generic(build(init_std=0.03)).float()
    h = 1.5 * hidden(7, 30).float()
    exact = kl_of(latent, h)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = kl_of(latent, h)
    torch.testing.assert_close(found, exact, rtol=1e-5, atol=1e-5)


def test_it_starts_with_a_kl_of_zero_and_no_gradient():
    latent, h = build(), hidden()
    kl = kl_of(latent, h)
    assert torch.equal(kl, torch.zeros(3, 4, dtype=torch.float64))
    gradients = torch.autograd.grad(kl.sum(), list(latent.parameters()))
    assert all(gradient.abs().max() < 1e-12 for gradient in gradients)


@pytest.mark.parametrize("latent_dim", [None, SIZE, 1, 4, 9])
def test_it_starts_as_the_identity(latent_dim):
    latent, h = build(latent_dim=latent_dim), hidden()
    assert torch.equal(latent(h), h)
    # with noise on the units that are replaced
    with sampling(latent, generator=generator()):
        difference = (latent(h) - h).detach()
    replaced = min(latent_dim or SIZE, SIZE)
    assert difference[..., :replaced].std() == pytest.approx(0.1, rel=0.4)
    assert not difference[..., replaced:].any()


def test_tokens_are_drawn_as_they_come_and_a_held_draw_is_one():
    latent, h = build(), hidden()
    with sampling(latent, generator=generator()):
        first = latent(h)
        assert not torch.equal(first, h) and not torch.equal(latent(h), first)
    with sampling(latent, held=latent.held_noise(generator())):
        first = latent(h)
        assert torch.equal(latent(h), first) and not torch.equal(first, h)
    assert torch.equal(latent(h), h)


def test_an_observer_sees_mean_and_standard_deviation():
    latent, h = make_generic(build()), hidden()
    seen = []
    latent.observer = lambda mean, std: seen.append((mean, std))
    latent(h)
    ((mean, std),) = seen
    assert torch.allclose(mean, latent.infer_mean(h), atol=1e-14)
    assert torch.allclose(std, latent.infer_log_std(h).exp(), atol=1e-14)


def test_no_gradient_outside_the_range_of_standard_deviations():
    latent, h = build(), hidden()
    torch.nn.init.constant_(latent.infer_log_std.bias, -30.0)
    torch.nn.init.constant_(latent.prior_log_std.bias, 9.0)
    with sampling(latent, generator=generator(), wants_kl=True) as found:
        (latent(h).sum() + found.kl.sum()).backward()
    assert not latent.infer_log_std.bias.grad.any()
    assert not latent.prior_log_std.bias.grad.any()
    assert torch.isfinite(latent.infer_mean.weight.grad).all()
