"""Gathers the tensors of an LSTM layer's loop from the layer's parameters."""

from __future__ import annotations

from typing import Any, Dict, NamedTuple, Optional, Sequence, Tuple

import torch

from espnet_bayeslm.bayes.noise import random_signs
from espnet_bayeslm.kernels import fast
from espnet_bayeslm.kernels.lstm_tensors import Basis, Layout, LoopInputs, Path, add_to_gates
from espnet_bayeslm.layers.gp import mixture
from espnet_bayeslm.layers.linear import flipout, linear

# In the order of torch's rows: i, f, g, o.
GATES = ("input_gate", "forget_gate", "cell_input", "output_gate")


class Signs(NamedTuple):
    """The random signs of B sequences at some gates (flipout).

    One draw D of the deviations of Theta_gate is D * (r_n s_n^T) in sequence n, at all of its time
    steps, where s_n = [signs of x, signs of h, 1]: the biases have the signs r_n.

    Attributes:
        gates: Numbers of the R gates, ascending.
        inputs: Of x, (B, M).
        hidden: Of h, (B, H).
        outputs: r_n, (B, RH).
    """

    gates: Tuple[int, ...]
    inputs: torch.Tensor
    hidden: torch.Tensor
    outputs: torch.Tensor


class LayerTensors:
    """The tensors of one layer.

    Args:
        lstm: An `UncertainLSTM`.
        k: The layer, from 0.
    """

    def __init__(self, lstm: Any, k: int):
        self.lstm, self.k = lstm, k
        self.signs: Optional[Signs] = None

    def draw_signs(self, input: torch.Tensor) -> Optional[Signs]:
        """New signs for the sequences of an input (L, B, M), where the layer has flipout."""
        gates, size = self.lstm.flipped_gates(self.k), self.lstm.hidden_size
        if not gates:
            return None
        batch, generator = input.size(1), self.lstm.draw.generator
        sizes = (input.size(2), size, len(gates) * size)
        return Signs(gates, *(random_signs((batch, n), generator, like=input) for n in sizes))

    def basis(self, position: str) -> Basis:
        """The basis functions at a position; none without a Gaussian process."""
        return self.lstm.bases.get(f"{position}_l{self.k}", ())

    def coefficients(self, position: str) -> torch.Tensor:
        """The coefficients of a Gaussian process, (J, units)."""
        return self.lstm.value(f"gp_coefficients_{position}_l{self.k}")

    def rows(self, parameter: str) -> torch.Tensor:
        """The rows of all gates' paths, (PH, ...), of gates with flipout their mean."""
        name = f"{parameter}_l{self.k}"
        if self.signs is None:
            return self.lstm.value(name)
        return self.lstm.drawn_value(name, noise="shared")

    def deviation(self, parameter: str) -> torch.Tensor:
        """What the draw is away from its mean in the gates with flipout, (RH, ...)."""
        assert self.signs is not None
        name, gates = f"{parameter}_l{self.k}", self.signs.gates
        drawn, mean = self.lstm.drawn_value(name, noise="flipout"), getattr(self.lstm, name)
        parts = zip(drawn.chunk(len(GATES)), mean.chunk(len(GATES)), strict=True)
        found = [d - m for gate, (d, m) in enumerate(parts) if gate in gates]
        return found[0] if len(found) == 1 else torch.cat(found)

    def paths(self) -> Tuple[Path, ...]:
        """The paths of the gates."""
        return tuple(Path(number, self.basis(gate)) for number, gate in enumerate(GATES))

    def gate_coefficients(self, paths: Sequence[Path]) -> Optional[torch.Tensor]:
        """The coefficients of all gates' paths, (sum of J, H)."""
        parts = [self.coefficients(GATES[path.gate]) for path in paths if path.basis]
        return torch.cat(parts) if parts else None

    def recurrence(self) -> Tuple[Dict[str, Any], Optional[torch.Tensor]]:
        """What the loop does with what recurs, and the bias that is added to the inputs, (PH,)."""
        weight, bias = self.rows("weight_hh"), self.rows("bias_hh")
        if not self.basis("hidden_input"):
            return {"weight": weight}, bias
        coefficients = self.coefficients("hidden_input")
        return {"weight": weight, "hidden_bias": bias, "hidden_input": coefficients}, None

    def gates_in(self, input: torch.Tensor, bias: Optional[torch.Tensor]) -> torch.Tensor:
        """What inputs (L, B, M) and biases contribute to the paths, (L, B, PH).

        Args:
            input: The inputs.
            bias: What the recurrence adds outside of a Gaussian process, (PH,).
        """
        weight, own, basis = self.rows("weight_ih"), self.rows("bias_ih"), self.basis("layer_input")
        if not basis:
            own = own if bias is None else own + bias
            return self.flip(input, fast(linear)(input, weight, own))
        u = self.flip(input, fast(linear)(input, weight, own))
        mixed = u + fast(mixture)(u, self.coefficients("layer_input"), basis)
        return mixed if bias is None else mixed + bias

    def flip(self, input: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
        """Add what a sequence's own draw adds to W_ih x + b_ih, both (L, B, PH)."""
        signs = self.signs
        if signs is None:
            return u
        deviations = self.deviation("weight_ih"), self.deviation("bias_ih")
        more = flipout(input, *deviations, signs.inputs, signs.outputs)
        return add_to_gates(u, signs.gates, more)

    def flipped_recurrence(self) -> Dict[str, Any]:
        """The recurrent weights' deviations and their signs."""
        if self.signs is None:
            return {}
        return {
            "deviation": self.deviation("weight_hh"),
            "deviation_bias": self.deviation("bias_hh"),
            "signs_in": self.signs.hidden,
            "signs_out": self.signs.outputs,
        }

    def cell_state(self) -> Dict[str, Any]:
        """The Gaussian process on the cells."""
        if not self.basis("cell_state"):
            return {}
        value, key = self.lstm.value, f"cell_state_l{self.k}"
        return {
            "cell_weight": value(f"gp_weight_{key}"),
            "cell_bias": value(f"gp_bias_{key}"),
            "cell_state": self.coefficients("cell_state"),
        }

    def shares(self) -> Optional[torch.Tensor]:
        """Each path's share of its gate, (P,); None: a gate has one path."""
        return None

    def inputs(
        self, input: torch.Tensor, state: Tuple[torch.Tensor, torch.Tensor]
    ) -> Tuple[LoopInputs, Layout]:
        """The loop's tensors and what they mean; input (L, B, M)."""
        # the loop computes in the weights' precision, whatever autocast says
        dtype = self.lstm.weight_hh_l0.dtype
        with torch.autocast(input.device.type, enabled=False):
            input = input.to(dtype)
            self.signs = self.draw_signs(input)
            recurrence, bias = self.recurrence()
            gates_in = self.gates_in(input, bias)
            flipped = self.flipped_recurrence()
        paths = self.paths()
        h, c = (s.to(dtype) for s in state)
        more = {**recurrence, **self.cell_state(), **flipped}
        coefficients = self.gate_coefficients(paths)
        inputs = LoopInputs(gates_in, h, c, shares=self.shares(), coefficients=coefficients, **more)
        processes = self.basis("hidden_input"), self.basis("cell_state")
        return inputs, Layout(paths, *processes, self.lstm.flipped_gates(self.k))
