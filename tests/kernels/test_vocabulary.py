"""The blockwise cross-entropy equals the plain one."""

import pytest
import torch

from espnet_bayeslm.kernels import KERNELS
from espnet_bayeslm.layers import linear as vocabulary
from espnet_bayeslm.layers.linear import summed_nll

plain = KERNELS["summed_nll"].plain


def tensors(num_tokens=23, size=5, vocab=11, dtype=torch.float64):
    torch.manual_seed(1)
    outputs = torch.randn(num_tokens, size, dtype=dtype, requires_grad=True)
    weight = torch.randn(vocab, size, dtype=dtype, requires_grad=True)
    bias = torch.randn(vocab, dtype=dtype, requires_grad=True)
    return outputs, weight, bias, torch.randint(vocab, (num_tokens,))


@pytest.mark.parametrize("rows", [1, 4, 23, 100, None])
@pytest.mark.parametrize("cached", [1, 30, None])
def test_value_and_gradients_equal_the_plain_ones(rows, cached, monkeypatch):
    if rows is not None:
        monkeypatch.setattr(vocabulary, "CPU_ROWS", rows)
    if cached is not None:
        monkeypatch.setattr(vocabulary, "CACHE_SIZE", cached)
    *leaves, targets = tensors()
    expected = plain(*leaves, targets)
    found = summed_nll(*leaves, targets)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(
        torch.autograd.grad(2.5 * found, leaves),
        torch.autograd.grad(2.5 * expected, leaves),
        rtol=1e-10,
        atol=1e-12,
    )


def test_gradients_are_computed_once():
    *leaves, targets = tensors()
    found = summed_nll(*leaves, targets)
    found.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="call it again"):
        found.backward()


def test_large_logits_and_no_tokens():
    *leaves, targets = tensors()
    outputs, weight, bias = (x.detach() for x in leaves)
    found = summed_nll(1e4 * outputs, weight, bias, targets)
    torch.testing.assert_close(found, plain(1e4 * outputs, weight, bias, targets))
    assert summed_nll(outputs[:0], weight, bias, targets[:0]) == 0


def test_under_autocast_sums_are_in_single_precision(monkeypatch):
    monkeypatch.setattr(vocabulary, "CPU_ROWS", 64)
    *leaves, targets = tensors(200, 16, 50, torch.float32)
    expected = plain(*leaves, targets)
    with torch.autocast("cpu", torch.bfloat16):
        found = summed_nll(*leaves, targets)
    assert found.dtype == torch.float32
    assert found.item() == pytest.approx(expected.item(), rel=5e-3)
    for ours, theirs in zip(
        torch.autograd.grad(found, leaves), torch.autograd.grad(expected, leaves), strict=True
    ):
        assert ours.dtype == torch.float32
        assert (ours - theirs).norm() < 0.02 * theirs.norm()


def test_weights_in_half_precision_have_gradients_of_their_own_type():
    *leaves, targets = tensors(40, 8, 20, torch.float32)
    halves = [x.detach().bfloat16().requires_grad_() for x in leaves]
    found = summed_nll(*halves, targets)
    assert found.dtype == torch.float32
    assert [g.dtype for g in torch.autograd.grad(found, halves)] == [torch.bfloat16] * 3


def test_the_logits_of_a_batch_never_live_all_at_once(monkeypatch):
    tokens, size, vocab, rows = 512, 8, 3000, 64
    monkeypatch.setattr(vocabulary, "CPU_ROWS", rows)
    *leaves, targets = tensors(tokens, size, vocab, torch.float32)
    with torch.profiler.profile(profile_memory=True) as profile:
        summed_nll(*leaves, targets).backward()
    peak = used = 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            used += event.nbytes()
            peak = max(peak, used)
    # two blocks' worth and the gradients; the logits of all are 6.1 MB
    assert 0 < peak < 3 * rows * vocab * 4 + 8 * (vocab + tokens) * (size + 1) * 4
    assert peak < tokens * vocab * 4 / 2
