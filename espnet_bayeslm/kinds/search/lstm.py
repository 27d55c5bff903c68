"""LSTM in which some gates and functions have several paths."""

from __future__ import annotations

from typing import Any, Dict, List, Tuple

import torch

from espnet_bayeslm.kernels.product import linear
from espnet_bayeslm.kinds.search.mixed import MIXED, PREFIX, Mixed
from espnet_bayeslm.layers import GATES, LSTM
from espnet_bayeslm.layers.lstm import ACTIVATIONS, WHOLE, Loop, UnitFunction, Whole


class MixedLSTM(Mixed, LSTM):
    """LSTM that mixes the values of gates, or the outputs of Gaussian processes at other places.

    A further path of a gate (`search_KIND_cell_input_l0`) has copies of the gate's rows. A further
    path of a position that feeds all gates has copies of all rows.
    """

    def further_paths(self, k: int) -> List[Tuple[int, str, Any]]:
        """(gate, kind, path) of each further path of a gate in layer k."""
        return [
            (number, kind, getattr(self, f"{PREFIX}_{kind}_{gate}_l{k}"))
            for number, gate in enumerate(GATES)
            if f"{gate}_l{k}" in self.choices
            for kind in self.choices[f"{gate}_l{k}"].kinds[1:]
        ]

    def has_loop(self, k: int) -> bool:
        """True if layer k (from 0) needs the loop over time steps."""
        return super().has_loop(k) or bool(self.further_paths(k))


class MixedLoop(Loop):
    """Loop of a layer with paths: rows of the LSTM's own gates, then of the further paths."""

    lstm: MixedLSTM

    def __init__(self, lstm: MixedLSTM, k: int):
        self.lstm, self.k, self.further = lstm, k, lstm.further_paths(k)
        self.gate_shares = [self.shares_at(gate) for gate in GATES]
        super().__init__(lstm, k)

    def shares_at(self, position: str) -> Dict[str, torch.Tensor]:
        """{kind: share} at a position; nothing where it is not searched."""
        key = f"{position}_l{self.k}"
        return self.lstm.shares(key) if key in self.lstm.choices else {}

    def function_kind(self, position: str) -> str:
        """Kind whose path has a Gaussian process; "" where the position is not searched."""
        return self.lstm.functions.get(f"{position}_l{self.k}", "")

    def by_path(self, x: torch.Tensor, dim: int = -1) -> torch.Tensor:
        """Each gate's values for all of its paths, (..., 4H) -> (..., PH)."""
        parts = x.chunk(4, dim=dim)
        further = [parts[gate] for gate, _, _ in self.further]
        return torch.cat([x, *further], dim=dim) if further else x

    def rows(self, parameter: str) -> torch.Tensor:
        """Rows of a parameter: the own gates, then the further paths."""
        own, further = super().rows(parameter), [path for _, _, path in self.further]
        if not further:
            return own
        # Torch keeps a concatenation's gradients as views of one tensor, and clipping would scale
        # twice what the parameters of two that are added, the biases, have between them. A
        # product's gradient has a memory of its own.
        return torch.cat([1.0 * part for part in (own, *(getattr(p, parameter) for p in further))])

    def coefficients(self, position: str) -> torch.Tensor:
        """Coefficients of a process, at a searched position times its share."""
        found, kind = super().coefficients(position), self.function_kind(position)
        if position in GATES:
            return found
        if kind:
            return self.shares_at(position)[kind] * found
        return found if position == "cell_state" else self.by_path(found)

    def activations(self) -> List[UnitFunction]:
        """Function of each path of the gates; a process is on the path of its kind only."""
        own = super().activations()
        further = []
        for gate, kind, _ in self.further:
            native = ACTIVATIONS[GATES[gate]]
            is_process = kind == self.function_kind(GATES[gate])
            further.append(own[gate] if is_process else native)
            own[gate] = native if is_process else own[gate]
        return [*own, *further]

    def gates(self, pre: torch.Tensor) -> List[torch.Tensor]:
        """Gates, each the mean of its paths, weighted by their shares (Eq. 35), (B, H) each."""
        if not self.further:
            return super().gates(pre)
        own, further = (values := super().gates(pre))[:4], values[4:]
        found = [
            next(iter(shares.values())) * value if shares else value
            for shares, value in zip(self.gate_shares, own, strict=True)
        ]
        for (gate, kind, _), value in zip(self.further, further, strict=True):
            found[gate] = found[gate] + self.gate_shares[gate][kind] * value
        return found

    def whole(self, position: str) -> Whole:
        """Weights and process of a position on the input of all gates.

        Of a searched position the linear parts of both paths are one product, since the mean
        function of a process is the identity.
        """
        kind = self.function_kind(position)
        if not kind:
            return super().whole(position)
        path = getattr(self.lstm, f"{PREFIX}_{kind}_{position}_l{self.k}")
        shares, process = self.shares_at(position), self.process(position)
        assert process is not None
        share = shares.pop(kind)
        (point,) = shares.values()
        names = [f"{name}_{WHOLE[position]}" for name in ("weight", "bias")]
        weight, bias = (getattr(path, name) for name in names)
        all_weights, all_biases = (
            point * self.rows(name) + share * self.by_path(own, dim=0)
            for name, own in zip(names, (weight, bias), strict=True)
        )
        return (
            all_weights,
            all_biases,
            lambda x, u: self.by_path(process(linear(x, weight, bias))),
        )


MixedLSTM.loop = MixedLoop
MIXED[LSTM] = MixedLSTM
