"""Torch's fused LSTM with Gaussian-process activations and latent outputs."""

from __future__ import annotations

import functools
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple, Type, TypeVar

import torch
import torch.nn.functional as F
from torch import nn

from espnet_bayeslm.bayes import Weights
from espnet_bayeslm.bayes.kinds import Function, Output
from espnet_bayeslm.bayes.posterior import MEANS, is_random, refuse_mean
from espnet_bayeslm.kernels import KERNELS, has_kernel, tree_lstm
from espnet_bayeslm.kernels.product import warn_of_emulation
from espnet_bayeslm.layers.gp import initial_coefficients, mixture
from espnet_bayeslm.layers.latent import LatentOutput, linear_of, side_by_side
from espnet_bayeslm.layers.linear import linear
from espnet_bayeslm.utils.log_std import clamp_log_std

Basis = Tuple[str, ...]
# In the order of torch's rows: i, f, g, o.
GATES = ("input_gate", "forget_gate", "cell_input", "output_gate")
PARAMETERS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
# Positions on the input of all gates, and the suffix of their weights.
WHOLE = {"hidden_input": "hh", "layer_input": "ih"}
# Position -> activation function that a Gaussian process replaces; None where an LSTM is linear.
NATIVE = {
    "input_gate": "sigmoid",
    "forget_gate": "sigmoid",
    "cell_input": "tanh",
    "output_gate": "sigmoid",
    "cell_state": None,
    "hidden_input": None,
    "layer_input": None,
}
State = Tuple[torch.Tensor, torch.Tensor]
Run = TypeVar("Run", bound=Callable[..., Any])


UnitFunction = Callable[[torch.Tensor], torch.Tensor]
ACTIVATIONS: Dict[str, UnitFunction] = {
    gate: torch.tanh if NATIVE[gate] == "tanh" else torch.sigmoid for gate in GATES
}


class Whole(NamedTuple):
    """Part of the gates that comes from h_{t-1} or x_t: W x + b, and what a process adds to it.

    Attributes:
        weight: (4H, ...).
        bias: (4H,).
        process: (x, W x + b) -> sum_j lambda_j phi_j of the h-Gate or i-Gate, (..., 4H); None:
            the position has no Gaussian process.
    """

    weight: torch.Tensor
    bias: torch.Tensor
    process: Optional[Callable[[torch.Tensor, torch.Tensor], torch.Tensor]]


