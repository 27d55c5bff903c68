"""The tensors of an LSTM layer's loop over time, and the layout of their rows."""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import torch

from espnet_bayeslm.layers.gp import mixture
from espnet_bayeslm.layers.linear import linear

Basis = Tuple[str, ...]
# In the order of torch's rows: i, f, g, o.
GATES = ("input_gate", "forget_gate", "cell_input", "output_gate")


def given(tensor: Optional[torch.Tensor]) -> torch.Tensor:
    """A tensor that is there because another one is."""
    assert tensor is not None
    return tensor


class LoopInputs(NamedTuple):
    """The tensors of a layer's loop over L steps of B sequences with H units.

    Without a search each gate is a path, P = 4. A gate that is searched has several paths. The
    gate's value is the mean of their activations, weighted by the paths' shares (Eq. 35).

    Attributes:
        gates_in: Contribution of the inputs and the biases to the paths, (L, B, PH).
        h: Recurrent vector before the first step, (B, H).
        c: Cells before the first step, (B, H).
        weight: Recurrent weights, (PH, H).
        shares: Each path's share of its gate, (P,); None: each gate has one path.
        coefficients: Coefficients of all paths whose activation is a mixture, (sum of J, H).
        hidden_input: Coefficients of the h-Gate, (J, PH): f(u) = u + sum_j lambda_j phi_j(u),
            u = weight h + hidden_bias. With `hidden_weight` (J, 4H): f(h) = weight h +
            sum_j lambda_j phi_j(u), u = hidden_weight h + hidden_bias, each gate's rows the
            same for all its paths.
        hidden_bias: (PH,) or (4H,), with `hidden_input` only.
        hidden_weight: (4H, H), where the h-Gate is searched.
        cell_state: Coefficients (J, H) of f(c) = c + sum_j lambda_j phi_j(cell_weight c +
            cell_bias) (the c-Gate).
        cell_weight: (H, H).
        cell_bias: (H,).
        latent_weight: Makes mean and log standard deviation of z_t from h_t, (2H, H); z_t then
            recurs in place of h_t.
        latent_bias: (2H,).
        noise: (L, B, H); None for the mean.
    """

    gates_in: torch.Tensor
    h: torch.Tensor
    c: torch.Tensor
    weight: torch.Tensor
    shares: Optional[torch.Tensor] = None
    coefficients: Optional[torch.Tensor] = None
    hidden_input: Optional[torch.Tensor] = None
    hidden_bias: Optional[torch.Tensor] = None
    hidden_weight: Optional[torch.Tensor] = None
    cell_state: Optional[torch.Tensor] = None
    cell_weight: Optional[torch.Tensor] = None
    cell_bias: Optional[torch.Tensor] = None
    latent_weight: Optional[torch.Tensor] = None
    latent_bias: Optional[torch.Tensor] = None
    noise: Optional[torch.Tensor] = None


class Path(NamedTuple):
    """A path of a gate.

    Attributes:
        gate: 0 to 3, in torch's order: input gate, forget gate, cell input, output gate.
        basis: The basis functions of its activation; none: the gate's own activation.
    """

    gate: int
    basis: Basis = ()


class Layout(NamedTuple):
    """Meaning of the rows of `LoopInputs`.

    Attributes:
        paths: One for each H rows; the first four are of the four gates in order.
        hidden_input: The h-Gate's basis functions.
        cell_state: The c-Gate's.
    """

    paths: Tuple[Path, ...] = tuple(map(Path, range(4)))
    hidden_input: Basis = ()
    cell_state: Basis = ()

    @property
    def gates(self) -> List[int]:
        """The gate of each path."""
        return [path.gate for path in self.paths]

    def split(self, coefficients: Optional[torch.Tensor]) -> List[Optional[torch.Tensor]]:
        """Parts of `LoopInputs.coefficients`, one of each path, (J, H) or None."""
        if coefficients is None:
            return [None] * len(self.paths)
        parts = coefficients.split([len(path.basis) for path in self.paths])
        return [part if len(part) else None for part in parts]


def by_path(x: torch.Tensor, gates: Sequence[int], dim: int = -1) -> torch.Tensor:
    """Repeat each gate's values for all of its paths, (..., 4H) -> (..., PH)."""
    if len(gates) == 4:
        return x
    parts = x.chunk(4, dim=dim)
    return torch.cat([parts[gate] for gate in gates], dim=dim)


class LayerTensors:
    """The tensors of one layer.

    Args:
        lstm: An `LSTM` of `layers.lstm`.
        k: The layer, from 0.
    """

    def __init__(self, lstm: Any, k: int):
        self.lstm, self.k = lstm, k

    def basis(self, position: str) -> Basis:
        """The basis functions at a position; none without a Gaussian process."""
        return self.lstm.bases.get(f"{position}_l{self.k}", ())

    def coefficients(self, position: str) -> torch.Tensor:
        """The coefficients of a Gaussian process, (J, units)."""
        return getattr(self.lstm, f"gp_coefficients_{position}_l{self.k}")

    def rows(self, parameter: str) -> torch.Tensor:
        """The rows of all gates' paths, (PH, ...)."""
        return getattr(self.lstm, f"{parameter}_l{self.k}")

    def paths(self) -> Tuple[Path, ...]:
        """The paths of the gates."""
        return tuple(Path(number, self.basis(gate)) for number, gate in enumerate(GATES))

    def gate_coefficients(self, paths: Sequence[Path]) -> Optional[torch.Tensor]:
        """The coefficients of all gates' paths, (sum of J, H)."""
        parts = [self.coefficients(GATES[path.gate]) for path in paths if path.basis]
        return torch.cat(parts) if parts else None

    def recurrence(self) -> Tuple[Dict[str, Any], Optional[torch.Tensor]]:
        """Recurrent tensors of the loop, and the bias that is added to the inputs, (PH,)."""
        weight, bias = self.rows("weight_hh"), self.rows("bias_hh")
        if not self.basis("hidden_input"):
            return {"weight": weight}, bias
        coefficients = self.coefficients("hidden_input")
        return {"weight": weight, "hidden_bias": bias, "hidden_input": coefficients}, None

    def gates_in(self, input: torch.Tensor, bias: Optional[torch.Tensor]) -> torch.Tensor:
        """Contribution of inputs (L, B, M) and biases to the paths, (L, B, PH).

        Args:
            input: The inputs.
            bias: Recurrent bias that is added outside of a Gaussian process, (PH,).
        """
        weight, own, basis = self.rows("weight_ih"), self.rows("bias_ih"), self.basis("layer_input")
        if not basis:
            return linear(input, weight, own if bias is None else own + bias)
        u = linear(input, weight, own)
        mixed = u + mixture(u, self.coefficients("layer_input"), basis)
        return mixed if bias is None else mixed + bias

    def cell_state(self) -> Dict[str, Any]:
        """The Gaussian process on the cells."""
        if not self.basis("cell_state"):
            return {}
        key = f"cell_state_l{self.k}"
        return {
            "cell_weight": getattr(self.lstm, f"gp_weight_{key}"),
            "cell_bias": getattr(self.lstm, f"gp_bias_{key}"),
            "cell_state": self.coefficients("cell_state"),
        }

    def shares(self) -> Optional[torch.Tensor]:
        """Each path's share of its gate, (P,); None: a gate has one path."""
        return None

    def inputs(
        self, input: torch.Tensor, state: Tuple[torch.Tensor, torch.Tensor]
    ) -> Tuple[LoopInputs, Layout]:
        """Tensors of the loop and the layout of their rows; input (L, B, M)."""
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
