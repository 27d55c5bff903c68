"""Torch's fused GRU with random gates."""

from __future__ import annotations

from typing import Any, Optional, Tuple

import torch
from torch import nn

from espnet_bayeslm.bayes import UncertainModule
from espnet_bayeslm.utils.errors import InputError

# In the order of torch's rows: r, z, n.
GRU_GATES = ("reset_gate", "update_gate", "new_gate")
PARAMETERS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


class UncertainGRU(UncertainModule, nn.GRU):
    """`torch.nn.GRU`, of whose gates the weights may be random, one draw for all time steps."""

    def make_gate_random(
        self, gate: str, layer: int, *, location: str, copy: bool = False, **posterior: Any
    ) -> None:
        """Make a gate of a layer (from 1) random.

        Args:
            gate: One of `GRU_GATES`.
            layer: From 1.
            location: The location it belongs to.
            copy: Whether a path of a search is, which a GRU does not have.
            **posterior: As `make_random`.

        Raises:
            InputError: It is for a search.
        """
        if copy:
            raise InputError(
                f"{location}: a search needs the gates of an LSTM, this LM is a GRU",
                remedy="Choose kind point or bayes.",
            )
        row = GRU_GATES.index(gate) * self.hidden_size
        posterior.update(rows=(row, row + self.hidden_size), label=gate)
        for name in PARAMETERS:
            self.make_random(f"{name}_l{layer - 1}", location=location, **posterior)

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
        if not self.noise:
            return super().forward(input, hx)
        if hx is None:
            hx = input.new_zeros(self.num_layers, input.size(0), self.hidden_size)
        weights = [self.value(name) for name in self._flat_weights_names]
        options = (True, self.num_layers, self.dropout, self.training, False, self.batch_first)
        return torch.gru(input, hx, weights, *options)
