"""The LSTM loop against finite differences."""

import pytest
import torch
from torch.autograd import gradcheck
from torch.func import functional_call

from espnet_bayeslm.layers.gp import BASIS, mixture
from espnet_bayeslm.layers.lstm import GATES
from espnet_bayeslm.lm import BayesLSTMLM

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
