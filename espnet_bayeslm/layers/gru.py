"""Torch's fused GRU with random gates."""

from __future__ import annotations

from typing import List, Optional, Tuple

import torch
import torch.nn.functional as F
from torch import nn

from espnet_bayeslm.bayes import UncertainModule, Weights
from espnet_bayeslm.kernels import fast, is_plain
from espnet_bayeslm.layers.dropout import dropout

# In the order of torch's rows: r, z, n.
GRU_GATES = ("reset_gate", "update_gate", "new_gate")
PARAMETERS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


def gru(
    x: torch.Tensor, hx: torch.Tensor, weights: List[torch.Tensor], *, dropout_rate: float
) -> Tuple[torch.Tensor, torch.Tensor]:
    """A GRU (Cho et al. 2014, as in torch), (B, L, M) -> (B, L, H), and h after the last step.

    Args:
        x: Inputs, (B, L, M).
        hx: h, (num_layers, B, H).
        weights: Of each layer W_ih (3H, M), W_hh (3H, H), b_ih and b_hh (3H,).
        dropout_rate: Between layers.
    """
    last = []
    for k, h in enumerate(hx.unbind(0)):
        w_ih, w_hh, b_ih, b_hh = weights[4 * k : 4 * k + 4]
        outputs = []
        for x_t in (x if k == 0 else dropout(x, dropout_rate)).unbind(1):
            r_x, z_x, n_x = F.linear(x_t, w_ih, b_ih).chunk(3, dim=1)  # (B, H) each
            r_h, z_h, n_h = F.linear(h, w_hh, b_hh).chunk(3, dim=1)
            r, z = torch.sigmoid(r_x + r_h), torch.sigmoid(z_x + z_h)
            h = (1 - z) * torch.tanh(n_x + r * n_h) + z * h
            outputs.append(h)
        x = torch.stack(outputs, dim=1)
        last.append(h)
    return x, torch.stack(last)


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
        if not (self.is_drawn or is_plain("gru")):
            return super().forward(input, hx)  # type: ignore[has-type]  # torch's overloads
        if hx is None:
            hx = input.new_zeros(self.num_layers, input.size(0), self.hidden_size)
        weights = [self.value(name) for name in self._flat_weights_names]
        rate = self.dropout if self.training else 0.0
        return fast(gru)(input, hx, weights, dropout_rate=rate)
