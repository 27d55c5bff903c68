"""Torch's fused LSTM with random gates."""

from __future__ import annotations

from typing import List, Optional, Tuple

import torch
from torch import nn

from espnet_bayeslm.bayes import UncertainModule

# In the order of torch's rows: i, f, g, o.
GATES = ("input_gate", "forget_gate", "cell_input", "output_gate")
State = Tuple[torch.Tensor, torch.Tensor]


class UncertainLSTM(UncertainModule, nn.LSTM):
    """`torch.nn.LSTM` whose gates may have random weights and biases (Eq. 4-7, Xue et al. 2022).

    A draw goes into one flat buffer in cuDNN's order (all matrices, then all biases), and the
    fused kernel runs on views of it: one draw for all time steps, no loop over them here.
    """

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

    def _sampled_weights(self) -> List[torch.Tensor]:
        """Return the weights in `_flat_weights_names`' order, views of one flat buffer."""
        names = self._flat_weights_names
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
            Outputs (B, L, hidden_size), and h and c after the last step.
        """
        if not self.noise:
            return super().forward(input, hx)
        if hx is None:
            zeros = input.new_zeros(self.num_layers, input.size(0), self.hidden_size)
            hx = (zeros, zeros)
        output, h, c = torch._VF.lstm(
            input,
            hx,
            self._sampled_weights(),
            self.bias,
            self.num_layers,
            self.dropout,
            self.training,
            self.bidirectional,
            self.batch_first,
        )
        return output, (h, c)
