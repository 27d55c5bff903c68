"""Loading of other LMs' checkpoints into an uncertain LM."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping

import torch
from torch import nn

from espnet_bayeslm.bayes.kinds import NOISE_STEP, adapt_to_kinds, is_posterior_key
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.log import LOG


def drop_posterior(
    module: nn.Module, state: Dict[str, Any], prefix: str, *_others: Any
) -> List[str]:
    """Remove a posterior's tensors that the module lacks from a checkpoint; the removed keys."""
    own = {prefix + key for key in module.state_dict()}
    extra = [k for k in state if k.startswith(prefix) and k not in own and is_posterior_key(k)]
    for key in extra:
        del state[key]
    return extra


def _shared(names: List[str]) -> str:
    """Names, a few of them, for a log line."""
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def _check_tied(module: nn.Module, state: Mapping[str, Any], prefix: str) -> None:
    """Raise an InputError where a checkpoint has two tables for one tensor of the LM."""
    first: Dict[int, str] = {}
    for key, value in module.state_dict(keep_vars=True).items():
        other = first.setdefault(id(value), key)
        if other != key and not torch.equal(state[prefix + other], state[prefix + key]):
            raise InputError(
                f"{other} and {key} differ in the checkpoint, and are one tensor in this LM",
                remedy="Set tie_weights: false.",
            )


def adapt_checkpoint(module: Any, state: Dict[str, Any], prefix: str, *_others: Any) -> None:
    """Fit a checkpoint to this LM's locations, and log the differences.

    The posterior mean has the names of point-estimate weights, so only the tensors of a posterior
    can differ: extra ones are left out, missing ones keep their start. Anything else missing means
    another architecture. The number of samples made in training is taken out.
    """
    adapt_to_kinds(module, state, prefix)
    own = {prefix + key: value for key, value in module.state_dict().items()}
    missing = [key for key in own if key not in state]
    weights = [key for key in missing if not is_posterior_key(key)]
    if weights:
        raise InputError(
            f"the checkpoint is of another architecture: {len(weights)} of the LM's"
            f" {len(own)} tensors are not in it ({_shared(weights)})",
            remedy="Use the configuration that this checkpoint was trained with.",
        )
    _check_tied(module, state, prefix)
    extra = drop_posterior(module, state, prefix)
    for key in missing:
        state[key] = own[key]
    if extra:
        LOG.warning(
            f"Left out {len(extra)} posterior tensors of the checkpoint, or of a search's other"
            f" paths, that this LM has no place for: {_shared(extra)}"
        )
    if missing:
        LOG.warning(
            f"{len(missing)} posterior tensors are not in the checkpoint and keep their"
            f" present values: {_shared(missing)}"
        )
    step = state.pop(prefix + NOISE_STEP, None)
    if step is not None and module.kinds:
        module.noise_step = int(step)
