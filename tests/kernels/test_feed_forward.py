"""The feed-forward net's one function, and its dropout."""

import math

import pytest
import torch
import torch.nn.functional as F

from espnet_bayeslm.layers.transformer import LEVELS, dropped, feed_forward

LEVEL = 26214
RATE = LEVEL / LEVELS  # 0.4


def tensors():
    torch.manual_seed(0)
    sizes = ((2, 3, 4), (7, 4), (7,), (4, 7), (4,))
    return [torch.randn(*size, dtype=torch.float64, requires_grad=True) for size in sizes]


def with_seed(*args):
    torch.manual_seed(1)
    return feed_forward(*args, dropout_rate=RATE)


def plain(x, weight1, bias1, weight2, bias2):
    """With the same units dropped."""
    hidden = F.gelu(F.linear(x, weight1, bias1))
    torch.manual_seed(1)
    kept = 1 - dropped(hidden.detach().flatten(0, 1), LEVEL).view_as(hidden)
    return F.linear(hidden * kept / (1 - RATE), weight2, bias2)


def test_it_is_the_net_of_its_parts():
    leaves = tensors()
    results = [
        (y := f(*leaves), *torch.autograd.grad(y.sin().sum(), leaves)) for f in (with_seed, plain)
    ]
    torch.testing.assert_close(*results, rtol=1e-12, atol=1e-12)
    assert not torch.allclose(results[0][0], feed_forward(*leaves, dropout_rate=0.0))


def test_under_autocast_it_is_in_low_precision():
    leaves = [x.detach().float().requires_grad_() for x in tensors()]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = feed_forward(*leaves, dropout_rate=0.0)
    assert y.dtype == torch.bfloat16
    expected = feed_forward(*leaves, dropout_rate=0.0)
    torch.testing.assert_close(y.float(), expected, rtol=0.05, atol=0.1)
    y.float().sum().backward()
    assert all(x.grad is not None and x.grad.dtype == torch.float32 for x in leaves)


def test_little_is_kept_for_the_backward_pass():
    """What goes into GELU, and what the net gets: (N, D) and (N, M)."""
    kept = []
    x, *weights = (
        torch.randn(*size, requires_grad=True) for size in ((50, 4), (64, 4), (64,), (4, 64), (4,))
    )
    pointers = {w.data_ptr() for w in weights}
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        feed_forward(x, *weights, dropout_rate=RATE)
    sizes = sorted(t.numel() for t in kept if t.data_ptr() not in pointers)
    assert sizes == [50 * 4, 50 * 64]


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.5, 0.999, 1.0])
def test_units_are_dropped_with_the_probability_asked_for(rate):
    torch.manual_seed(0)
    x = torch.ones(201, 499)
    mask = dropped(x, round(rate * LEVELS))
    assert mask.shape == x.shape and set(mask.unique().tolist()) <= {0.0, 1.0}
    deviation = math.sqrt(rate * (1 - rate) / x.numel())
    assert abs(mask.mean().item() - rate) <= 4.5 * deviation + 2**-17
    # neighbours, which share a random word, know nothing of each other
    for shift in (1, 2, 3, 4):
        a, b = mask.flatten()[shift:], mask.flatten()[:-shift]
        assert (
            abs((a * b).mean().item() - rate**2)
            <= 4.5 * math.sqrt(rate**2 * (1 - rate**2) / len(a)) + 1e-4
        )
