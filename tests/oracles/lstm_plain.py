"""LSTM layers step by step as in Eq. 4-9 and 24-34 of Xue et al. 2022, by autograd."""

import torch
import torch.nn.functional as F

BASIS = {"sigmoid": torch.sigmoid, "tanh": torch.tanh, "relu": F.relu, "gelu": F.gelu}
GATES = ("input_gate", "forget_gate", "cell_input", "output_gate")
NATIVE = dict(zip(GATES, ("sigmoid", "tanh", "tanh", "sigmoid"), strict=True))
NATIVE["forget_gate"] = "sigmoid"


def mixture(x, coefficients, basis):
    return sum(row * BASIS[name](x) for name, row in zip(basis, coefficients, strict=True))


def plain_gates(pre, gp, paths, shares):
    """Eq. 35: the four gates of what goes into them and into further paths of theirs."""
    functions = [gp.get(gate) for gate in GATES] + [function for _, function in paths]
    owners = [*GATES, *(gate for gate, _ in paths)]
    values = dict.fromkeys(GATES, 0.0)
    for n, (gate, function, x) in enumerate(
        zip(owners, functions, pre.chunk(len(owners), dim=1), strict=True)
    ):
        value = mixture(x, *function) if function else BASIS[NATIVE[gate]](x)
        values[gate] = values[gate] + (value if shares is None else shares[n] * value)
    return values


def plain_layer(x, h, c, weights, gp, latent=None, noise=None, paths=(), shares=None, apart=None):
    """x: (L, B, M). gp: {position: (coefficients, basis, ...)}. Returns h_t, z_t, last h, c.

    paths: (gate, its Gaussian process or None) of further paths; their rows follow the gates'.
    apart: weight, bias, coefficients and basis of a Gaussian process beside the recurrence.
    """
    w_ih, w_hh, b_ih, b_hh = weights
    hs, recurrent = [], []
    for t in range(len(x)):
        u, v = F.linear(x[t], w_ih, b_ih), F.linear(h, w_hh, b_hh)
        if "layer_input" in gp:
            u = u + mixture(u, *gp["layer_input"])
        if "hidden_input" in gp:
            v = v + mixture(v, *gp["hidden_input"])
        if apart is not None:
            w = mixture(F.linear(h, *apart[:2]), *apart[2:]).chunk(4, dim=1)
            v = v + torch.cat([*w, *(w[GATES.index(gate)] for gate, _ in paths)], dim=1)
        values = plain_gates(u + v, gp, paths, shares)
        if "cell_state" in gp:
            coefficients, basis, weight, bias = gp["cell_state"]
            c = c + mixture(F.linear(c, weight, bias), coefficients, basis)
        c = values["forget_gate"] * c + values["input_gate"] * values["cell_input"]
        h = values["output_gate"] * torch.tanh(c)
        hs.append(h)
        if latent is not None:
            mean, log_std = F.linear(h, *latent).chunk(2, dim=1)
            h = mean if noise is None else mean + log_std.exp() * noise[t]
        recurrent.append(h)
    return torch.stack(hs), torch.stack(recurrent), h, c
