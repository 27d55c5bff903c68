"""Mixtures of basis functions against autograd, and what they refuse."""

import pytest
import torch

from espnet_bayeslm.layers.gp import (
    BASIS,
    FUNCTIONS,
    GPActivation,
    check_gp_options,
    initial_coefficients,
)


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
