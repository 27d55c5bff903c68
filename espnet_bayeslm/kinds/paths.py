"""Layers with several paths: the first is the layer itself, further paths are its children.

A layer with paths takes the place of a layer in the LM and has the same parameters, under the same
names.
"""

from __future__ import annotations

from typing import Any, Dict, List, Sequence, Tuple, Type

import torch
import torch.nn.functional as F
from torch import nn

from espnet_bayeslm.bayes.base_kinds import key_of
from espnet_bayeslm.bayes.weights import Rows
from espnet_bayeslm.kernels.product import linear
from espnet_bayeslm.kinds.gp import GPActivation
from espnet_bayeslm.kinds.variational import LatentOutput
from espnet_bayeslm.layers.linear import Linear
from espnet_bayeslm.layers.lstm import LSTM
from espnet_bayeslm.layers.lstm_loop import ACTIVATIONS, GATES, WHOLE, GatePath, Loop, Whole
from espnet_bayeslm.utils.errors import InputError

# What the names of a super-network's own parameters and modules begin with.
PREFIX = "search"


def path_name(layer: nn.Module, kind: str, location: str) -> str:
    """Name, in a layer, of the path of a kind at a location."""
    return f"{PREFIX}_{kind}" + (f"_{key_of(location)}" if isinstance(layer, nn.LSTM) else "")


def name_in_path(layer: nn.Module, parameter: str, location: str) -> str:
    """Name, in a path, of a parameter of the layer."""
    suffix = "_l" + str(int(location.partition("@")[2]) - 1) if isinstance(layer, nn.LSTM) else ""
    return parameter.removesuffix(suffix)


class Mixed(nn.Module):
    """A layer with paths, mixed by the softmax of architecture weights.

    Attributes:
        choices: `{position}_l{layer from 0}` -> the `Choice` between its candidates; the LM has its
            weights. Only an LSTM has more than one.
        functions: The same -> the kind whose path has another function.
        sources: Further path -> {its parameter: (the parameter of the layer, its rows)}.
    """

    choices: Dict[str, Any]
    functions: Dict[str, str]
    sources: Dict[str, Dict[str, Tuple[str, Rows]]]

    def shares(self, key: str = "") -> Dict[str, torch.Tensor]:
        """{kind: share of the path, softmax(a) of Eq. 35}, each (); of a key or the only one."""
        choice = self.choices[key or next(iter(self.choices))]
        weights = choice.weights
        precise = weights.to(torch.promote_types(weights.dtype, torch.float32))
        values = precise.softmax(0).to(weights.dtype).unbind(0)
        return dict(zip(choice.kinds, values, strict=True))

    def add_path(self, location: str, kind: str, weights: Sequence[Tuple[str, Rows]]) -> List[str]:
        """Add the path of a kind, with copies of this layer's rows; names of the copies."""
        name = path_name(self, kind, location)
        source = {name_in_path(self, own, location): (own, rows) for own, rows in weights}
        if name not in self.sources:
            path = nn.Module()
            for parameter, (own, rows) in source.items():
                value = getattr(self, own).detach()[slice(*rows)].clone()
                setattr(path, parameter, nn.Parameter(value))
            self.sources[name] = source
            self.add_module(name, path)
        return [f"{name}.{parameter}" for parameter in source]

    def paths(self) -> Dict[str, Any]:
        """{kind: the layer that is its path}; the first path is this layer."""
        (choice,) = self.choices.values()
        first, *others = choice.kinds
        return {first: self, **{kind: getattr(self, f"{PREFIX}_{kind}") for kind in others}}

    def mixed(self, parameter: str) -> torch.Tensor:
        """Mean of a parameter over the paths, weighted by their shares."""
        shares = self.shares()
        first, *others = [
            shares[kind] * getattr(path, parameter) for kind, path in self.paths().items()
        ]
        return sum(others, first)

    def reset(self) -> None:
        """Make all paths equal to the first."""
        for name, source in self.sources.items():
            for parameter, (own, rows) in source.items():
                value = getattr(self, own).detach()[slice(*rows)]
                getattr(getattr(self, name), parameter).data.copy_(value)
        getattr(super(), "reset", lambda: None)()


class MixedLinear(Mixed, Linear):
    """Linear layers whose outputs are mixed here or, apart, in a `MixedFunction`."""

    is_apart = False

    def weights(self) -> Tuple[torch.Tensor, torch.Tensor]:
        """Mixed weight and bias: the output is linear in them, so the output is mixed too."""
        return self.mixed("weight"), self.bias if self.bias is None else self.mixed("bias")

    def forward(self, input: torch.Tensor) -> Any:
        """Map (..., in_features) to (..., out_features), or to {kind: output} if apart."""
        if not self.is_apart:
            return linear(input, *self.weights())
        return {kind: linear(input, path.weight, path.bias) for kind, path in self.paths().items()}


class MixedEmbedding(Mixed, nn.Embedding):
    """Embeddings whose vectors are mixed."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Map ids (...) to vectors (..., embedding_dim)."""
        return F.embedding(input, self.mixed("weight"), self.padding_idx)


