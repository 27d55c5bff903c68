"""Torch's fused GRU with random gates."""

from __future__ import annotations

from typing import List, Optional, Tuple

import torch
from torch import nn

from espnet_bayeslm.bayes import UncertainModule, Weights

# In the order of torch's rows: r, z, n.
GRU_GATES = ("reset_gate", "update_gate", "new_gate")
PARAMETERS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


class UncertainGRU(UncertainModule, nn.GRU):
    """`torch.nn.GRU`, of whose gates the weights may be random, one draw for all time steps."""

    def gate_weights(self, gate: str, layer: int) -> List[Weights]:
        """The weights of one of `GRU_GATES` in a layer (from 1)."""
        row = GRU_GATES.index(gate) * self.hidden_size
        rows = (row, row + self.hidden_size)
        return [Weights(self, f"{name}_l{layer - 1}", rows, gate) for name in PARAMETERS]

    def forward(
        self, input: torch.Tensor, hx: Optional[torch.Tensor] = None
    ) -> Tuple[torch.Tensor, torch.Tensor]:
        """Run the GRU.

        Args:
            input: (B, L, input_size).
            hx: h, (num_layers, B, hidden_size); default zeros.

        Returns:
            Outputs (B, L, hidden_size), and h after the last step.
        """
        if not self.is_drawn:
            return super().forward(input, hx)  # type: ignore[has-type]  # torch's overloads
        if hx is None:
            hx = input.new_zeros(self.num_layers, input.size(0), self.hidden_size)
        weights = [self.value(name) for name in self._flat_weights_names]
        options = (self.num_layers, self.dropout, self.training, False, self.batch_first)
        return torch.gru(input, hx, weights, True, *options)