class Loop:
    """The functions of one layer's loop over time, with Gaussian processes (Eq. 4-9, 26).

    Args:
        lstm: The LSTM.
        k: The layer, from 0.
    """

    def __init__(self, lstm: LSTM, k: int):
        self.lstm, self.k = lstm, k
        self.input, self.hidden = self.whole("layer_input"), self.whole("hidden_input")
        self.cell_process = self.process("cell_state")
        if self.cell_process is not None:
            names = (f"gp_{name}_cell_state_l{k}" for name in ("weight", "bias"))
            self.cell_weights = [getattr(lstm, name) for name in names]
        self.functions = self.activations()

    def rows(self, parameter: str) -> torch.Tensor:
        """Rows of a parameter for all gates, (4H, ...)."""
        return getattr(self.lstm, f"{parameter}_l{self.k}")

    def coefficients(self, position: str) -> torch.Tensor:
        """Coefficients of a Gaussian process, (J, units)."""
        return getattr(self.lstm, f"gp_coefficients_{position}_l{self.k}")

    def process(self, position: str) -> Optional[UnitFunction]:
        """Function u -> sum_j lambda_j phi_j(u) of a position; None without a process."""
        basis = self.lstm.bases.get(f"{position}_l{self.k}")
        if basis is None:
            return None
        return functools.partial(mixture, coefficients=self.coefficients(position), basis=basis)

    def whole(self, position: str) -> Whole:
        """Weights and process of a position on the input of all gates."""
        process, suffix = self.process(position), WHOLE[position]
        added = None if process is None else lambda x, u: process(u)
        return Whole(self.rows(f"weight_{suffix}"), self.rows(f"bias_{suffix}"), added)

    def activations(self) -> List[UnitFunction]:
        """Activation function or Gaussian process of each gate."""
        return [self.process(gate) or ACTIVATIONS[gate] for gate in GATES]

    def gates_in(self, x: torch.Tensor) -> torch.Tensor:
        """Part of the gates that the inputs (L, B, M) and the biases make, (L, B, 4H)."""
        weight, bias, process = self.input
        # without a process on it the recurrent bias is added once, for all steps
        recurrent = self.hidden.bias if self.hidden.process is None else None
        if process is None:
            return linear(x, weight, bias if recurrent is None else bias + recurrent)
        u = linear(x, weight, bias)
        found = u + process(x, u)
        return found if recurrent is None else found + recurrent

    def recurrent_part(self, h: torch.Tensor) -> torch.Tensor:
        """Recurrent part of the gates: u = W h, or f(u) = u + sum_j lambda_j phi_j(u) (h-Gate)."""
        weight, bias, process = self.hidden
        if process is None:
            return F.linear(h, weight)
        u = F.linear(h, weight, bias)  # (B, 4H)
        return u + process(h, u)

    def gates(self, pre: torch.Tensor) -> List[torch.Tensor]:
        """Input gate, forget gate, cell input and output gate (Eq. 5, 4, 6, 7), (B, H) each."""
        parts = pre.chunk(len(self.functions), dim=1)
        return [function(x) for function, x in zip(self.functions, parts, strict=True)]

    def cell_part(self, c: torch.Tensor) -> torch.Tensor:
        """Factor of the forget gate: c, or f(c) = c + sum_j lambda_j phi_j(V c + b) (c-Gate)."""
        if self.cell_process is None:
            return c
        return c + self.cell_process(F.linear(c, *self.cell_weights))


class Latent(NamedTuple):
    """A latent output that recurs in the place of h_t (Eq. 33).

    Attributes:
        weight: Makes mean and log standard deviation of z_t from h_t, (2H, H).
        bias: (2H,).
        noise: (L, B, H); None for the mean.
    """

    weight: torch.Tensor
    bias: torch.Tensor
    noise: Optional[torch.Tensor]


def lstm_loop(
    loop: Loop, gates_in: torch.Tensor, state: State, latent: Optional[Latent] = None
) -> Tuple[torch.Tensor, State, List[torch.Tensor]]:
    """An LSTM layer over L steps (Eq. 4-9), with Gaussian processes and a latent output.

    Args:
        loop: The layer's functions.
        gates_in: Theta [x_t, 1] of the four gates, (L, B, 4H).
        state: h and c before the first step, (B, H).
        latent: The latent output.

    Returns:
        h_t (L, B, H); recurrent vector and c after the last step, (B, H); of a latent output mean
        and log standard deviation of each q(z_t), (B, 2H).
    """
    h, c = state
    hiddens, latents = [], []
    for t, of_input in enumerate(gates_in):
        i, f, g, o = loop.gates(of_input + loop.recurrent_part(h))  # of Theta [x_t, h_{t-1}, 1]
        c = f * loop.cell_part(c) + i * g  # Eq. 8
        h = o * torch.tanh(c)  # Eq. 9
        hiddens.append(h)
        if latent is not None:  # z_t recurs in the place of h_t
            q = F.linear(h, latent.weight, latent.bias)  # Eq. 33, (B, 2H)
            latents.append(q)
            h, log_std = q.chunk(2, dim=1)
            if latent.noise is not None:
                h = h + clamp_log_std(log_std).exp() * latent.noise[t]  # Eq. 22
    return torch.stack(hiddens), (h, c), latents


