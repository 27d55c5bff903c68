"""Parts of an LM in a form that a tracer sees through, at the posterior mean.

The layers' own code is made to be fast: it writes in place, cuts rows into chunks and looks
encodings up in a table. A trace of it would be of one length only, or none.
"""

from __future__ import annotations

import sys
from typing import Any, Callable, Dict, Optional, Sequence, Tuple

import torch
import torch.nn.functional as F
from torch import nn

from espnet_bayeslm.layers import GATES, UncertainLSTM
from espnet_bayeslm.layers.activation import GPActivation

FUNCTIONS: Dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "relu": F.relu,
    "gelu": F.gelu,
}
NATIVE = (torch.sigmoid, torch.sigmoid, torch.tanh, torch.sigmoid)
State = Tuple[torch.Tensor, torch.Tensor]


def replace_parts(lm: Any) -> None:
    """Put plain parts in the place of those that cannot be traced."""
    for module in list(lm.modules()):
        for name, child in module.named_children():
            if isinstance(child, GPActivation):
                setattr(module, name, PlainActivation(child))
            elif has_loop(child):
                setattr(module, name, PlainLSTM(child))
    if hasattr(lm, "encodings"):
        lm.encodings = Encodings(lm.encodings)


def has_loop(module: Any) -> bool:
    """Return whether a module is an LSTM that torch's fused kernel does not compute."""
    if not isinstance(module, UncertainLSTM):
        return False
    feeds_back = any(getattr(child, "feedback", False) for child in module.children())
    return bool(module.bases) or feeds_back


def mix(x: torch.Tensor, coefficients: torch.Tensor, basis: Sequence[str]) -> torch.Tensor:
    """Return sum_j lambda_j phi_j(x) (Eq. 25, Xue et al. 2022); coefficients (J, units)."""
    first, *others = [
        row * FUNCTIONS[name](x) for name, row in zip(basis, coefficients, strict=True)
    ]
    return sum(others, first)


class PlainActivation(nn.Module):
    """A Gaussian process' mean function of a feed-forward net.

    Args:
        activation: What it stands for.
    """

    def __init__(self, activation: GPActivation):
        super().__init__()
        self.coefficients, self.basis = activation.gp_coefficients, activation.basis

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (..., units) to (..., units)."""
        return mix(x, self.coefficients, self.basis)


class Encodings:
    """Sinusoidal position encodings in place of a table of them: there is no longest prefix.

    Args:
        table: What it stands for, (any length, att_unit).
    """

    def __init__(self, table: torch.Tensor):
        self.dim, self.dtype, self.device = table.size(1), table.dtype, table.device
        even = torch.arange(0, self.dim, 2, dtype=torch.float64)
        self.rates = torch.pow(10000.0, -even / self.dim)

    def __len__(self) -> int:
        return sys.maxsize

    def __getitem__(self, positions: torch.Tensor) -> torch.Tensor:
        """Map positions (...) to encodings (..., att_unit)."""
        angle = positions.unsqueeze(-1).to(torch.float64) * self.rates
        pairs = torch.stack([angle.sin(), angle.cos()], dim=-1)
        return pairs.flatten(-2)[..., : self.dim].to(self.dtype)


class PlainLSTM(nn.Module):
    """An LSTM with Gaussian processes and latent outputs, step by step (Eq. 4-9, 26, 29).

    Args:
        lstm: The `UncertainLSTM` that it stands for.
    """

    def __init__(self, lstm: Any):
        super().__init__()
        self.lstm = lstm

    def forward(
        self, input: torch.Tensor, hx: Optional[State] = None
    ) -> Tuple[torch.Tensor, State]:
        """See `UncertainLSTM.forward`."""
        if hx is None:
            zeros = input.new_zeros(self.lstm.num_layers, input.size(0), self.lstm.hidden_size)
            hx = (zeros, zeros)
        h, c = (list(state.unbind(0)) for state in hx)
        outputs = []
        for x in input.unbind(1):
            for k in range(self.lstm.num_layers):
                x, h[k], c[k] = self._step(k, x, h[k], c[k])
            outputs.append(x)
        return torch.stack(outputs, dim=1), (torch.stack(h), torch.stack(c))

    def _step(
        self, k: int, x: torch.Tensor, h: torch.Tensor, c: torch.Tensor
    ) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return output, what recurs and the cells of layer k after one more input, (B, H)."""
        pre = self._linear(k, "layer_input", "ih", x) + self._linear(k, "hidden_input", "hh", h)
        i, f, g, o = [
            function(part) if (mixed := self._mixture(k, gate, part)) is None else mixed
            for gate, function, part in zip(GATES, NATIVE, pre.chunk(4, dim=1), strict=True)
        ]
        c = f * self._cells(k, c) + i * g
        h = o * torch.tanh(c)
        latent = getattr(self.lstm, f"latent_l{k}", None)
        z = h if latent is None else latent(h)
        return z, z if latent is not None and latent.feedback else h, c

    def _mixture(self, k: int, position: str, x: torch.Tensor) -> Optional[torch.Tensor]:
        """Return what a Gaussian process at a position makes of x; None where there is none."""
        basis = self.lstm.bases.get(f"{position}_l{k}")
        if basis is None:
            return None
        return mix(x, getattr(self.lstm, f"gp_coefficients_{position}_l{k}"), basis)

    def _linear(self, k: int, position: str, name: str, x: torch.Tensor) -> torch.Tensor:
        """Return W x + b of inputs or of what recurs, and a Gaussian process on it, (B, 4H)."""
        weight, bias = (getattr(self.lstm, f"{kind}_{name}_l{k}") for kind in ("weight", "bias"))
        u = F.linear(x, weight, bias)
        mixed = self._mixture(k, position, u)
        return u if mixed is None else u + mixed

    def _cells(self, k: int, c: torch.Tensor) -> torch.Tensor:
        """Return what the forget gate is multiplied with, (B, H)."""
        if f"cell_state_l{k}" not in self.lstm.bases:
            return c
        names = (f"gp_{kind}_cell_state_l{k}" for kind in ("weight", "bias"))
        mixed = self._mixture(k, "cell_state", F.linear(c, *(getattr(self.lstm, n) for n in names)))
        assert mixed is not None
        return c + mixed
