"""Products, the feed-forward net and the blockwise cross-entropy."""

import math
import subprocess
import sys
import types

import pytest
import torch
import torch.nn.functional as F

from espnet_bayeslm.kernels import KERNELS, product
from espnet_bayeslm.kernels.product import linear, multiply
from espnet_bayeslm.layers import linear as vocabulary
from espnet_bayeslm.layers.linear import summed_nll
from espnet_bayeslm.layers.transformer import LEVELS, dropped, feed_forward

plain_nll = KERNELS["summed_nll"].plain

# (rows, in, out): the last is large enough for oneDNN
SIZES = [(3, 4, 8), (64, 256, 300), (96, 1024, 3000)]


@pytest.fixture
def onednn_calls(monkeypatch):
    """Counts the products that are large enough."""
    calls = []

    def has_onednn(dtype):
        calls.append(dtype)
        return dtype == torch.float32

    monkeypatch.setattr(product, "has_onednn", has_onednn)
    return calls


@pytest.mark.parametrize("sizes", [*SIZES, (3000, 1024, 96)])
def test_a_product_of_transposed_matrices(sizes, onednn_calls):
    torch.manual_seed(0)
    rows, inner, columns = sizes
    a, b = torch.randn(rows, inner), torch.randn(columns, inner)
    expected = a.double() @ b.double().t()
    for first in (a, a.t().contiguous().t()):
        for second in (b, b.t().contiguous().t()):
            found = multiply(first, second)
            assert found.is_contiguous()
            torch.testing.assert_close(found, expected.float(), rtol=1e-4, atol=1e-4)
    assert len(onednn_calls) == (4 if max(sizes) == 3000 else 0)


class TestKept:
    """Large weights stay packed, from block to block, and from search to search."""

    @pytest.fixture
    def calls(self, monkeypatch):
        found, pack = [], product._packed_product
        monkeypatch.setattr(
            product, "_packed_product", lambda w, *a, **k: found.append(w) or pack(w, *a, **k)
        )
        return found

    @torch.no_grad()
    def test_weights_are_packed_once_for_few_rows(self, calls):
        torch.manual_seed(0)
        weight, small = (torch.nn.Parameter(torch.randn(n, 512)) for n in (512, 511))
        x = torch.randn(5, 512)
        for search in (-3, -3, -2, -1):
            with product.keeping_packed(search):
                for w in (weight, small, weight.data):
                    torch.testing.assert_close(linear(x, w), x @ w.t(), rtol=1e-3, atol=1e-3)
        assert [w.data_ptr() for w in calls] == [weight.data_ptr()]
        weight.zero_()
        with product.keeping_packed(-4):
            assert not linear(x, weight).any()
        weight.data = weight.data.bfloat16()
        with product.keeping_packed(-6):
            assert linear(x.bfloat16(), weight).dtype == torch.bfloat16

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    @pytest.mark.parametrize("change", ["element", "columns", "rows", "order", "one column"])
    @torch.no_grad()
    def test_no_change_is_missed(self, change, dtype):
        """Of small integers, whose sums round nothing away, and which changes may leave."""
        torch.manual_seed(0)
        weight = torch.nn.Parameter(torch.randint(-3, 4, (512, 512)).to(dtype))
        x, values = torch.randn(5, 512).to(dtype), weight.data
        with product.keeping_packed(-7):
            linear(x, weight)
        if change == "element":
            values[7, 10] += 1
        elif change == "columns":
            values[:, [3, 4]] = values[:, [4, 3]]
        elif change == "rows":
            values[[3, 4]] = values[[4, 3]]
        elif change == "order":  # the sums of rows stay
            values.copy_(values.flip(1))
        else:
            values[::20, 10] += 0.25
        with product.keeping_packed(-8):
            found = linear(x, weight)
        torch.testing.assert_close(found, F.linear(x, weight), rtol=1e-2, atol=1e-2)

    def test_gradients_are_not_lost(self, calls):
        weight = torch.nn.Parameter(torch.randn(512, 512))
        with product.keeping_packed(-5):
            linear(torch.randn(5, 512), weight).sum().backward()
        assert weight.grad is not None and not calls