def gate_weights(rnn: str, gates: Sequence[str], gate: str) -> Tuple[Weights, ...]:
    """Weights of one of the gates, given in the order of torch's rows, of the LM's layer `rnn`."""
    part = (list(gates).index(gate), len(gates))
    return tuple(Weights(f"{rnn}.{name}_l{{k}}", part, gate) for name in PARAMETERS)


class LSTM(nn.LSTM):
    """`torch.nn.LSTM` with Gaussian processes and latent outputs (Eq. 4-9, 26, 29).

    Without these the fused kernel runs: no loop over time steps here. Otherwise it runs layer by
    layer.

    Attributes:
        bases: Basis functions of the Gaussian processes, by `{position}_l{layer from 0}`.
        loop: Class of a layer's loop.
    """

    loop: Type[Loop] = Loop

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.bases: Dict[str, Basis] = {}

    def function(self, position: str, layer: int) -> Function:
        """A function that a Gaussian process may replace, at a position of a layer (from 1).

        The gates have an activation function. At the other positions an LSTM is linear, and the
        mean function of the process is the identity: f(u) = u + sum_j lambda_j phi_j(u), all
        coefficients 0 at the start. There u is W_ih x + b_ih (`layer_input`) or W_hh h + b_hh
        (`hidden_input`), 4H units each; for `cell_state` f(c) = c + sum_j lambda_j phi_j(V c + b),
        V an identity at the start.
        """
        native, size, key = NATIVE[position], self.hidden_size, f"{position}_l{layer - 1}"

        def replace(basis: Basis) -> List[Weights]:
            units = 4 * size if position in WHOLE else size
            new = {f"gp_coefficients_{key}": initial_coefficients(units, basis, native)}
            if position == "cell_state":
                new[f"gp_weight_{key}"] = nn.Parameter(torch.eye(size))
                new[f"gp_bias_{key}"] = nn.Parameter(torch.zeros(size))
            for name, parameter in new.items():
                self.register_parameter(name, parameter)
            self.bases[key] = basis
            return [Weights(f"rnn.{name}", is_new=True) for name in new]

        weights: List[Weights] = []
        if position in GATES:
            offered = gate_weights("rnn", GATES, position)
            weights = [
                w._replace(pattern=w.pattern.replace("{k}", str(layer - 1))) for w in offered
            ]
        elif position in WHOLE:
            names = (f"{kind}_{WHOLE[position]}_l{layer - 1}" for kind in ("weight", "bias"))
            weights = [Weights(f"rnn.{name}") for name in names]
        return Function(native, weights, replace, "rnn")

    def output(self, layer: int) -> Output:
        """The output of a layer (from 1), which may become a latent variable."""

        def replace(latent: nn.Module) -> None:
            self.add_module(f"latent_l{layer - 1}", latent)

        return Output(self.hidden_size, True, replace)

    def reset(self) -> None:
        """Make every Gaussian process the function that it starts as."""
        for key, basis in self.bases.items():
            position, _, _ = key.rpartition("_l")
            coefficients = getattr(self, f"gp_coefficients_{key}")
            start = initial_coefficients(coefficients.size(1), basis, NATIVE[position])
            coefficients.data.copy_(start)
            if position == "cell_state":
                nn.init.eye_(getattr(self, f"gp_weight_{key}"))
                nn.init.zeros_(getattr(self, f"gp_bias_{key}"))

    def _latent(self, k: int) -> Optional[LatentOutput]:
        return getattr(self, f"latent_l{k}", None)

    def has_loop(self, k: int) -> bool:
        """True if layer k (from 0) needs its own loop over time steps."""
        latent = self._latent(k)
        feeds_back = latent is not None and latent.feedback
        has_process = any(key.endswith(f"_l{k}") for key in self.bases)
        return feeds_back or has_process

    def is_fused(self) -> bool:
        """True if torch's fused kernel computes all layers, as in an ordinary LSTM."""
        return not any(self.has_loop(k) or self._latent(k) for k in range(self.num_layers))

    def _values_in_use(self, names: List[str]) -> List[torch.Tensor]:
        """Weights in the order of the names.

        On CUDA a sample is views of one flat buffer, which cuDNN would otherwise make.
        """
        values = [getattr(self, name) for name in names]
        sampled = any(not isinstance(value, nn.Parameter) for value in values)
        if not (sampled and values[0].is_cuda):
            return values
        order = sorted(names, key=lambda name: name.startswith("bias"))
        flat = torch.cat([getattr(self, name).reshape(-1) for name in order])
        shapes = [getattr(self, name).shape for name in order]
        parts = flat.split([shape.numel() for shape in shapes])
        views = {name: p.view(shape) for name, p, shape in zip(order, parts, shapes, strict=True)}
        return [views[name] for name in names]

    def forward(
        self, input: torch.Tensor, hx: Optional[State] = None
    ) -> Tuple[torch.Tensor, State]:
        """Run the LSTM.

        Args:
            input: (B, L, input_size).
            hx: h and c, each (num_layers, B, hidden_size); default zeros.

        Returns:
            Outputs (B, L, hidden_size); recurrent vector h and cells c after the last step.
        """
        if not stays_precise(self):
            return self._forward(input, hx)
        with torch.autocast("cpu", enabled=False):
            dtype = self.all_weights[0][0].dtype
            return self._forward(
                input.to(dtype), None if hx is None else (hx[0].to(dtype), hx[1].to(dtype))
            )

    def _forward(self, input: torch.Tensor, hx: Optional[State]) -> Tuple[torch.Tensor, State]:
        if is_random(self):
            refuse_mean(self)
        is_fused = self.is_fused()
        if is_fused and not (self.weight_ih_l0.is_cuda and MEANS in vars(self)):
            return super().forward(input, hx)  # type: ignore[has-type]  # torch's overloads
        if hx is None:
            zeros = input.new_zeros(self.num_layers, input.size(0), self.hidden_size)
            hx = (zeros, zeros)
        if is_fused:
            names = self._flat_weights_names
            return self._fused(input, hx, names, self.num_layers, self.dropout)
        states = []
        for k in range(self.num_layers):
            if k > 0:
                input = F.dropout(input, self.dropout) if self.training else input
            run = self._loop_layer if self.has_loop(k) else self._fused_layer
            input, state = run(k, input, (hx[0][k], hx[1][k]))
            states.append(state)
        h, c = zip(*states, strict=True)
        return input, (torch.stack(h), torch.stack(c))

    def _fused(
        self, input: torch.Tensor, hx: State, names: List[str], num_layers: int, rate: float
    ) -> Tuple[torch.Tensor, State]:
        """Run layers by torch's fused kernel with the weights of these names."""
        weights = self._values_in_use(names)
        training, batch_first = self.training, self.batch_first
        output, h, c = torch.lstm(
            input, hx, weights, True, num_layers, rate, training, False, batch_first
        )
        return output, (h, c)

    def _fused_layer(self, k: int, input: torch.Tensor, state: State) -> Tuple[torch.Tensor, State]:
        """Run layer k, and its latent output, by torch's fused kernel."""
        names = [f"{name}_l{k}" for name in PARAMETERS]
        hx = (state[0].unsqueeze(0), state[1].unsqueeze(0))
        output, (h, c) = self._fused(input, hx, names, 1, 0.0)
        latent = self._latent(k)
        return output if latent is None else latent(output), (h[0], c[0])

    def _loop_layer(self, k: int, input: torch.Tensor, state: State) -> Tuple[torch.Tensor, State]:
        """Run layer k by our own loop."""
        latent, recurring = self._latent(k), None
        # the loop computes in the weights' precision, whatever autocast says
        with torch.autocast(input.device.type, enabled=False):
            dtype = self.all_weights[0][0].dtype
            x, h, c = (tensor.to(dtype) for tensor in (input.transpose(0, 1), *state))
            if latent is not None and latent.feedback:
                noise = latent.take_noise((*x.shape[:2], latent.dim), h)
                recurring = Latent(*side_by_side(latent.heads()[:2]), noise)
            loop = self.loop(self, k)
            output, state, latents = lstm_loop(loop, loop.gates_in(x), (h, c), recurring)
        if latent is None or recurring is None:
            output = output.transpose(0, 1)
            return output if latent is None else latent(output), state
        # p's networks need no loop
        rest = [linear_of(latent.heads()[2:], output)] if latent.wants_kl else []
        packed = torch.cat([torch.stack(latents), *rest], dim=-1).transpose(0, 1)
        noise = None if recurring.noise is None else recurring.noise.transpose(0, 1)
        return latent.sample(packed, noise), state


