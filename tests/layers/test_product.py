"""Products with gradients: large ones are oneDNN's."""

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import gradcheck

from espnet_bayeslm.layers import product
from espnet_bayeslm.layers.product import linear, multiply

# (rows, in, out): the last is large enough for oneDNN
SIZES = [(3, 4, 8), (64, 256, 300), (96, 1024, 3000)]


@pytest.fixture
def onednn_calls(monkeypatch):
    """Counts the products that are large enough."""
    calls = []

    def has_onednn(dtype):
        calls.append(dtype)
        return dtype == torch.float32

    monkeypatch.setattr(product, "_has_onednn", has_onednn)
    return calls


@pytest.mark.parametrize("sizes", SIZES)
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
    assert len(onednn_calls) == (4 if sizes == SIZES[-1] else 0)


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("gelu", [True, False])
def test_linear_with_gradients(sizes, bias, gelu, onednn_calls):
    torch.manual_seed(0)
    rows, inner, columns = sizes
    leaves = [torch.randn(3, rows // 3, inner), torch.randn(columns, inner) / inner**0.5]
    leaves += [torch.randn(columns)] if bias else []
    found, expected = [], []
    for function, results in ((linear, found), (F.linear, expected)):
        inputs = [leaf.clone().requires_grad_() for leaf in leaves]
        y = function(*inputs, **(dict(gelu=gelu) if function is linear else {}))
        y = F.gelu(y) if gelu and function is F.linear else y
        results += [y, *torch.autograd.grad(y.sin().sum(), inputs)]
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)
    assert bool(onednn_calls) == (sizes == SIZES[-1])


def test_only_wanted_gradients_are_computed():
    x, weight = torch.randn(96, 1024), torch.randn(3000, 1024, requires_grad=True)
    bias = torch.zeros(3000)
    y = linear(x, weight, bias)
    assert "_Linear" in y.grad_fn.name()
    y.sum().backward()
    torch.testing.assert_close(weight.grad, x.sum(0).expand_as(weight), rtol=1e-4, atol=1e-3)


def test_double_precision_has_the_right_gradients():
    leaves = [
        torch.randn(*size, dtype=torch.float64, requires_grad=True)
        for size in ((3, 2, 4), (8, 4), (8,))
    ]
    assert gradcheck(linear, leaves)
    assert gradcheck(lambda *x: product._Linear.apply(*x), leaves)
