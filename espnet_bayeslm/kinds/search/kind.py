"""The kind `search`: parallel paths at a location, mixed by architecture weights (Eq. 35)."""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, Iterator, List, Mapping, Sequence, Tuple

import torch
from torch import nn

from espnet_bayeslm.bayes import Kind, Place, Position, Weights, register_kind
from espnet_bayeslm.bayes.kinds import KINDS, Rows, parse_kind
from espnet_bayeslm.kinds.search import loading
from espnet_bayeslm.kinds.search.mixed import PREFIX, mix, mix_at
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


def choices(lm: nn.Module) -> Iterator[Tuple[str, Choice]]:
    """Yield (location, architecture weights) of the locations of an LM that are searched."""
    for module in lm.modules():
        if isinstance(module, Choice):
            yield module.location, module


@register_kind
@dataclasses.dataclass
class Search(Kind):
    """A super-network decides between candidates: their paths are mixed and trained together.

    The first candidate has the place's own layers. Every other candidate has copies of them, which
    become children of the mixed layers. The architecture weights are the LM's
    `search.{location}.weights`.
    """

    name = "search"
    group = "architecture"
    no_export = (
        "a super-network, at {places}, has no point-estimate form",
        "Train one of the architectures that `bayeslm search` ranks.",
    )

    candidates: Any = option("List of the kinds to choose from; default: all that fit.", None)

    @classmethod
    def fits(cls, position: Position) -> bool:
        """False: a search is no candidate of another search."""
        return False

    def fitted(self, position: Position) -> Kind:
        """Search at a position between the candidates, by default all kinds that it can have."""
        given = position.kinds if self.candidates is None else self.candidates
        if not isinstance(given, (list, tuple)) or len(given) < 2:
            raise InputError(
                f"candidates {given!r}: expected a list of two or more of"
                f" {', '.join(position.kinds)}"
            )
        kinds = [parse_kind(candidate) for candidate in given]
        for kind in kinds:
            if not kind.fits(position):
                raise kind.misfit(position)
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
    def owns(cls, key: str) -> bool:
        """True if a key of the state_dict belongs to architecture weights or further paths."""
        return any(word.startswith(PREFIX) for word in key.split("."))

    @classmethod
    def renamed(cls, state: Mapping[str, Any]) -> Dict[str, Any]:
        """Checkpoint of an earlier version, whose paths had no layers, with the present names."""
        return {loading.current_name(key): value for key, value in state.items()}

    @classmethod
    def adapt(cls, lm: nn.Module, state: Dict[str, Any], prefix: str) -> None:
        """Start all paths from an ordinary checkpoint; take the LM's path from a search's."""
        loading.start_paths(lm, state, prefix)
        loading.take_paths(lm, state, prefix)


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

    def add_process(self, basis: Tuple[str, ...]) -> List[Weights]:
        self.weights_of(self.position.function)
        new = super().add_process(basis)
        path, _, _ = new[0].pattern.rpartition(".")
        layers = self._by_layer(super().weights_of(self.position.function))
        mixed = mix_at(self.lm, path, self.choice)
        mixed.add_function(self.location, self.kind)
        for layer in layers:
            # a feed-forward net's, whose outputs are mixed after the functions
            self.lm.get_submodule(layer).is_apart = True
        return new

    def add_latent(self, latent: nn.Module) -> None:
        super().add_latent(mix(latent, self.choice))