def stays_precise(lstm: nn.LSTM) -> bool:
    """True if an LSTM must compute in its weights' precision, because autocast's is missing."""
    if lstm.weight_ih_l0.device.type != "cpu" or not torch.is_autocast_enabled("cpu"):
        return False
    dtype = torch.get_autocast_dtype("cpu")
    if _has_fused(dtype):
        return False
    if dtype == torch.bfloat16:
        warn_of_emulation()
    return True


@functools.cache
@torch.no_grad()
def _has_fused(dtype: torch.dtype) -> bool:
    """True if torch's fused LSTM runs in this precision on this CPU, within the environment."""
    x, weight = torch.zeros(1, 1, 8), torch.zeros(32, 8)
    try:
        with torch.autocast("cpu", dtype=dtype):
            torch.lstm(x, (x, x), [weight, weight], False, 1, 0.0, False, False, True)
    except RuntimeError:
        return False
    return True


@has_kernel(tree_lstm.run_tree)
def run_tree(
    lstm: nn.LSTM,
    inputs: torch.Tensor,
    which: torch.Tensor,
    parents: torch.Tensor,
    levels: Sequence[slice],
    state: Optional[State] = None,
) -> Tuple[torch.Tensor, State]:
    """Run an LSTM over prefix trees, level by level: a node continues its parent's state.

    Args:
        lstm: The LSTM.
        inputs: The distinct inputs, (D, input_size).
        which: (T,), each node's input.
        parents: (T,), -1 for the roots, which are the first level.
        levels: The nodes of each depth.
        state: h and c before the roots, each (num_layers, roots, hidden_size); default zeros.

    Returns:
        The outputs (T, hidden_size); h and c after each node, (num_layers, T, hidden_size).
    """
    size = (lstm.num_layers, len(which), lstm.hidden_size)
    h, c = (inputs.new_empty(size) for _ in range(2))
    outputs = inputs.new_empty(len(which), lstm.hidden_size)
    for depth, level in enumerate(levels):
        before = state if depth == 0 else (h[:, parents[level]], c[:, parents[level]])
        y, (h[:, level], c[:, level]) = lstm(inputs[which[level]].unsqueeze(1), before)
        outputs[level] = y.squeeze(1)
    return outputs, (h, c)


@has_kernel(tree_lstm.run_step)
def run_step(lstm: nn.LSTM, inputs: torch.Tensor, state: State) -> Tuple[torch.Tensor, State]:
    """Run an LSTM for one step; inputs (B, input_size), otherwise as `run_tree`."""
    output, state = lstm(inputs.unsqueeze(1), state)
    return output.squeeze(1), state


def runner_for(lstm: nn.Module, run: Run) -> Run:
    """`run_tree` or `run_step`; plain where the kernel does not know the LSTM's function."""
    is_fused = lstm.is_fused() if isinstance(lstm, LSTM) else isinstance(lstm, nn.LSTM)
    return run if is_fused else KERNELS[run.__name__].plain  # type: ignore[return-value]
