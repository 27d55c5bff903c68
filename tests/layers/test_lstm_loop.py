"""The LSTM loop against torch's LSTM and finite differences."""

import pytest
import torch
from torch.autograd import gradcheck

from espnet_bayeslm.kernels.gp import BASIS
from espnet_bayeslm.kernels.gp import mixture as fast_mixture
from espnet_bayeslm.layers import GATES
from espnet_bayeslm.layers.gp import mixture as plain_mixture
from espnet_bayeslm.layers.lstm import lstm_loop
from espnet_bayeslm.layers.lstm_tensors import Layout, LoopInputs, Path

STEPS, BATCH, UNITS = 3, 2, 3
POSITIONS = [
    GATES,
    ("cell_input", "hidden_input", "cell_state"),
    ("latent", "cell_state", "output_gate"),
    # a search: further paths of gates, with their own or a mixture as activation
    ("path:cell_input", "gp_path:input_gate", "apart", "output_gate"),
]


def rand(*size):
    # small: far within the clamp of log standard deviations, which the oracle does not have
    return (0.4 * torch.randn(*size, dtype=torch.float64)).requires_grad_()


def loop_case(positions):
    """The loop's inputs and what they mean."""
    torch.manual_seed(0)
    # each its own basis, in an order of its own
    bases = {p: BASIS[k % 3 :] for k, p in enumerate((*GATES, "hidden_input", "cell_state"))}
    values, gp, paths, layout = {}, {}, [], Layout()
    size = (4 + sum("path:" in position for position in positions)) * UNITS
    for position in positions:
        name, _, gate = position.partition(":")
        if name == "latent":
            values |= dict(latent_weight=rand(2 * UNITS, UNITS), latent_bias=rand(2 * UNITS))
            values["noise"] = torch.randn(STEPS, BATCH, UNITS, dtype=torch.float64)
        elif gate:
            function = (rand(2, UNITS), BASIS[1:3]) if name == "gp_path" else None
            paths.append((gate, function))
        elif name == "apart":
            values["hidden_input"] = rand(4, 4 * UNITS)
            values |= dict(hidden_weight=rand(4 * UNITS, UNITS), hidden_bias=rand(4 * UNITS))
            layout = layout._replace(hidden_input=BASIS)
        else:
            units = size if name == "hidden_input" else UNITS
            gp[name] = (rand(len(bases[name]), units), bases[name])
    for name in ("hidden_input", "cell_state"):
        if name in gp:
            values[name] = gp[name][0]
            layout = layout._replace(**{name: gp[name][1]})
    if "hidden_input" in gp:
        values["hidden_bias"] = rand(size)
    if "cell_state" in gp:
        values |= dict(cell_weight=rand(UNITS, UNITS), cell_bias=rand(UNITS))
    functions = [gp.get(gate) for gate in GATES] + [function for _, function in paths]
    owners = [*GATES, *(gate for gate, _ in paths)]
    layout = layout._replace(
        paths=tuple(
            Path(GATES.index(gate), function[1] if function else ())
            for gate, function in zip(owners, functions, strict=True)
        )
    )
    if any(functions):
        values["coefficients"] = torch.cat([f[0].detach() for f in functions if f]).requires_grad_()
    if paths:
        values["shares"] = rand(size // UNITS)
    inputs = LoopInputs(
        rand(STEPS, BATCH, size),
        rand(BATCH, UNITS),
        rand(BATCH, UNITS),
        rand(size, UNITS),
        **values,
    )
    return inputs, layout


@pytest.mark.parametrize("positions", POSITIONS, ids="+".join)
def test_gradcheck(positions):
    inputs, layout = loop_case(positions)

    def function(*tensors):
        outputs = lstm_loop(LoopInputs(*tensors), layout)
        return tuple(value for value in outputs if value is not None)

    assert gradcheck(function, tuple(inputs), atol=1e-6)


def test_without_processes_it_is_torchs_lstm():
    torch.manual_seed(0)
    lstm = torch.nn.LSTM(6, UNITS).double()
    x, h, c = rand(STEPS, BATCH, 6), rand(BATCH, UNITS), rand(BATCH, UNITS)
    gates_in = torch.nn.functional.linear(x, lstm.weight_ih_l0, lstm.bias_ih_l0 + lstm.bias_hh_l0)
    output, h_last, c_last, packed = lstm_loop(
        LoopInputs(gates_in, h, c, lstm.weight_hh_l0), Layout()
    )
    expected, (h_expected, c_expected) = lstm(x, (h[None], c[None]))
    assert packed is None
    assert torch.allclose(output, expected, atol=1e-13)
    assert torch.allclose(h_last, h_expected[0], atol=1e-13)
    assert torch.allclose(c_last, c_expected[0], atol=1e-13)


@pytest.mark.parametrize("beyond, limit", [(9.0, 4.0), (-30.0, -20.0)])
def test_a_standard_deviation_that_is_fed_back_is_clamped(beyond, limit):
    """Outside of its range it is that at its end, and has no gradient."""
    inputs, layout = loop_case(("latent",))
    weight = inputs.latent_weight.detach().clone()
    weight[UNITS:] = 0.0
    outputs, gradients = [], []
    for log_std in (beyond, limit):
        bias = inputs.latent_bias.detach().clone()
        bias[UNITS:] = log_std
        bias.requires_grad_()
        output = lstm_loop(inputs._replace(latent_weight=weight, latent_bias=bias), layout)[0]
        outputs.append(output)
        gradients.append(torch.autograd.grad(output.sin().sum(), bias)[0])
    assert torch.equal(*outputs)
    assert torch.equal(gradients[0][:UNITS], gradients[1][:UNITS])
    assert not gradients[0][UNITS:].any() and gradients[1][UNITS:].all()


def test_gradients_of_coefficients_are_summed_in_single_precision():
    """Of many tokens in bfloat16, as the plain layer's are."""
    torch.manual_seed(0)
    x = torch.randn(700, 512, dtype=torch.bfloat16)
    upper = 1e-3 * torch.randn(700, 512).bfloat16() + 5e-4
    coefficients = torch.randn(len(BASIS), 512)
    found = []
    for mixture, dtype in ((plain_mixture, torch.float32), (fast_mixture, torch.bfloat16)):
        given = coefficients.clone().requires_grad_()
        mixture(x.to(dtype), given, BASIS).backward(upper.to(dtype))
        found.append(given.grad)
    exact, fast = found
    assert ((fast - exact).norm(dim=1) / exact.norm(dim=1)).max() < 0.02