@pytest.mark.parametrize(("size", "is_packed"), [(128, True), (127, False)])
@torch.no_grad()
def test_large_weights_are_packed(size, is_packed, monkeypatch):
    """2 ** 14 of them on; a smaller matrix is multiplied as it is."""
    if not product.has_onednn(torch.float32):
        pytest.skip("torch without oneDNN's operators")
    weight, x = torch.randn(size, size), torch.randn(3, size)
    expected, plain = F.linear(x, weight), []
    monkeypatch.setattr(F, "linear", lambda *args: plain.append(args) or args[0] @ args[1].t())
    found = product._packed_product(weight, 3)(x)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert len(plain) == (not is_packed)


@pytest.mark.parametrize("operator", ["_reorder_linear_weight", "_linear_pointwise"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_without_onednns_operators(operator, dtype, monkeypatch):
    """They are private: a torch may come without them."""

    class Without:
        def __getattr__(self, name):
            if name == operator:
                raise AttributeError(name)
            return getattr(mkldnn, name)

    mkldnn = torch.ops.mkldnn
    product.has_onednn.cache_clear()
    monkeypatch.setattr(torch.ops, "mkldnn", Without())
    try:
        assert not product.has_onednn(dtype)
        x, weight = torch.randn(600, 512).to(dtype), torch.randn(1024, 512).to(dtype)
        expected = x.double() @ weight.double().t()
        close = dict(rtol=2e-2, atol=0.5) if dtype == torch.bfloat16 else dict(rtol=1e-3, atol=1e-3)
        with torch.no_grad():
            torch.testing.assert_close(linear(x, weight).double(), expected, **close)
            torch.testing.assert_close(multiply(x, weight).double(), expected, **close)
            with product.keeping_packed(-5):
                found = linear(x[:3], torch.nn.Parameter(weight))
            torch.testing.assert_close(found.double(), expected[:3], **close)
    finally:
        product.has_onednn.cache_clear()


LEVEL = 26214
RATE = LEVEL / LEVELS  # 0.4


def tensors():
    torch.manual_seed(0)
    sizes = ((2, 3, 4), (7, 4), (7,), (4, 7), (4,))
    return [torch.randn(*size, dtype=torch.float64, requires_grad=True) for size in sizes]


def test_it_is_the_net_of_its_parts():
    """With the same units dropped."""
    leaves = x, weight1, bias1, weight2, bias2 = tensors()
    torch.manual_seed(1)
    found = feed_forward(*leaves, dropout_rate=RATE)
    hidden = F.gelu(F.linear(x, weight1, bias1))
    torch.manual_seed(1)
    kept = 1 - dropped(hidden.detach().flatten(0, 1), LEVEL).view_as(hidden)
    plain = F.linear(hidden * kept / (1 - RATE), weight2, bias2)
    results = [(y, *torch.autograd.grad(y.sin().sum(), leaves)) for y in (found, plain)]
    torch.testing.assert_close(*results, rtol=1e-12, atol=1e-12)
    assert not torch.allclose(found, feed_forward(*leaves, dropout_rate=0.0))


def test_the_net_under_autocast_and_its_memory():
    """Only the inputs of GELU, (N, D), and of the net, (N, M), are kept for the backward pass."""
    leaves = [x.detach().float().requires_grad_() for x in tensors()]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = feed_forward(*leaves, dropout_rate=0.0)
    assert y.dtype == torch.bfloat16
    expected = feed_forward(*leaves, dropout_rate=0.0)
    torch.testing.assert_close(y.float(), expected, rtol=0.05, atol=0.1)
    y.float().sum().backward()
    assert all(x.grad is not None and x.grad.dtype == torch.float32 for x in leaves)
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


def test_the_least_rate_drops_some_units():
    """One of 65,536, of a million: none are left in one of ten million runs."""
    torch.manual_seed(0)
    x, weights = torch.randn(256, 8), [torch.randn(4096, 8), torch.randn(4096)]
    weights += [torch.ones(8, 4096), torch.zeros(8)]
    fast = KERNELS["feed_forward"].kernel
    without, least = (fast(x, *weights, dropout_rate=rate) for rate in (0.0, 1 / LEVELS))
    lost = without - least * (1 - 1 / LEVELS)
    assert 1 <= lost.abs().gt(1e-2).any(1).sum() < 100


def output_tensors(num_tokens=23, size=5, vocab=11, dtype=torch.float64):
    torch.manual_seed(1)
    outputs = torch.randn(num_tokens, size, dtype=dtype, requires_grad=True)
    weight = torch.randn(vocab, size, dtype=dtype, requires_grad=True)
    bias = torch.randn(vocab, dtype=dtype, requires_grad=True)
    return outputs, weight, bias, torch.randint(vocab, (num_tokens,))


def test_gradients_are_computed_once_and_large_logits_and_no_tokens_too():
    *leaves, targets = output_tensors()
    found = summed_nll(*leaves, targets)
    found.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="call it again"):
        found.backward()
    outputs, weight, bias = (x.detach() for x in leaves)
    found = summed_nll(1e4 * outputs, weight, bias, targets)
    torch.testing.assert_close(found, plain_nll(1e4 * outputs, weight, bias, targets))
    assert summed_nll(outputs[:0], weight, bias, targets[:0]) == 0


def test_sums_are_in_single_precision(monkeypatch):
    monkeypatch.setattr(vocabulary, "CPU_ROWS", 64)
    *leaves, targets = output_tensors(200, 16, 50, torch.float32)
    expected = plain_nll(*leaves, targets)
    with torch.autocast("cpu", torch.bfloat16):
        found = summed_nll(*leaves, targets)
    assert found.dtype == torch.float32
    assert found.item() == pytest.approx(expected.item(), rel=5e-3)
    for ours, theirs in zip(
        torch.autograd.grad(found, leaves), torch.autograd.grad(expected, leaves), strict=True
    ):
        assert ours.dtype == torch.float32
        assert (ours - theirs).norm() < 0.02 * theirs.norm()
    *leaves, targets = output_tensors(40, 8, 20, torch.float32)
    halves = [x.detach().bfloat16().requires_grad_() for x in leaves]
    found = summed_nll(*halves, targets)
    assert found.dtype == torch.float32
    assert [g.dtype for g in torch.autograd.grad(found, halves)] == [torch.bfloat16] * 3


def test_the_logits_of_a_batch_never_live_all_at_once(monkeypatch):
    tokens, size, vocab, rows = 512, 8, 3000, 64
    monkeypatch.setattr(vocabulary, "CPU_ROWS", rows)
    *leaves, targets = output_tensors(tokens, size, vocab, torch.float32)
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


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_types_that_onednn_is_not_asked_for(dtype):
    product.has_onednn.cache_clear()
    assert not product.has_onednn(dtype)


def test_the_question_starts_no_threads():
    """OpenMP hangs in a process that is forked from one with its threads."""
    script = """
import os, torch
from espnet_bayeslm.kernels.product import has_onednn
torch.set_num_threads(4)
before = len(os.listdir("/proc/self/task"))
has_onednn(torch.float32), has_onednn(torch.bfloat16)
print(len(os.listdir("/proc/self/task")) - before, torch.get_num_threads())
"""
    found = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert found.stdout.split() == ["0", "4"]


@pytest.mark.parametrize("size", [1000, 30_000, 200_000])
def test_blocks_of_other_devices_fill_their_memory_up_to_a_bound(monkeypatch, size):
    rows = []
    monkeypatch.setattr(vocabulary._SummedNLL, "apply", lambda *given: rows.append(given[4]))
    outputs = types.SimpleNamespace(device=torch.device("cuda"))
    vocabulary._fast_nll(outputs, torch.empty(size, 0), None, None)
    assert vocabulary.DEVICE_SIZE / 2 < rows[0] * size <= vocabulary.DEVICE_SIZE
