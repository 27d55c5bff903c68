"""Parallel paths of a super-network (Xue et al. 2022, IV-B).

At a location that is searched each candidate kind has a path with parameters of its own, and the
paths' outputs are mixed by the softmax of architecture weights. The first candidate's parameters
are the layer's own; the other paths' are copies under names that begin with `search_KIND_`.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, Iterator, Mapping, Optional, Tuple

import torch
from torch import nn

from espnet_bayeslm.bayes.locations import Kind
from espnet_bayeslm.utils.errors import InputError

# What the names of a super-network's own parameters and modules begin with.
PREFIX = "search"
Rows = Optional[Tuple[int, int]]


def select_rows(tensor: torch.Tensor, rows: Rows) -> torch.Tensor:
    """Return some rows of a tensor (None: all), sharing its storage."""
    return tensor if rows is None else tensor[slice(*rows)]


class Choice(nn.Module):
    """The architecture weights of a location.

    Args:
        location: The location.
        candidates: The kinds to choose from.
    """

    def __init__(self, location: str, candidates: Tuple[Kind, ...]):
        super().__init__()
        self.location = location
        self.candidates = candidates
        self.weights = nn.Parameter(torch.zeros(len(candidates)))

    @property
    def kinds(self) -> Tuple[str, ...]:
        """The candidates' names."""
        return tuple(kind.name for kind in self.candidates)

    def shares(self) -> Dict[str, torch.Tensor]:
        """Return kind -> its path's share, softmax(a) of Eq. 35, each ()."""
        weights = self.weights
        precise = weights.to(torch.promote_types(weights.dtype, torch.float32))
        return dict(zip(self.kinds, precise.softmax(0).to(weights.dtype).unbind(0), strict=True))

    def force(self, kind: str) -> None:
        """Give all of the mixture to one path; its gradient is zero from then on.

        Raises:
            InputError: It is no candidate.
        """
        if kind not in self.kinds:
            raise InputError(f"{self.location}: candidates are {', '.join(self.kinds)}, not {kind}")
        chosen = torch.tensor([name == kind for name in self.kinds])
        self.weights.data.copy_(torch.where(chosen, 0.0, -torch.inf))


@dataclasses.dataclass(frozen=True)
class PathParameter:
    """What a parameter of a path is in the layer without a search.

    Attributes:
        location: The location that is searched, or has the kind.
        kind: The path's kind.
        parameter: The layer's own parameter.
        rows: The rows of it (None: all).
    """

    location: str
    kind: str
    parameter: str
    rows: Rows


class Shares(Dict[str, Dict[str, torch.Tensor]]):
    """{location: {kind: share}} for one forward pass."""

    def __deepcopy__(self, memo: Dict[int, Any]) -> Shares:
        """Return the values alone: torch copies nothing that has a gradient to give."""
        return Shares(
            {
                place: {kind: s.detach().clone() for kind, s in v.items()}
                for place, v in self.items()
            }
        )


class PathModule(nn.Module):
    """A layer that can have several paths.

    Attributes:
        copies: The other paths' parameters by their names, in a super-network.
        aliases: The names that the layer's own parameters have in the checkpoint of a
            super-network in which this layer's kind was not the first candidate.
        shares: {location: {kind: share}} for the next forward pass.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.copies: Dict[str, PathParameter] = {}
        self.aliases: Dict[str, PathParameter] = {}
        self.shares: Mapping[str, Mapping[str, torch.Tensor]] = {}

    def own(
        self,
        parameter: str,
        *,
        location: str,
        kind: str,
        position: str = "",
        rows: Rows = None,
        copy: bool,
    ) -> str:
        """Return the name of the parameter that a kind of uncertainty is to have.

        Args:
            parameter: The layer's own parameter.
            location: The location.
            kind: The kind.
            position: The position, where several share the parameter.
            rows: The rows that belong to it (None: all).
            copy: Whether it gets a path with a copy of them, beside the layer's own.
        """
        alias = f"{PREFIX}_{kind}_{parameter}" + (f"_{position}" if position else "")
        path = PathParameter(location, kind, parameter, rows)
        if not copy:
            self.aliases[alias] = path
            return parameter
        value = select_rows(getattr(self, parameter).detach(), rows).clone()
        self.register_parameter(alias, nn.Parameter(value))
        self.copies[alias] = path
        return alias

    def source(self, parameter: str) -> Tuple[str, Rows]:
        """Return the layer's own parameter and the rows of which a path's is a copy."""
        path = self.copies.get(parameter)
        return (parameter, None) if path is None else (path.parameter, path.rows)

    def reset_copies(self) -> None:
        """Make the other paths' parameters equal to the layer's own."""
        for name, path in self.copies.items():
            own = getattr(self, path.parameter).detach()
            getattr(self, name).data.copy_(select_rows(own, path.rows))


def start_copies(module: PathModule, state: Dict[str, Any], prefix: str) -> None:
    """Let all paths start from a checkpoint without a search, in place.

    Args:
        module: A layer of a super-network.
        state: What is about to be loaded into it. ESPnet's `--init_param` puts the checkpoint's
            tensors over the model's own, which are then the same memory.
        prefix: Of the layer's keys.
    """

    def is_given(name: str) -> bool:
        value = state.get(prefix + name)
        return value is not None and value.data_ptr() != getattr(module, name).data_ptr()

    for name, path in module.copies.items():
        if is_given(path.parameter) and not is_given(name):
            state[prefix + name] = select_rows(state[prefix + path.parameter], path.rows).clone()


def path_tensors(
    module: PathModule, state: Dict[str, Any], prefix: str
) -> Iterator[Tuple[str, PathParameter]]:
    """Yield the keys of a super-network's checkpoint that hold this layer's own parameters.

    Those of a recurrence or an input as a whole come last: they are what its gates see.
    """
    found = [
        (name, path)
        for name, path in module.aliases.items()
        if prefix + name in state and prefix + path.parameter in state
    ]
    yield from sorted(found, key=lambda item: item[1].rows is None)
