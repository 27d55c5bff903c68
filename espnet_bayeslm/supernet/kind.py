"""The kind `search`: parallel paths at a location, mixed by architecture weights (Eq. 35)."""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, Iterator, List, Mapping, Sequence, Tuple

import torch
from torch import nn

from espnet_bayeslm.bayes import Kind, Place, Position, Weights, register_kind
from espnet_bayeslm.bayes.kinds import KINDS, Function, Output, Rows, option, parse_kind
from espnet_bayeslm.supernet import loading
from espnet_bayeslm.supernet.mixed import PREFIX, mix, mix_at
from espnet_bayeslm.utils.errors import InputError


class Choice(nn.Module):
    """The architecture weights of a location."""

    def __init__(self, location: str, candidates: Sequence[Kind]):
        super().__init__()
        self.location = location
        self.candidates = tuple(candidates)
        self.weights = nn.Parameter(torch.zeros(len(candidates)))

    @property
    def kinds(self) -> Tuple[str, ...]:
        """The candidates' names."""
        return tuple(kind.name for kind in self.candidates)

    def parameters_of(self, group: str) -> List[torch.Tensor]:
        """The architecture weights, if the group is theirs."""
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

    The first candidate has the place's own layers; each of the others has copies of them, which
    become children of the layers, that are mixed. The architecture weights are the LM's
    `search.{location}.weights`.
    """

    name = "search"
    group = "architecture"
    no_export = (
        "a super-network, at {places}, has no point-estimate form",
        "Train one of the architectures that `bayeslm search` ranks.",
    )

    candidates: Any = option("List of the kinds to choose from; default: all that fit.")

    @classmethod
    def fits(cls, position: Position) -> bool:
        """No: it is no candidate."""
        return False

    def fitted(self, position: Position) -> Kind:
        """The search at a position, its candidates those given, or all that the position can have.

        Raises:
            InputError: Fewer than two kinds, one twice, or one that the position cannot have.
        """
        given = position.kinds if self.candidates is None else self.candidates
        if not isinstance(given, (list, tuple)) or len(given) < 2:
            raise InputError(
                f"candidates {given!r}: expected a list of two or more of"
                f" {', '.join(position.kinds)}"
            )
        # as any other kind: a search is no candidate
        kinds = [Kind.fitted(parse_kind(candidate), position) for candidate in given]
        names = [kind.name for kind in kinds]
        for name in names:
            if names.count(name) > 1:
                raise InputError(f"candidates: {name} is named twice")
        return Search(candidates=sorted(kinds, key=lambda kind: list(KINDS).index(kind.name)))

    def apply(self, place: Place) -> None:
        """Give a place a path for each candidate."""
        choice = Choice(place.location, self.candidates)
        for kind in self.candidates:
            kind.apply(_Path(**vars(place), choice=choice, kind=kind.name))
        if not hasattr(place.lm, PREFIX):
            # before the layers, so that the architecture weights have these names
            place.lm._modules = {PREFIX: nn.ModuleDict(), **place.lm._modules}
        getattr(place.lm, PREFIX)[place.location] = choice

    @classmethod
    def owns(cls, key: str) -> bool:
        """See `Kind.owns`."""
        return any(word.startswith(PREFIX) for word in key.split("."))

    @classmethod
    def renamed(cls, state: Mapping[str, Any]) -> Dict[str, Any]:
        """See `Kind.renamed`: paths' parameters were those of the layer itself."""
        return {loading.current_name(key): value for key, value in state.items()}

    @classmethod
    def adapt(cls, lm: nn.Module, state: Dict[str, Any], prefix: str) -> None:
        """Start all paths from an ordinary checkpoint; take the LM's path from a search's."""
        loading.start_paths(lm, state, prefix)
        loading.take_paths(lm, state, prefix)


@dataclasses.dataclass(frozen=True)
class _Path(Place):
    """A place as the path of one candidate sees it.

    Attributes:
        choice: Its architecture weights.
        kind: The candidate; the first has the layers' own weights, the others copies.
    """

    choice: Choice
    kind: str

    def weights(self) -> List[Weights]:
        return self._of_path(super().weights())

    def _of_path(self, weights: Sequence[Weights]) -> List[Weights]:
        """These weights, or copies in layers that are paths of the layers that have them."""
        if self.kind == self.choice.kinds[0]:
            return list(weights)
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

    def function(self) -> Function:
        given = super().function()
        copied = self._of_path(given.weights)

        def replace(basis: Tuple[str, ...]) -> List[Weights]:
            new = given.replace(basis)
            mixed = mix_at(self.lm, given.path, self.choice)
            layers = list(map(self.lm.get_submodule, self._by_layer(given.weights)))
            mixed.add_function(self.location, self.kind, layers)
            return new

        return given._replace(weights=copied, replace=replace)

    def output(self) -> Output:
        given = super().output()

        def replace(latent: Any) -> None:
            if latent.feedback:
                raise InputError(
                    f"feedback of {self.location}: not available in a search",
                    remedy="Leave it out of the candidate.",
                )
            given.replace(mix(latent, self.choice))

        return given._replace(replace=replace)
