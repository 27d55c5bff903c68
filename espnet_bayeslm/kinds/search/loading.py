"""Checkpoints of super-networks, into them and into the LMs that they hold."""

from __future__ import annotations

import re
from typing import Any, Dict, Iterator, Tuple

import torch
from torch import nn

from espnet_bayeslm.bayes import Block
from espnet_bayeslm.bayes.kinds import select_rows
from espnet_bayeslm.kinds.search.mixed import PREFIX, Mixed, name_in_path, path_name

# Names of earlier versions, in which paths had no layers of their own.
OLD_GATE = re.compile(
    r"(.*\.)?search_([a-z]+)_((?:weight|bias)_[ih]h)_l(\d+)_([a-z_]+?)"
    r"(_log_std|_prior_mean|_start_std)?"
)
OLD_PARAMETER = re.compile(r"(.*\.)?search_([a-z]+)_((?:weight|bias)[a-z_]*)")


def current_name(key: str) -> str:
    """Present name of a key of an earlier version's checkpoint."""
    if match := OLD_GATE.fullmatch(key):
        layer, kind, parameter, k, position, suffix = match.groups(default="")
        return f"{layer}{PREFIX}_{kind}_{position}_l{k}.{parameter}{suffix}"
    if match := OLD_PARAMETER.fullmatch(key):
        layer, kind, parameter = match.groups(default="")
        return f"{layer}{PREFIX}_{kind}.{parameter}"
    return key


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
                    state[f"{begin}{path}.{parameter}"] = select_rows(state[key], rows).clone()


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
        # tied parameters have learnt with the layer's own
        if not _is_tied(lm, getattr(found.owner, found.parameter)):
            state[key] = state[key].clone()
            select_rows(state[key], found.rows).copy_(value)
        for other in [other for other in state if other.startswith(f"{alias}_")]:
            _place_posterior(lm, found, other.removeprefix(alias), state.pop(other), state, begin)


def _is_tied(lm: nn.Module, parameter: torch.Tensor) -> bool:
    """True if a parameter has several names."""
    every = lm.named_parameters(remove_duplicate=False)
    return sum(value is parameter for _, value in every) > 1


def _weights(lm: Any) -> Iterator[Tuple[str, str, Block]]:
    """Yield (location, kind, parameter) of each uncertain weight that is not searched."""
    for location, kind in lm.kinds.items():
        place = lm.place(location)
        if str(location) in getattr(lm, PREFIX, ()):
            continue
        if kind.needs == "function":
            weights = place.weights_of(place.position.function)
        else:
            weights = place.weights_of(place.position) if kind.needs == "weights" else []
        for found in (found for w in weights for found in lm.posterior.find(w)):
            yield str(location), kind.name, found


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
