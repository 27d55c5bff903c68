"""Torch's fused LSTM with random gates, Gaussian-process activations and latent outputs."""

from __future__ import annotations

from typing import Dict, List, Optional, Tuple

import torch
import torch.nn.functional as F
from torch import nn

from espnet_bayeslm.bayes import UncertainModule
from espnet_bayeslm.layers.activation import (
    BASIS,
    RANDOM,
    check_gp_options,
    initial_coefficients,
    mixture,
)
from espnet_bayeslm.layers.latent import LatentOutput, linear_of, side_by_side
from espnet_bayeslm.layers.loop import Bases, Basis, LoopInputs
from espnet_bayeslm.layers.product import packed_linear
from espnet_bayeslm.layers.recurrence import lstm_loop
from espnet_bayeslm.utils.errors import InputError

# In the order of torch's rows: i, f, g, o.
GATES = ("input_gate", "forget_gate", "cell_input", "output_gate")
# What a Gaussian process replaces there; the other three are linear in an LSTM.
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


class UncertainLSTM(UncertainModule, nn.LSTM):
    """`torch.nn.LSTM` with uncertain locations (Eq. 4-9, 26, 29, Xue et al. 2022).

    Without Gaussian processes and latent outputs a draw of the weights goes into one flat buffer
    in cuDNN's order (all matrices, then all biases), and the fused kernel runs on views of it:
    one draw for all time steps, no loop over them here. Otherwise it runs layer by layer.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.bases: Dict[str, Basis] = {}

    def make_gate_random(self, gate: str, layer: int, **posterior) -> None:
        """Make a gate of a layer (from 1) random; options as `make_random`."""
        row = GATES.index(gate) * self.hidden_size
        for parameter in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
            self.make_random(
                f"{parameter}_l{layer - 1}",
                rows=(row, row + self.hidden_size),
                label=gate,
                **posterior,
            )

    def make_gp(
        self, position: str, layer: int, *, random=RANDOM, basis=BASIS, location: str, **posterior
    ) -> None:
        """Make a Gaussian process of what is at a position of a layer (from 1).

        It starts as the function it replaces. The gates replace their activation function. The
        others are linear in an LSTM and get the identity as the process' mean function:
        f(u) = u + sum_j lambda_j phi_j(u), all coefficients 0 at the start, where u is
        W_ih x + b_ih (`layer_input`) or W_hh h + b_hh (`hidden_input`), 4H units each; for
        `cell_state` f(c) = c + sum_j lambda_j phi_j(V c + b), V an identity at the start.

        Args:
            position: One of `NATIVE`.
            layer: From 1.
            random: Of `coefficients` and `weights`, what is random.
            basis: Names of the basis functions.
            location: The location it belongs to.
            **posterior: As `make_random`.
        """
        native, size, k = NATIVE[position], self.hidden_size, layer - 1
        random, basis = check_gp_options(location, random, basis, native=native)
        units = 4 * size if position in ("hidden_input", "layer_input") else size
        name = f"gp_coefficients_{position}_l{k}"
        self.register_parameter(name, initial_coefficients(units, basis, native))
        self.bases[f"{position}_l{k}"] = basis
        if position == "cell_state":
            self.register_parameter(f"gp_weight_{position}_l{k}", nn.Parameter(torch.eye(size)))
            self.register_parameter(f"gp_bias_{position}_l{k}", nn.Parameter(torch.zeros(size)))
        posterior["location"] = location
        if "coefficients" in random:
            self.make_random(name, **posterior)
        if "weights" in random and position in GATES:
            self.make_gate_random(position, layer, **posterior)
        elif "weights" in random:
            for kind in ("weight", "bias"):
                parameter = {
                    "cell_state": f"gp_{kind}_{position}",
                    "hidden_input": f"{kind}_hh",
                    "layer_input": f"{kind}_ih",
                }[position]
                self.make_random(f"{parameter}_l{k}", **posterior)

    def reset_function(self) -> None:
        """Make every Gaussian process the function that it starts as."""
        for key, basis in self.bases.items():
            position, _, _ = key.rpartition("_l")
            coefficients = getattr(self, f"gp_coefficients_{key}")
            start = initial_coefficients(coefficients.size(1), basis, NATIVE[position])
            coefficients.data.copy_(start)
            if position == "cell_state":
                nn.init.eye_(getattr(self, f"gp_weight_{key}"))
                nn.init.zeros_(getattr(self, f"gp_bias_{key}"))

    def make_latent(self, layer: int, *, feedback: bool = False, **options) -> None:
        """Make the output of a layer (from 1) a latent variable.

        Args:
            layer: From 1.
            feedback: Whether z_t takes the place of h_t in the next time step too, or only for
                what is above.
            **options: As `LatentOutput`.
        """
        latent = LatentOutput(self.hidden_size, **options)
        if not isinstance(feedback, bool) or (feedback and latent.back is not None):
            raise InputError(
                f"feedback of {latent.location}: expected true or false, and true only with"
                f" latent_dim {self.hidden_size}, got {feedback!r}"
            )
        self.add_module(f"latent_l{layer - 1}", latent)
        latent.feedback = feedback

    def _latent(self, k: int) -> Optional[LatentOutput]:
        return getattr(self, f"latent_l{k}", None)

    def _has_loop(self, k: int) -> bool:
        """Return whether layer k (from 0) needs the loop of its own."""
        latent = self._latent(k)
        return any(key.endswith(f"_l{k}") for key in self.bases) or (
            latent is not None and latent.feedback
        )

    def _by_layer(self) -> bool:
        return any(self._has_loop(k) or self._latent(k) for k in range(self.num_layers))

    def _flat_values(self, names: List[str]) -> List[torch.Tensor]:
        """Return weights, or their draw, in the order of the names, views of one flat buffer."""
        order = sorted(names, key=lambda name: name.startswith("bias"))
        flat = torch.cat([piece.reshape(-1) for name in order for piece in self.pieces(name)])
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
            Outputs (B, L, hidden_size), and h (what recurs) and c after the last step.
        """
        by_layer = self._by_layer()
        if not by_layer and not self.noise:
            return super().forward(input, hx)
        if hx is None:
            zeros = input.new_zeros(self.num_layers, input.size(0), self.hidden_size)
            hx = (zeros, zeros)
        if not by_layer:
            names = self._flat_weights_names
            return self._fused(input, hx, names, self.num_layers, self.dropout)
        states = []
        for k in range(self.num_layers):
            if k > 0:
                input = F.dropout(input, self.dropout, self.training)
            run = self._loop_layer if self._has_loop(k) else self._fused_layer
            input, state = run(k, input, (hx[0][k], hx[1][k]))
            states.append(state)
        h, c = zip(*states, strict=True)
        return input, (torch.stack(h), torch.stack(c))

    def _fused(
        self, input: torch.Tensor, hx: State, names: List[str], num_layers: int, dropout: float
    ) -> Tuple[torch.Tensor, State]:
        """Run layers by torch's fused kernel with the weights of these names."""
        random = any(block.parameter in names for block in self.random_blocks) and self.noise
        weights = self._flat_values(names) if random else [getattr(self, n) for n in names]
        training, batch_first = self.training, self.batch_first
        output, h, c = torch._VF.lstm(
            input, hx, weights, True, num_layers, dropout, training, False, batch_first
        )
        return output, (h, c)

    def _fused_layer(self, k: int, input: torch.Tensor, state: State) -> Tuple[torch.Tensor, State]:
        """Run layer k, and its latent output, by torch's fused kernel."""
        names = [f"{name}_l{k}" for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
        hx = (state[0].unsqueeze(0), state[1].unsqueeze(0))
        output, (h, c) = self._fused(input, hx, names, 1, 0.0)
        latent = self._latent(k)
        return output if latent is None else latent(output), (h[0], c[0])

    def _loop_layer(self, k: int, input: torch.Tensor, state: State) -> Tuple[torch.Tensor, State]:
        """Run layer k by our own loop."""
        tensors, bases = self._loop_inputs(k, input.transpose(0, 1), state)
        latent = self._latent(k)
        feeds_back = latent is not None and latent.feedback
        if feeds_back:
            noise = latent.take_noise((*tensors.gates_in.shape[:2], latent.dim), tensors.h)
            weight, bias = side_by_side(latent.heads()[:2])
            tensors = tensors._replace(latent_weight=weight, latent_bias=bias, noise=noise)
        output, h, c, packed = lstm_loop(tensors, bases)
        if feeds_back:
            # p's networks need no loop
            rest = [linear_of(latent.heads()[2:], output)] if latent.wants_kl else []
            output = latent.sample(
                torch.cat([packed, *rest], dim=-1).transpose(0, 1), _batch(noise)
            )
        else:
            output = output.transpose(0, 1)
            output = output if latent is None else latent(output)
        return output, (h, c)

    def _loop_inputs(self, k: int, input: torch.Tensor, state: State) -> Tuple[LoopInputs, Bases]:
        """Return the tensors and the basis functions of layer k's loop; input (L, B, M)."""
        # the loop computes in the weights' precision, whatever autocast says
        dtype = self.weight_hh_l0.dtype
        with torch.autocast(input.device.type, enabled=False):
            w_ih, b_ih, b_hh = (
                self.value(f"{name}_l{k}") for name in ("weight_ih", "bias_ih", "bias_hh")
            )
            hidden_bias = b_hh if f"hidden_input_l{k}" in self.bases else None
            gates_in = self._gates_in(k, input.to(dtype), w_ih, b_ih, b_hh)
        values = {
            position: self.value(f"gp_coefficients_{position}_l{k}")
            for position in (*GATES, "hidden_input", "cell_state")
            if f"{position}_l{k}" in self.bases
        }
        if "cell_state" in values:
            values["cell_weight"] = self.value(f"gp_weight_cell_state_l{k}")
            values["cell_bias"] = self.value(f"gp_bias_cell_state_l{k}")
        weight = self.value(f"weight_hh_l{k}")
        h, c = (s.to(dtype) for s in state)
        bases = Bases(
            tuple(self.bases.get(f"{gate}_l{k}", ()) for gate in GATES),
            self.bases.get(f"hidden_input_l{k}", ()),
            self.bases.get(f"cell_state_l{k}", ()),
        )
        return LoopInputs(gates_in, h, c, weight, hidden_bias=hidden_bias, **values), bases

    def _gates_in(
        self,
        k: int,
        input: torch.Tensor,
        weight: torch.Tensor,
        b_ih: torch.Tensor,
        b_hh: torch.Tensor,
    ) -> torch.Tensor:
        """Return what the layer's inputs and biases contribute to the gates, (L, B, 4H)."""
        # b_hh is within the process on h_t where there is one
        outside = torch.zeros_like(b_hh) if f"hidden_input_l{k}" in self.bases else b_hh
        if f"layer_input_l{k}" not in self.bases:
            return packed_linear(input, weight, b_ih + outside)
        u = packed_linear(input, weight, b_ih)
        coefficients = self.value(f"gp_coefficients_layer_input_l{k}")
        return u + mixture(u, coefficients, self.bases[f"layer_input_l{k}"]) + outside


def _batch(x: Optional[torch.Tensor]) -> Optional[torch.Tensor]:
    """(L, B, H) -> (B, L, H)."""
    return None if x is None else x.transpose(0, 1)
