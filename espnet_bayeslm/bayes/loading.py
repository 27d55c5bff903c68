"""Fitting a layer's part of a checkpoint to its random weights and its paths."""

from __future__ import annotations

from typing import Any, Dict, List

import torch
from torch import nn

from espnet_bayeslm.bayes.block import POSTERIOR_SUFFIXES, is_posterior_key
from espnet_bayeslm.bayes.paths import PathParameter, path_tensors, select_rows, start_copies


def drop_posterior(module: nn.Module, state: Dict[str, Any], prefix: str, *_: Any) -> List[str]:
    """Take what a module without that posterior has no place for out of a checkpoint.

    Returns:
        The keys.
    """
    own = {prefix + key for key in module.state_dict()}
    extra = [k for k in state if k.startswith(prefix) and k not in own and is_posterior_key(k)]
    for key in extra:
        del state[key]
    return extra


def adapt_paths(module: Any, state: Dict[str, Any], prefix: str, *_: Any) -> None:
    """Start all paths from an ordinary checkpoint; take the path of this LM from a search's."""
    start_copies(module, state, prefix)
    for name, path in path_tensors(module, state, prefix):
        key = prefix + path.parameter
        state[key] = state[key].clone()
        select_rows(state[key], path.rows).copy_(state.pop(prefix + name))
        for suffix in POSTERIOR_SUFFIXES:
            value = state.pop(prefix + name + suffix, None)
            if value is not None:
                place_posterior(module, path, suffix, value, state, prefix)


def place_posterior(
    module: Any,
    path: PathParameter,
    suffix: str,
    value: torch.Tensor,
    state: Dict[str, Any],
    prefix: str,
) -> None:
    """Put what a search's checkpoint has of a path's posterior under this layer's own keys.

    Args:
        module: The layer.
        path: Whose it is.
        suffix: Which of the posterior's tensors.
        value: That tensor, shaped as the path's rows, or ().
        state: The checkpoint, changed in place.
        prefix: Of the layer's keys.
    """
    size = len(getattr(module, path.parameter))
    first, last = path.rows or (0, size)
    for block in module.random_blocks:
        begin, end = block.rows or (0, size)
        begin, end = max(begin, first), min(end, last)
        if block.parameter != path.parameter or begin >= end:
            continue
        key = prefix + block.key + suffix
        start = block.rows[0] if block.rows else 0
        own = state.get(key, getattr(module, block.key + suffix)).detach().clone()
        if value.dim() == 0:
            own.copy_(value)
        else:
            own[begin - start : end - start] = value[begin - first : end - first]
        state[key] = own
