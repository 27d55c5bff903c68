"""The kind `search`: parallel paths at a location, mixed by architecture weights (Eq. 35).

It wraps layers from outside and knows no LM.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, Iterator, List, Sequence, Tuple

import torch
from torch import nn

from espnet_bayeslm.bayes import Block, Kind, Place, Position, Weights
from espnet_bayeslm.bayes.base_kinds import KINDS, parse_kind
from espnet_bayeslm.bayes.weights import Rows
from espnet_bayeslm.kinds.paths import PREFIX, Mixed, mix, mix_at, name_in_path, path_name
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.options import option


class Choice(nn.Module):
    """Architecture weights of a location."""

    def __init__(self, location: str, candidates: Sequence[Kind]):
        super().__init__()
        self.location = location
        self.candidates = tuple(candidates)
        self.weights = nn.Parameter(torch.zeros(len(candidates)))

    @property
    def kinds(self) -> Tuple[str, ...]:
        """Names of the candidates."""
        return tuple(kind.name for kind in self.candidates)

    def parameters_of(self, group: str) -> List[torch.Tensor]:
        """Architecture weights, if the optimizer's group is `architecture`."""
        return [self.weights] if group == Search.group else []


def choices(lm: Any) -> List[Tuple[str, Choice]]:
    """(location, architecture weights) of the locations of an LM that are searched."""
    return list(getattr(lm, PREFIX, {}).items())


def architecture_weights(lm: Any) -> Dict[str, Dict[str, float]]:
    """{location: {kind: architecture weight}} of an LM as it is now."""
    return {
        location: dict(zip(choice.kinds, choice.weights.tolist(), strict=True))
        for location, choice in choices(lm)
    }


@dataclasses.dataclass
class Search(Kind):
    """A super-network decides between candidates: their paths are mixed and trained together.

    The first candidate has the place's own layers. Every other candidate has copies of them, which
    become children of the mixed layers. The architecture weights are the LM's
    `search.{location}.weights`.
    """

    name = "search"
    needs = "candidates"  # which no position offers: a search is no candidate of another
    group = "architecture"
    own_prefixes = (PREFIX,)
    no_export = (
        "a super-network, at {places}, has no point-estimate form",
        "Train one of the architectures that `bayeslm search` ranks.",
    )

    candidates: Any = option(
        "List of the kinds to choose from; default: all of this package that fit.", None
    )

    def fitted(self, position: Position) -> Kind:
        """Search at a position between the candidates, by default all kinds that it can have."""
        # by default none of other packages: the LM of a configuration would depend on them
        own = tuple(name for name in position.kinds if name in KINDS.built_in)
        given = own if self.candidates is None else self.candidates
        if not isinstance(given, (list, tuple)) or len(given) < 2:
            raise InputError(
                f"candidates {given!r}: expected a list of two or more of"
                f" {', '.join(position.kinds)}"
            )
        kinds = [Kind.fitted(parse_kind(candidate), position) for candidate in given]
        names = [kind.name for kind in kinds]
        for name in names:
            if names.count(name) > 1:
                raise InputError(f"candidates: {name} is named twice")
        order = list(KINDS)
        return Search(candidates=tuple(sorted(kinds, key=lambda kind: order.index(kind.name))))

    def apply(self, place: Place) -> None:
        """Give a place a path for each candidate."""
        choice = Choice(place.location, self.candidates)
        for kind in self.candidates:
            kind.apply(_Path(**vars(place), choice=choice, kind=kind.name))
        if not hasattr(place.lm, PREFIX):
            # before the layers: the order of parameters is the optimizers'
            place.lm._modules = {PREFIX: nn.ModuleDict(), **place.lm._modules}
        getattr(place.lm, PREFIX)[place.location] = choice

    @classmethod
    def adapt(cls, lm: nn.Module, state: Dict[str, Any], prefix: str) -> None:
        """Start all paths from an ordinary checkpoint; take the LM's path from a search's."""
        start_paths(lm, state, prefix)
        take_paths(lm, state, prefix)


