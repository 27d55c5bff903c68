"""LSTM in which some gates and functions have several paths."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence, Tuple

import torch

from espnet_bayeslm.kinds.search.mixed import MIXED, PREFIX, Mixed, key_of
from espnet_bayeslm.layers import GATES, LSTM
from espnet_bayeslm.layers.gp import mixture
from espnet_bayeslm.layers.linear import linear
from espnet_bayeslm.layers.lstm_tensors import LayerTensors, Path, by_path


class MixedLSTM(Mixed, LSTM):
    """LSTM that mixes the values of gates, or the outputs of Gaussian processes at other places.

    A further path of a gate (`search_KIND_cell_input_l0`) has copies of the gate's rows. A further
    path of a position that feeds all gates has copies of all rows.
    """

    def mixture_of(self, location: str) -> str:
        """Name of the mixture of a location."""
        return f"_{key_of(location)}"

    def add_function(self, location: str, kind: str, layers: Sequence[Any]) -> None:
        """Put a Gaussian process on the path of a kind only."""
        self.functions[self.mixture_of(location)] = kind

    def further_paths(self, k: int) -> List[Tuple[int, str, Any]]:
        """(gate, kind, path) of each further path of a gate in layer k."""
        return [
            (number, kind, getattr(self, f"{PREFIX}_{kind}_{gate}_l{k}"))
            for number, gate in enumerate(GATES)
            for kind in self.mixtures.get(f"_{gate}_l{k}", ())[1:]
        ]

    def has_loop(self, k: int) -> bool:
        """True if layer k (from 0) needs the loop over time steps."""
        return super().has_loop(k) or bool(self.further_paths(k))


Process = Tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


class MixedTensors(LayerTensors):
    """Tensors of a layer with paths: rows of the LSTM's own gates, then of the further paths."""

    def __init__(self, lstm: MixedLSTM, k: int):
        super().__init__(lstm, k)
        self.further = lstm.further_paths(k)
        self.gates = [0, 1, 2, 3, *(gate for gate, _, _ in self.further)]

    def shares_at(self, position: str) -> Dict[str, torch.Tensor]:
        """{kind: share} at a position; nothing where it is not searched."""
        mixture = f"_{position}_l{self.k}"
        return self.lstm.shares(mixture) if mixture in self.lstm.mixtures else {}

    def function_kind(self, position: str) -> str:
        """Kind whose path has a Gaussian process; "" where the position is not searched."""
        return self.lstm.functions.get(f"_{position}_l{self.k}", "")

    def rows(self, parameter: str) -> torch.Tensor:
        """Rows of a parameter: the own gates, then the further paths."""
        own, further = (
            super().rows(parameter),
            [getattr(path, parameter) for _, _, path in self.further],
        )
        # Torch keeps a concatenation's gradients as views of one tensor, and clipping would scale
        # twice what the parameters of two that are added, the biases, have between them. A
        # product's gradient has a memory of its own.
        return torch.cat([1.0 * part for part in (own, *further)]) if further else own

    def paths(self) -> Tuple[Path, ...]:
        """Gate and basis functions of each path; a process is on the path of its kind only."""
        kinds = [self.function_kind(gate) for gate in GATES]
        taken = {gate for gate, kind, _ in self.further if kind == kinds[gate]}
        own = [path._replace(basis=()) if path.gate in taken else path for path in super().paths()]
        further = [
            Path(gate, self.basis(GATES[gate]) if kind == kinds[gate] else ())
            for gate, kind, _ in self.further
        ]
        return (*own, *further)

    def shares(self) -> Optional[torch.Tensor]:
        """Share of each path, (P,), or None if all gates have one path."""
        if not self.further:
            return None
        one = self.lstm.weight_hh_l0.new_ones(())
        found = [self.shares_at(gate) for gate in GATES]
        own = [next(iter(shares.values()), one) for shares in found]
        return torch.stack([*own, *(found[gate][kind] for gate, kind, _ in self.further)])

    def process(self, position: str, weight: str, bias: str) -> Process:
        """A searched Gaussian process on the input of all gates, and the linear parts.

        Returns:
            Weight, bias and coefficients of the process, the last times its share; weight and bias
            of all linear paths together, (PH, M) and (PH,): the mean function is the identity, so
            that the linear parts of both paths are one product.
        """
        kind = self.function_kind(position)
        path = getattr(self.lstm, f"{PREFIX}_{kind}_{position}_l{self.k}")
        shares = self.shares_at(position)
        share = shares.pop(kind)
        (point,) = shares.values()
        own = [getattr(path, weight), getattr(path, bias)]
        together = [
            point * self.rows(name) + share * by_path(value, self.gates, dim=0)
            for name, value in zip((weight, bias), own, strict=True)
        ]
        return own[0], own[1], share * self.coefficients(position), together[0], together[1]

    def recurrence(self) -> Tuple[Dict[str, Any], Optional[torch.Tensor]]:
        """Recurrent weights and process of the loop, and the bias added to the inputs, (PH,)."""
        if not self.function_kind("hidden_input"):
            found, bias = super().recurrence()
            if "hidden_input" in found:
                found["hidden_input"] = by_path(found["hidden_input"], self.gates)
            return found, bias
        weight, own_bias, coefficients, together, bias = self.process(
            "hidden_input", "weight_hh", "bias_hh"
        )
        found = {"hidden_input": coefficients, "hidden_bias": own_bias, "hidden_weight": weight}
        return {"weight": together, **found}, bias

    def gates_in(self, input: torch.Tensor, bias: Optional[torch.Tensor]) -> torch.Tensor:
        """Contribution of inputs (L, B, M) and biases to the paths, (L, B, PH)."""
        if not self.function_kind("layer_input"):
            return super().gates_in(input, bias)
        weight, own_bias, coefficients, all_weights, all_biases = self.process(
            "layer_input", "weight_ih", "bias_ih"
        )
        u = linear(input, weight, own_bias)
        mixed = by_path(mixture(u, coefficients, self.basis("layer_input")), self.gates)
        found = linear(input, all_weights, all_biases) + mixed
        return found if bias is None else found + bias

    def coefficients(self, position: str) -> torch.Tensor:
        """Coefficients of a process; at the layer input one set for each path."""
        found = super().coefficients(position)
        searched = bool(self.function_kind(position))
        return found if searched or position != "layer_input" else by_path(found, self.gates)

    def cell_state(self) -> Dict[str, Any]:
        """Gaussian process on the cells, its coefficients times its share."""
        found, kind = super().cell_state(), self.function_kind("cell_state")
        if kind:
            # both paths have the identity as the mean function
            share = self.shares_at("cell_state")[kind]
            found["cell_state"] = share * found["cell_state"]
        return found


MixedLSTM.tensors = MixedTensors
MIXED[LSTM] = MixedLSTM
