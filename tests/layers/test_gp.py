"""Mixtures of basis functions against autograd, and what they refuse."""

import pytest
import torch

from espnet_bayeslm.kernels.gp import mixture
from espnet_bayeslm.layers.gp import (
    BASIS,
    FUNCTIONS,
    GPActivation,
    check_gp_options,
    initial_coefficients,
)


def test_chunks_of_rows_change_nothing(monkeypatch):
    torch.manual_seed(0)
    x = torch.randn(100, 8, dtype=torch.float64, requires_grad=True)
    coefficients = torch.randn(4, 8, dtype=torch.float64, requires_grad=True)
    results = []
    for chunk in (1, 64, 1 << 20):
        monkeypatch.setattr("espnet_bayeslm.kernels.gp.CHUNK", chunk)
        y = mixture(x, coefficients, BASIS)
        results.append((y, *torch.autograd.grad(y.sin().sum(), (x, coefficients))))
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            assert torch.allclose(a, b, atol=1e-13)


@pytest.mark.parametrize("native", BASIS)
def test_it_starts_as_the_function_it_replaces(native):
    x = torch.randn(11, 6)
    expected = FUNCTIONS[native](x)
    assert torch.allclose(GPActivation(6, native)(x), expected, atol=3e-7)


def test_coefficients_start_at_zero_where_nothing_is_replaced():
    assert not initial_coefficients(3, BASIS).any()


@pytest.mark.parametrize(
    ("random", "basis", "said"),
    [
        (["coeficients"], BASIS, "random of .*coefficients, weights"),
        (["weights"], [], "basis of"),
        ("weights", BASIS, "random of"),
        (["weights", "weights"], BASIS, "each once"),
        (["weights"], ["tanh", "swish"], "basis of .*sigmoid, tanh, relu, gelu.*swish"),
        (["weights"], [], "basis of"),
        (["weights"], [["tanh"]], "basis of"),
        (["weights"], ["relu"], "must hold tanh"),
    ],
)
def test_bad_options(random, basis, said):
    with pytest.raises(ValueError, match=said):
        check_gp_options("cell_input@1", random, basis, native="tanh")
