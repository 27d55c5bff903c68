"""Latent outputs: their KL, start and noise; the LSTM loop against finite differences."""

import contextlib

import pytest
import torch
from torch.autograd import gradcheck
from torch.distributions import Normal, kl_divergence
from torch.func import functional_call

from espnet_bayeslm.kinds.gp import BASIS, mixture
from espnet_bayeslm.kinds.variational import LatentOutput, LatentSampling
from espnet_bayeslm.layers.lstm import GATES
from espnet_bayeslm.layers.transformer import TransformerBlock
from espnet_bayeslm.lm import BayesLSTMLM

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


def test_the_kl_of_a_token():
    """Means in bfloat16, divided by small deviations, would be off by far more."""
    latent, h = make_generic(build()), hidden()
    kl = kl_of(latent, h)
    q = Normal(latent.infer_mean(h), latent.infer_log_std(h).exp())
    p = Normal(latent.prior_mean(h), latent.prior_log_std(h).exp())
    assert torch.allclose(kl, kl_divergence(q, p).sum(-1), rtol=1e-10)
    latent, h = build(), hidden()
    kl = kl_of(latent, h)
    assert torch.equal(kl, torch.zeros(3, 4, dtype=torch.float64))
    gradients = torch.autograd.grad(kl.sum(), list(latent.parameters()))
    assert all(gradient.abs().max() < 1e-12 for gradient in gradients)
    latent = make_generic(build(init_std=0.03)).float()
    h = 1.5 * hidden(7, 30).float()
    exact = kl_of(latent, h)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = kl_of(latent, h)
    torch.testing.assert_close(found, exact, rtol=1e-5, atol=1e-5)


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


def test_tokens_are_drawn_as_they_come_and_observed():
    latent, h = build(), hidden()
    with sampling(latent, generator=generator()):
        first = latent(h)
        assert not torch.equal(first, h) and not torch.equal(latent(h), first)
    with sampling(latent, held=latent.held_noise(generator())):
        first = latent(h)
        assert torch.equal(latent(h), first) and not torch.equal(first, h)
    assert torch.equal(latent(h), h)
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


def test_autocast_where_torch_has_no_lstm_of_that_precision(monkeypatch):
    """The CPU lacks its instructions: the LSTM computes in the precision of its weights."""
    monkeypatch.setattr("espnet_bayeslm.layers.lstm.has_onednn", lambda dtype: False)
    lm, ids = BayesLSTMLM(12, unit=8, dropout_rate=0.0).eval(), torch.tensor([[11, 3, 4, 5]])
    with torch.no_grad():
        expected, _ = lm.rnn(lm.encoder(ids))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found, _ = lm.rnn(lm.encoder(ids).bfloat16())
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, atol=1e-2, rtol=0)


STEPS, BATCH, UNITS = 3, 2, 2
SEARCHED = {
    "cell_input@1": {"kind": "search", "candidates": ["point", "bayes"]},
    "input_gate@1": {"kind": "search", "candidates": ["bayes", "gp"]},
    "hidden_input@1": {"kind": "search", "candidates": ["point", "gp"]},
    "output_gate@1": "gp",
}
POSITIONS = [
    dict.fromkeys((f"{gate}@1" for gate in GATES), "gp"),
    dict.fromkeys(("cell_input@1", "hidden_input@1", "layer_input@1", "cell_state@1"), "gp"),
    SEARCHED,
]


def rand(*size):
    # small: far within the clamp of log standard deviations, which the oracle does not have
    return (0.4 * torch.randn(*size, dtype=torch.float64)).requires_grad_()


@pytest.mark.parametrize("uncertainty", POSITIONS, ids="+".join)
def test_gradcheck(uncertainty):
    torch.manual_seed(0)
    layer = BayesLSTMLM(7, unit=UNITS, nlayers=1, uncertainty=uncertainty).double().eval().rnn
    parameters = {
        name: rand(*value.shape)
        for name, value in layer.named_parameters()
        if not name.endswith("log_std")
    }

    def function(x, h, c, *values):
        given = dict(zip(parameters, values, strict=True))
        output, state = functional_call(layer, given, (x, (h, c)))
        return output, *state

    state = rand(1, BATCH, UNITS), rand(1, BATCH, UNITS)
    inputs = (rand(BATCH, STEPS, UNITS), *state, *parameters.values())
    assert gradcheck(function, inputs, atol=1e-6)


def test_gradients_of_coefficients_are_summed_in_single_precision():
    """Of many tokens in bfloat16."""
    torch.manual_seed(0)
    x = torch.randn(700, 512, dtype=torch.bfloat16)
    upper = 1e-3 * torch.randn(700, 512).bfloat16() + 5e-4
    coefficients = torch.randn(len(BASIS), 512)
    found = []
    for dtype in (torch.float32, torch.bfloat16):
        given = coefficients.clone().requires_grad_()
        mixture(x.to(dtype), given, BASIS).backward(upper.to(dtype))
        found.append(given.grad)
    exact, low = found
    assert ((low - exact).norm(dim=1) / exact.norm(dim=1)).max() < 0.02


def test_a_pass_without_gradients_drops_the_units_of_the_pass_with_them():
    """A checkpointed pass runs twice, and the second one has gradients."""
    block = TransformerBlock(8, 32, dropout_rate=0.5, norm_first=False)
    x, passes = torch.randn(3, 8), []
    for learns in (False, True):
        torch.manual_seed(1)
        with torch.set_grad_enabled(learns):
            passes.append(block(x, lambda query, key, value: value).detach())
    torch.testing.assert_close(*passes)
