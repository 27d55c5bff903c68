"""Gathers the tensors of an LSTM layer's loop from the layer's parameters."""

from __future__ import annotations

from typing import Any, Dict, Optional, Sequence, Tuple

import torch

from espnet_bayeslm.kernels import fast
from espnet_bayeslm.kernels.lstm_tensors import Basis, Layout, LoopInputs, Path
from espnet_bayeslm.layers.gp import mixture
from espnet_bayeslm.layers.linear import linear

# In the order of torch's rows: i, f, g, o.
GATES = ("input_gate", "forget_gate", "cell_input", "output_gate")


class LayerTensors:
    """The tensors of one layer.

    Args:
        lstm: An `UncertainLSTM`.
        k: The layer, from 0.
    """

    def __init__(self, lstm: Any, k: int):
        self.lstm, self.k = lstm, k

    def basis(self, position: str) -> Basis:
        """The basis functions at a position; none without a Gaussian process."""
        return self.lstm.bases.get(f"{position}_l{self.k}", ())

    def coefficients(self, position: str) -> torch.Tensor:
        """The coefficients of a Gaussian process, (J, units)."""
        return self.lstm.value(f"gp_coefficients_{position}_l{self.k}")

    def rows(self, parameter: str) -> torch.Tensor:
        """The rows of all gates' paths, (PH, ...)."""
        return self.lstm.value(f"{parameter}_l{self.k}")

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
            return fast(linear)(input, weight, own if bias is None else own + bias)
        u = fast(linear)(input, weight, own)
        mixed = u + fast(mixture)(u, self.coefficients("layer_input"), basis)
        return mixed if bias is None else mixed + bias

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
            recurrence, bias = self.recurrence()
            gates_in = self.gates_in(input, bias)
        paths = self.paths()
        h, c = (s.to(dtype) for s in state)
        more = {**recurrence, **self.cell_state()}
        coefficients = self.gate_coefficients(paths)
        inputs = LoopInputs(gates_in, h, c, shares=self.shares(), coefficients=coefficients, **more)
        processes = self.basis("hidden_input"), self.basis("cell_state")
        return inputs, Layout(paths, *processes)