class MixedFunction(Mixed, GPActivation):
    """Activation functions of the paths of a feed-forward net, mixed."""

    def forward(self, outputs: Dict[str, torch.Tensor]) -> torch.Tensor:  # type: ignore[override]
        """Mix {kind: Theta x of its path, (..., units)} after each path's function."""
        native, shares = getattr(F, str(self.process.native)), self.shares()
        (own,) = self.functions.values()
        first, *others = [
            shares[kind] * (super(MixedFunction, self).forward(x) if kind == own else native(x))
            for kind, x in outputs.items()
        ]
        return sum(others, first)


class MixedLatent(Mixed, LatentOutput):
    """A latent output and the hidden output that it would replace, mixed."""

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        """Map h_t to its mixture with z_t, both (B, L, size)."""
        _, share = self.shares().values()
        return h + share * (super().forward(h) - h)


class MixedLoop(Loop):
    """Loop of a layer with paths."""

    has_paths = True
    lstm: MixedLSTM

    def path(self, kind: str, position: str) -> Any:
        """Weights of a kind's path at a position; every path but the first has such a module."""
        return getattr(self.lstm, f"{PREFIX}_{kind}_{position}_l{self.k}")

    def shares_at(self, position: str) -> Dict[str, torch.Tensor]:
        """{kind: share} at a position; nothing where it is not searched."""
        key = f"{position}_l{self.k}"
        return self.lstm.shares(key) if key in self.lstm.choices else {}

    def function_kind(self, position: str) -> str:
        """Kind whose path has a Gaussian process; "" where the position is not searched."""
        return self.lstm.functions.get(f"{position}_l{self.k}", "")

    def gate_paths(self) -> List[GatePath]:
        """Paths of all gates; a process is on the path of its kind only."""
        own, further = super().gate_paths(), []
        for number, gate in enumerate(GATES):
            process, process_kind = own[number].function, self.function_kind(gate)
            for n, (kind, share) in enumerate(self.shares_at(gate).items()):
                function = process if kind == process_kind else ACTIVATIONS[gate]
                if n == 0:
                    own[number] = GatePath(number, function, share)
                else:
                    further.append(GatePath(number, function, share, self.path(kind, gate)))
        return [*own, *further]

    def coefficients(self, position: str) -> torch.Tensor:
        """Coefficients of a process, at a searched position but the gates times its share."""
        found, kind = super().coefficients(position), self.function_kind(position)
        return self.shares_at(position)[kind] * found if kind and position not in GATES else found

    def whole(self, position: str) -> Whole:
        """Weights and process of a position on the input of all gates.

        Of a searched position the linear parts of both paths are one product, since the mean
        function of a process is the identity.
        """
        kind, process = self.function_kind(position), self.process(position)
        if not kind or process is None:
            return super().whole(position)
        shares = self.shares_at(position)
        share = shares.pop(kind)
        (point,) = shares.values()
        names = [f"{name}_{WHOLE[position]}" for name in ("weight", "bias")]
        weight, bias = (getattr(self.path(kind, position), name) for name in names)
        all_weights, all_biases = (
            point * self.rows(name) + share * self.by_path(own, dim=0)
            for name, own in zip(names, (weight, bias), strict=True)
        )
        return all_weights, all_biases, lambda x, u: self.by_path(process(linear(x, weight, bias)))


class MixedLSTM(Mixed, LSTM):
    """LSTM that mixes the values of gates, or the outputs of Gaussian processes at other places.

    A further path of a gate (`search_KIND_cell_input_l0`) has copies of the gate's rows. A further
    path of a position that feeds all gates has copies of all rows.
    """

    loop = MixedLoop

    def has_loop(self, k: int) -> bool:
        """True if layer k (from 0) needs the loop over time steps."""
        return super().has_loop(k) or any(f"{gate}_l{k}" in self.choices for gate in GATES)


MIXED: Dict[type, Type[Mixed]] = {
    Linear: MixedLinear,
    nn.Embedding: MixedEmbedding,
    GPActivation: MixedFunction,
    LatentOutput: MixedLatent,
    LSTM: MixedLSTM,
}


def mix(layer: nn.Module, choice: Any) -> Any:
    """Layer with paths, mixed by a location's architecture weights; one with paths stays."""
    mixed: Any = layer
    if not isinstance(layer, Mixed):
        if type(layer) not in MIXED:
            raise InputError(
                f"{choice.location}: a search needs the gates of an LSTM, this LM is a"
                f" {type(layer).__name__}",
                remedy="Choose kind point or bayes.",
            )
        cls = MIXED[type(layer)]
        mixed = cls.__new__(cls)
        vars(mixed).update(vars(layer))  # the same parameters and options
        mixed.choices, mixed.functions, mixed.sources = {}, {}, {}
    mixed.choices[key_of(choice.location)] = choice
    return mixed


def mix_at(lm: Any, path: str, choice: Any) -> Any:
    """Layer of this name in an LM, with paths; a layer without paths is replaced."""
    owner, _, name = path.rpartition(".")
    mixed = mix(lm.get_submodule(path), choice)
    setattr(lm.get_submodule(owner), name, mixed)
    lm.posterior.find_owners()
    return mixed