@dataclasses.dataclass(frozen=True)
class _Path(Place):
    """Place of an LM with the path of one candidate.

    Attributes:
        choice: Choice between the candidates, with its architecture weights.
        kind: The candidate; the first has the layers' own weights, every other one has copies.
    """

    choice: Choice
    kind: str

    def weights_of(self, offer: Any) -> List[Weights]:
        """These weights for the first candidate, copies in a further path for any other."""
        weights = super().weights_of(offer)
        if self.kind == self.choice.kinds[0]:
            return weights
        return [
            Weights(f"{path}.{name}")
            for path, own in self._by_layer(weights).items()
            for name in mix_at(self.lm, path, self.choice).add_path(self.location, self.kind, own)
        ]

    def _by_layer(self, weights: Sequence[Weights]) -> Dict[str, List[Tuple[str, Rows]]]:
        """{name of a layer: its parameters and their rows}."""
        layers: Dict[str, List[Tuple[str, Rows]]] = {}
        for found in (found for w in weights for found in self.lm.posterior.find(w)):
            layers.setdefault(found.path, []).append((found.parameter, found.rows))
        return layers

    def add_process(self, process: Any) -> List[Weights]:
        self.weights_of(self.position.function)
        new = super().add_process(process)
        path, _, _ = new[0].pattern.rpartition(".")
        layers = self._by_layer(super().weights_of(self.position.function))
        mixed = mix_at(self.lm, path, self.choice)
        mixed.functions[self.key] = self.kind  # the process is on this path only
        for layer in layers:
            # a feed-forward net's, whose outputs are mixed after the functions
            self.lm.get_submodule(layer).is_apart = True
        return new

    def add_latent(self, latent: nn.Module) -> None:
        super().add_latent(mix(latent, self.choice))


def start_paths(lm: nn.Module, state: Dict[str, Any], prefix: str) -> None:
    """Let all paths of a super-network start from a checkpoint without a search, in place.

    ESPnet's `--init_param` puts the checkpoint's tensors over the model's own in `state`, which are
    then the same memory. The LM's keys begin with `prefix`.
    """

    def is_given(key: str, own: torch.Tensor) -> bool:
        value = state.get(key)
        return value is not None and value.data_ptr() != own.data_ptr()

    for name, layer in lm.named_modules():
        begin = f"{prefix}{name}." if name else prefix
        for path, source in layer.sources.items() if isinstance(layer, Mixed) else ():
            for parameter, (own, rows) in source.items():
                key, copy = begin + own, getattr(getattr(layer, path), parameter)
                given = is_given(key, getattr(layer, own))
                if given and not is_given(f"{begin}{path}.{parameter}", copy):
                    state[f"{begin}{path}.{parameter}"] = state[key][slice(*rows)].clone()


def take_paths(lm: Any, state: Dict[str, Any], prefix: str) -> None:
    """Take the paths that an LM has from a super-network's checkpoint, in place."""
    # those of a recurrence or an input as a whole come last: they are what its gates see
    for location, kind, found in sorted(
        _weights(lm), key=lambda item: item[2].rows == (0, len(item[2].whole))
    ):
        begin = f"{prefix}{found.path}."
        path = path_name(found.owner, kind, location)
        alias = f"{begin}{path}.{name_in_path(found.owner, found.parameter, location)}"
        key = begin + found.parameter
        if alias not in state or key not in state:
            continue
        value = state.pop(alias)
        every = lm.named_parameters(remove_duplicate=False)
        # tied parameters have learnt with the layer's own
        if sum(own is found.whole for _, own in every) == 1:
            state[key] = state[key].clone()
            state[key][slice(*found.rows)].copy_(value)
        for other in [other for other in state if other.startswith(f"{alias}_")]:
            _place_posterior(lm, found, other.removeprefix(alias), state.pop(other), state, begin)


def _weights(lm: Any) -> Iterator[Tuple[str, str, Block]]:
    """Yield (location, kind, parameter) of each uncertain weight that is not searched."""
    for place, kind in zip(lm.places, lm.kinds.values(), strict=True):
        if place.location in getattr(lm, PREFIX, ()):
            continue
        if kind.needs == "function":
            weights = place.weights_of(place.position.function)
        else:
            weights = place.weights_of(place.position) if kind.needs == "weights" else []
        for found in (found for w in weights for found in lm.posterior.find(w)):
            yield place.location, kind.name, found


def _place_posterior(
    lm: Any, found: Block, suffix: str, value: torch.Tensor, state: Dict[str, Any], begin: str
) -> None:
    """Put a tensor of a path's posterior, from a search's checkpoint, under the keys of the layer.

    The value is shaped as the rows of the weights, or (); `state` is changed in place.
    """
    first, last = found.rows
    for block in lm.posterior.blocks():
        if (block.owner, block.parameter) != (found.owner, found.parameter):
            continue
        start, end = block.rows
        top, bottom = max(start, first), min(end, last)
        if top >= bottom:
            continue
        key = begin + block.key + suffix
        own = state.get(key, block.tensor(suffix)).detach().clone()
        if value.dim() == 0:
            own.copy_(value)
        else:
            own[top - start : bottom - start] = value[top - first : bottom - first]
        state[key] = own
