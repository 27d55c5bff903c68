"""Gathers the tensors of an LSTM layer's loop from the layer's parameters and their paths."""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import torch

from espnet_bayeslm.bayes.paths import PREFIX
from espnet_bayeslm.kernels import fast
from espnet_bayeslm.kernels.concatenation import concatenate
from espnet_bayeslm.kernels.tensors import Basis, Layout, LoopInputs, Path, by_path
from espnet_bayeslm.layers.activation import mixture
from espnet_bayeslm.layers.linear import linear

# In the order of torch's rows: i, f, g, o.
GATES = ("input_gate", "forget_gate", "cell_input", "output_gate")


class GatePath(NamedTuple):
    """A path of a gate beside the layer's own parameters.

    Attributes:
        gate: The gate.
        location: What is searched.
        kind: The path's kind.
    """

    gate: str
    location: str
    kind: str


class Process(NamedTuple):
    """A Gaussian process on what goes into all gates (the h-Gate and the i-Gate).

    Attributes:
        weight: (4H, M); with `linear`, else (PH, M).
        bias: (4H,) or (PH,).
        coefficients: (J, 4H) or (J, PH), times the process' share where it is searched.
        linear: Weight and bias of all linear paths together, (PH, M) and (PH,), in a search.
    """

    weight: torch.Tensor
    bias: torch.Tensor
    coefficients: torch.Tensor
    linear: Optional[Tuple[torch.Tensor, torch.Tensor]] = None


class LayerTensors:
    """The tensors of one layer.

    Args:
        lstm: An `UncertainLSTM`.
        k: The layer, from 0.
    """

    def __init__(self, lstm: Any, k: int):
        self.lstm, self.k = lstm, k
        self.further: List[GatePath] = lstm.gate_paths.get(k, [])
        self.gates = [0, 1, 2, 3, *(GATES.index(path.gate) for path in self.further)]

    def basis(self, position: str) -> Basis:
        """Return the basis functions at a position; none without a Gaussian process."""
        return self.lstm.bases.get(f"{position}_l{self.k}", ())

    def coefficients(self, position: str) -> torch.Tensor:
        """Return a Gaussian process' coefficients."""
        return self.lstm.value(f"gp_coefficients_{position}_l{self.k}")

    def shares(self, position: str) -> Optional[Dict[str, torch.Tensor]]:
        """Return {kind: share} of a position that is searched."""
        location = self.lstm.searched.get(f"{position}_l{self.k}")
        return None if location is None else self.lstm.shares[location]

    def rows(self, parameter: str) -> torch.Tensor:
        """Return the rows of all gates' paths, (PH, ...)."""
        own = self.lstm.value(f"{parameter}_l{self.k}")
        further = [
            self.lstm.value(f"{PREFIX}_{path.kind}_{parameter}_l{self.k}_{path.gate}")
            for path in self.further
        ]
        return concatenate([own, *further]) if further else own

    def layout(self) -> Layout:
        """Return what the rows mean."""
        searched_gp = {path.gate for path in self.further if path.kind == "gp"}
        bases = [() if gate in searched_gp else self.basis(gate) for gate in GATES]
        bases += [self.basis(path.gate) if path.kind == "gp" else () for path in self.further]
        paths = tuple(Path(gate, basis) for gate, basis in zip(self.gates, bases, strict=True))
        return Layout(paths, self.basis("hidden_input"), self.basis("cell_state"))

    def gate_coefficients(self, layout: Layout) -> Optional[torch.Tensor]:
        """Return the coefficients of all gates' paths, (sum of J, H)."""
        parts = [self.coefficients(GATES[path.gate]) for path in layout.paths if path.basis]
        return concatenate(parts) if parts else None

    def gate_shares(self) -> Optional[torch.Tensor]:
        """Return each path's share of its gate, (P,); None without a search."""
        if not self.further:
            return None
        one = self.lstm.weight_hh_l0.new_ones(())
        first = [self.shares(gate) for gate in GATES]
        parts = [one if shares is None else next(iter(shares.values())) for shares in first]
        parts += [self.lstm.shares[path.location][path.kind] for path in self.further]
        return torch.stack(parts)

    def process(self, position: str, weight: str, bias: str) -> Optional[Process]:
        """Return the Gaussian process on all gates at a position, if there is one."""
        if not self.basis(position):
            return None
        coefficients, shares = self.coefficients(position), self.shares(position)
        if shares is None:
            coefficients = by_path(coefficients, self.gates)
            return Process(self.rows(weight), self.rows(bias), coefficients)
        point, share = shares.values()
        own = [
            self.lstm.value(f"{PREFIX}_gp_{name}_l{self.k}_{position}") for name in (weight, bias)
        ]
        # the mean function is the identity, so the linear parts of both paths are one product
        linear = [
            point * self.rows(name) + share * by_path(value, self.gates, dim=0)
            for name, value in zip((weight, bias), own, strict=True)
        ]
        return Process(own[0], own[1], share * coefficients, (linear[0], linear[1]))

    def gates_in(self, input: torch.Tensor, bias: Optional[torch.Tensor]) -> torch.Tensor:
        """Return what the inputs and the biases contribute to the paths, (L, B, PH).

        Args:
            input: (L, B, M).
            bias: What the recurrence adds outside of a Gaussian process, (PH,).
        """
        process = self.process("layer_input", "weight_ih", "bias_ih")
        if process is None:
            b_ih = self.rows("bias_ih")
            return fast(linear)(
                input, self.rows("weight_ih"), b_ih if bias is None else b_ih + bias
            )
        u = fast(linear)(input, process.weight, process.bias)
        mixed = fast(mixture)(u, process.coefficients, self.basis("layer_input"))
        if process.linear is not None:
            u, mixed = fast(linear)(input, *process.linear), by_path(mixed, self.gates)
        return u + mixed if bias is None else u + mixed + bias

    def inputs(
        self, input: torch.Tensor, state: Tuple[torch.Tensor, torch.Tensor]
    ) -> Tuple[LoopInputs, Layout]:
        """Return the loop's tensors and what they mean; input (L, B, M)."""
        # the loop computes in the weights' precision, whatever autocast says
        dtype = self.lstm.weight_hh_l0.dtype
        values: Dict[str, Any] = {}
        with torch.autocast(input.device.type, enabled=False):
            process = self.process("hidden_input", "weight_hh", "bias_hh")
            if process is None:
                weight, bias = self.rows("weight_hh"), self.rows("bias_hh")
            else:
                values |= dict(hidden_input=process.coefficients, hidden_bias=process.bias)
                weight, bias = process.linear or (process.weight, None)
                values["hidden_weight"] = process.weight if process.linear else None
            gates_in = self.gates_in(input.to(dtype), bias)
        if self.basis("cell_state"):
            values["cell_weight"] = self.lstm.value(f"gp_weight_cell_state_l{self.k}")
            values["cell_bias"] = self.lstm.value(f"gp_bias_cell_state_l{self.k}")
            coefficients, shares = self.coefficients("cell_state"), self.shares("cell_state")
            # both paths have the identity as the mean function: only the process has a share
            values["cell_state"] = coefficients if shares is None else shares["gp"] * coefficients
        layout = self.layout()
        h, c = (s.to(dtype) for s in state)
        return (
            LoopInputs(
                gates_in,
                h,
                c,
                weight,
                shares=self.gate_shares(),
                coefficients=self.gate_coefficients(layout),
                **values,
            ),
            layout,
        )
