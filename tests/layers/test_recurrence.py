"""The LSTM loop against a step-by-step oracle, torch's LSTM and finite differences."""

import pytest
import torch
from lstm_plain import plain_layer
from torch.autograd import gradcheck

from espnet_bayeslm.layers import GATES
from espnet_bayeslm.layers.activation import BASIS
from espnet_bayeslm.layers.loop import Bases, LoopInputs
from espnet_bayeslm.layers.product import packed_linear, product
from espnet_bayeslm.layers.recurrence import lstm_loop

STEPS, BATCH, UNITS = 4, 3, 5
POSITIONS = [
    (),
    *[(gate,) for gate in GATES],
    GATES,
    ("hidden_input",),
    ("cell_state",),
    ("cell_input", "hidden_input", "cell_state"),
    ("latent",),
    ("latent_mean",),
    ("latent", "cell_state", "output_gate"),
]


def rand(*size):
    # small: far within the clamp of log standard deviations, which the oracle does not have
    return (0.4 * torch.randn(*size, dtype=torch.float64)).requires_grad_()


def loop_case(positions):
    """Return the loop's inputs, its basis functions and the oracle's Gaussian processes."""
    torch.manual_seed(0)
    # each its own basis, in an order of its own
    bases = {p: BASIS[k % 3 :] for k, p in enumerate((*GATES, "hidden_input", "cell_state"))}
    values, gp = {}, {}
    for position in positions:
        if position.startswith("latent"):
            values |= dict(latent_weight=rand(2 * UNITS, UNITS), latent_bias=rand(2 * UNITS))
            if position == "latent":
                values["noise"] = torch.randn(STEPS, BATCH, UNITS, dtype=torch.float64)
            continue
        units = 4 * UNITS if position == "hidden_input" else UNITS
        values[position] = rand(len(bases[position]), units)
        gp[position] = (values[position], bases[position])
    if "hidden_input" in gp:
        values["hidden_bias"] = rand(4 * UNITS)
    if "cell_state" in gp:
        values |= dict(cell_weight=rand(UNITS, UNITS), cell_bias=rand(UNITS))
        gp["cell_state"] += (values["cell_weight"], values["cell_bias"])
    inputs = LoopInputs(
        rand(STEPS, BATCH, 4 * UNITS),
        rand(BATCH, UNITS),
        rand(BATCH, UNITS),
        rand(4 * UNITS, UNITS),
        **values,
    )
    loop_bases = Bases(
        tuple(bases[g] if g in gp else () for g in GATES),
        bases["hidden_input"],
        bases["cell_state"],
    )
    return inputs, loop_bases, gp


@pytest.fixture(params=POSITIONS, ids=lambda p: "+".join(p) or "plain")
def case(request):
    return loop_case(request.param)


def oracle(inputs, gp):
    eye = torch.eye(4 * UNITS, dtype=torch.float64)
    zeros = torch.zeros(4 * UNITS, dtype=torch.float64)
    bias = zeros if inputs.hidden_bias is None else inputs.hidden_bias
    latent = None
    if inputs.latent_weight is not None:
        latent = (inputs.latent_weight, inputs.latent_bias)
    return plain_layer(
        inputs.gates_in,
        inputs.h,
        inputs.c,
        (eye, inputs.weight, zeros, bias),
        gp,
        latent,
        inputs.noise,
    )


def test_values_and_gradients_equal_the_oracle(case):
    inputs, bases, gp = case
    output, h, c, _ = lstm_loop(inputs, bases)
    expected = oracle(inputs, gp)
    assert torch.allclose(output, expected[0], atol=1e-13)
    assert torch.allclose(h, expected[2], atol=1e-13)
    assert torch.allclose(c, expected[3], atol=1e-13)
    leaves = [tensor for tensor in inputs if tensor is not None and tensor.requires_grad]
    weights = [torch.randn_like(tensor) for tensor in (output, h, c)]
    outputs = [(output, h, c), (expected[0], expected[2], expected[3])]
    ours, theirs = (
        torch.autograd.grad(
            sum((a * w).sum() for a, w in zip(values, weights, strict=True)), leaves
        )
        for values in outputs
    )
    for a, b in zip(ours, theirs, strict=True):
        assert torch.allclose(a, b, atol=1e-11)


def test_gradcheck(case):
    inputs, bases, _ = case

    def function(*tensors):
        outputs = lstm_loop(LoopInputs(*tensors), bases)
        return tuple(value for value in outputs if value is not None)

    assert gradcheck(function, tuple(inputs), atol=1e-6)


def test_without_processes_it_is_torchs_lstm():
    torch.manual_seed(0)
    lstm = torch.nn.LSTM(6, UNITS).double()
    x, h, c = rand(STEPS, BATCH, 6), rand(BATCH, UNITS), rand(BATCH, UNITS)
    gates_in = torch.nn.functional.linear(x, lstm.weight_ih_l0, lstm.bias_ih_l0 + lstm.bias_hh_l0)
    output, h_last, c_last, packed = lstm_loop(
        LoopInputs(gates_in, h, c, lstm.weight_hh_l0), Bases()
    )
    expected, (h_expected, c_expected) = lstm(x, (h[None], c[None]))
    assert packed is None
    assert torch.allclose(output, expected, atol=1e-13)
    assert torch.allclose(h_last, h_expected[0], atol=1e-13)
    assert torch.allclose(c_last, c_expected[0], atol=1e-13)


@pytest.mark.parametrize("shape", [(2048, 512), (8, 4)])
def test_packed_weights_give_the_product(shape):
    torch.manual_seed(0)
    weight, x = torch.randn(*shape), torch.randn(3, shape[1])
    assert torch.allclose(product(weight, 3)(x), x @ weight.t(), rtol=1e-4, atol=1e-3)


def test_packed_linear():
    torch.manual_seed(0)
    tensors = rand(3, 2, 4), rand(8, 4), rand(8)
    assert torch.allclose(packed_linear(*tensors), torch.nn.functional.linear(*tensors))
    assert gradcheck(packed_linear, tensors)


def test_packed_linear_in_float32():
    """Large enough for oneDNN."""
    torch.manual_seed(0)
    tensors = [torch.randn(*size, requires_grad=True) for size in ((3, 2, 256), (512, 256), (512,))]
    results = []
    for function in (packed_linear, torch.nn.functional.linear):
        y = function(*tensors)
        results.append((y, *torch.autograd.grad(y.sin().sum(), tensors)))
    for a, b in zip(*results, strict=True):
        assert torch.allclose(a, b, rtol=1e-3, atol=1e-3)
