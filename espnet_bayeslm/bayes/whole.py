"""Mean-field Gaussian posterior over every parameter of a module, kept beside the means.

An optimizer such as IVON learns one standard deviation per weight. As buffers of the layers
they travel in the model's checkpoint, and what reads it can draw whole models.
"""

from __future__ import annotations

import contextlib
from typing import Iterator, List, Set, Tuple

import torch
from torch import nn

from espnet_bayeslm.bayes.kinds import is_posterior_key
from espnet_bayeslm.bayes.weights import LOG_STD
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.log_std import LOG_STD_MIN, clamp_log_std

SUFFIX = LOG_STD


def _owned_parameters(module: nn.Module) -> Iterator[Tuple[str, nn.Module, str, nn.Parameter]]:
    """Yield (prefix, owner, own name, parameter) of every name that a parameter has."""
    for prefix, owner in module.named_modules():
        for name, parameter in owner.named_parameters(recurse=False, remove_duplicate=False):
            yield f"{prefix}." if prefix else "", owner, name, parameter


def add_whole_posterior(module: nn.Module, *, log_std: float = LOG_STD_MIN) -> None:
    """Give every parameter a buffer `{parameter}_log_std` beside it; a tied one gets one.

    Args:
        module: The model, before it is loaded from a checkpoint that has the buffers.
        log_std: Their start; the default counts as certain.

    Raises:
        InputError: A parameter has a posterior already; nothing was added.
    """
    owned, seen = [], set()
    for prefix, owner, name, parameter in _owned_parameters(module):
        if is_posterior_key(prefix + name) or hasattr(owner, name + SUFFIX):
            raise InputError(
                f"{prefix}{name}: this layer has a posterior already",
                remedy="Leave out `uncertainty`, or learn only the posterior that it names.",
            )
        if id(parameter) not in seen:
            seen.add(id(parameter))
            owned.append((owner, name, parameter))
    for owner, name, parameter in owned:
        owner.register_buffer(name + SUFFIX, torch.full_like(parameter.detach(), log_std))


def whole_posterior(module: nn.Module) -> Iterator[Tuple[str, nn.Parameter, torch.Tensor]]:
    """Yield (name in the state_dict, parameter, log standard deviations), each parameter once."""
    seen: Set[int] = set()
    for prefix, owner, name, parameter in _owned_parameters(module):
        log_std = owner._buffers.get(name + SUFFIX)
        if log_std is not None and id(parameter) not in seen:
            seen.add(id(parameter))
            yield prefix + name, parameter, log_std


@torch.no_grad()
def perturb(parameter: torch.Tensor, std: torch.Tensor, generator: torch.Generator) -> None:
    """Add noise of these standard deviations to a parameter, in place."""
    parameter.addcmul_(std, torch.empty_like(parameter).normal_(generator=generator))


@contextlib.contextmanager
def sampled_whole(module: nn.Module, generator: torch.Generator) -> Iterator[None]:
    """Hold one draw of all weights within the block; the means come back bit for bit.

    Args:
        module: A module after `add_whole_posterior`.
        generator: Of the weights' device.

    Raises:
        InputError: The module has no posterior of this kind.
    """
    means: List[Tuple[nn.Parameter, torch.Tensor]] = []
    try:
        for _, parameter, log_std in whole_posterior(module):
            means.append((parameter, parameter.detach().clone()))
            perturb(parameter, clamp_log_std(log_std).exp(), generator)
        if not means:
            raise InputError("the model has no posterior over all of its weights")
        yield
    finally:
        with torch.no_grad():
            for parameter, mean in means:
                parameter.copy_(mean)
