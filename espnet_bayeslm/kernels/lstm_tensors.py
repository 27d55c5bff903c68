"""The tensors of an LSTM layer's loop over time (`lstm_forward.py`) and what their rows mean."""

from __future__ import annotations

from typing import List, NamedTuple, Optional, Sequence, Tuple

import torch

Basis = Tuple[str, ...]


def given(tensor: Optional[torch.Tensor]) -> torch.Tensor:
    """A tensor that is there because another one is."""
    assert tensor is not None
    return tensor


class LoopInputs(NamedTuple):
    """The tensors of a layer's loop over L steps of B sequences with H units.

    Without a search each gate is a path, P = 4. A gate that is searched has several, and its value
    is the mean of their activations, weighted by their shares (Eq. 35).

    Attributes:
        gates_in: What the inputs and the biases contribute to the paths, (L, B, PH).
        h: What recurred last, (B, H).
        c: The cells, (B, H).
        weight: Recurrent weights, (PH, H).
        shares: Each path's share of its gate, (P,); None: each gate has one path.
        coefficients: Of all paths whose activation is a mixture, (sum of J, H).
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

    @property
    def recurrent_weight(self) -> torch.Tensor:
        """All that is multiplied with what recurs, (PH, H) or (PH + 4H, H)."""
        if self.hidden_weight is None:
            return self.weight
        return torch.cat([self.weight, self.hidden_weight])


class Path(NamedTuple):
    """A path of a gate.

    Attributes:
        gate: 0 to 3, in torch's order: input gate, forget gate, cell input, output gate.
        basis: The basis functions of its activation; none: the gate's own activation.
    """

    gate: int
    basis: Basis = ()


class Layout(NamedTuple):
    """What the rows of `LoopInputs` mean.

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


class Record(NamedTuple):
    """What the forward pass leaves to the backward pass.

    Attributes:
        pre: What the paths' activations are applied to, (L, B, PH).
        act: Their results, (L, B, PH).
        gates: The gates, (L, B, 4H); without shares it is `act`.
        cell: The cells before the first step and after each, (L + 1, B, H).
        hidden: What recurs, before the first step and after each, (L + 1, B, H).
        tanh_cell: (L, B, H).
        recurrent: The h-Gate's u, (L, B, PH) or (L, B, 4H) (with `hidden_input`).
        cell_pre: cell_weight c + cell_bias, (L, B, H) (with `cell_state`).
        cell_mixed: What the forget gate is multiplied with, (L, B, H) (with `cell_state`).
        output: h_t, (L, B, H), where z_t recurs in its place.
        latent: Mean and log standard deviation of z_t, (L, B, 2H).
    """

    pre: torch.Tensor
    act: torch.Tensor
    gates: torch.Tensor
    cell: torch.Tensor
    hidden: torch.Tensor
    tanh_cell: torch.Tensor
    recurrent: Optional[torch.Tensor] = None
    cell_pre: Optional[torch.Tensor] = None
    cell_mixed: Optional[torch.Tensor] = None
    output: Optional[torch.Tensor] = None
    latent: Optional[torch.Tensor] = None

    @property
    def cell_used(self) -> torch.Tensor:
        """What the forget gate is multiplied with, (L, B, H)."""
        return self.cell[:-1] if self.cell_mixed is None else self.cell_mixed

    @property
    def outputs(self) -> torch.Tensor:
        """h_t, (L, B, H)."""
        return self.hidden[1:] if self.output is None else self.output


def empty_record(inputs: LoopInputs) -> Record:
    """Record with what was there before the first step."""
    steps, batch, size = inputs.gates_in.shape
    units = inputs.h.size(1)
    new = inputs.gates_in.new_empty

    def only(needed: Optional[torch.Tensor], size: int) -> Optional[torch.Tensor]:
        return None if needed is None else new(steps, batch, size)

    act = new(steps, batch, size)
    hidden_size = size if inputs.hidden_weight is None else 4 * units
    record = Record(
        new(steps, batch, size),
        act,
        act if inputs.shares is None else new(steps, batch, 4 * units),
        new(steps + 1, batch, units),
        new(steps + 1, batch, units),
        new(steps, batch, units),
        recurrent=only(inputs.hidden_input, hidden_size),
        cell_pre=only(inputs.cell_state, units),
        cell_mixed=only(inputs.cell_state, units),
        output=only(inputs.latent_weight, units),
        latent=only(inputs.latent_weight, 2 * units),
    )
    record.cell[0], record.hidden[0] = inputs.c, inputs.h
    return record


def chunks_of(x: torch.Tensor, count: int) -> List[Tuple[torch.Tensor, ...]]:
    """(L, B, count H) -> for each step the (B, H) of each path or gate."""
    return list(zip(*(chunk.unbind(0) for chunk in x.chunk(count, dim=2)), strict=True))


def by_path(x: torch.Tensor, gates: Sequence[int], dim: int = -1) -> torch.Tensor:
    """Give each path what its gate has, (..., 4H) -> (..., PH)."""
    if len(gates) == 4:
        return x
    parts = x.chunk(4, dim=dim)
    return torch.cat([parts[gate] for gate in gates], dim=dim)


def by_gate(x: torch.Tensor, gates: Sequence[int]) -> torch.Tensor:
    """Sum what each gate's paths have, (..., PH) -> (..., 4H)."""
    if len(gates) == 4:
        return x
    parts = x.chunk(len(gates), dim=-1)
    sums = list(parts[:4])
    for gate, part in zip(gates[4:], parts[4:], strict=True):
        sums[gate] = sums[gate] + part
    return torch.cat(sums, dim=-1)
