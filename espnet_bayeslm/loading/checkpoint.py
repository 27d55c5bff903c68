"""Checkpoints: read safely, and checked against a module."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any, Dict, List, Mapping

import numpy as np
import torch

from espnet_bayeslm.bayes.kinds import is_posterior_key
from espnet_bayeslm.pretrained.loaded_weights import find_pointer, pointer_error
from espnet_bayeslm.utils.errors import InputError

# Classes that ESPnet's reporter leaves in `checkpoint.pth` beside plain values.
REPORTER_TYPES: List[Any] = [
    *(np.float64(0).__reduce__()[0], np.dtype, datetime.timedelta),
    *(type(np.dtype(number)) for number in (np.float64, np.float32, np.int64)),
]


def read_checkpoint(path: Any) -> Any:
    """Content of a checkpoint, read with `weights_only=True`."""
    if Path(path).is_dir():
        remedy = "Give a checkpoint in it, such as valid.loss.ave.pth."
        raise InputError("a folder, where a checkpoint was expected", path=path, remedy=remedy)
    try:
        with torch.serialization.safe_globals(REPORTER_TYPES):
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # damaged bytes may end in any
        if find_pointer(Path(path)):
            raise pointer_error(Path(path)) from error
        reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise InputError(
            f"cannot be read as a checkpoint ({reason})",
            path=path,
            remedy="Restore the file, or delete it and train again.",
        ) from error


def load_state(path: Any) -> Dict[str, torch.Tensor]:
    """The model's state_dict in a checkpoint, `Nepoch.pth` or `checkpoint.pth`."""
    state = read_checkpoint(path)
    if isinstance(state, dict) and isinstance(state.get("model"), Mapping):
        state = state["model"]
    if not isinstance(state, Mapping) or not all(
        isinstance(key, str) and torch.is_tensor(value) and value.layout == torch.strided
        for key, value in state.items()
    ):
        raise InputError(
            "expected a dictionary of tensors",
            path=path,
            remedy="Give a model file that ESPnet's training wrote.",
        )
    return dict(state)


def check_fits(
    state: Mapping[str, torch.Tensor],
    module: torch.nn.Module,
    *,
    path: Any,
    complete: bool = True,
    posterior: bool = False,
) -> None:
    """Check that a checkpoint, of the file `path`, is of a module's architecture.

    If it must be `complete`, it has every tensor of the module. With `posterior` posteriors must
    match too; else any posterior, or none, is accepted.
    """
    every, problem = module.state_dict(), ""
    names = {
        "of the model are not in it": [k for k in every if k not in state] if complete else [],
        "of it have no place in the model": [key for key in state if key not in every],
    }
    if not posterior:
        names = {what: [k for k in x if not is_posterior_key(k)] for what, x in names.items()}
    found = [f"{len(k)} tensors {what} (the first: {k[0]})" for what, k in names.items() if k]
    both = [(key, value, every[key]) for key, value in state.items() if key in every]
    shapes = [part for part in both if part[1].shape != part[2].shape]
    is_float = [part for part in both if part[1].is_floating_point() != part[2].is_floating_point()]
    if found:
        problem = f"the checkpoint is of another architecture: {', '.join(found)}"
    elif shapes:
        key, value, expected = shapes[0]
        problem = (
            f"{key} has shape {tuple(value.shape)} in the checkpoint, expected"
            f" {tuple(expected.shape)} ({len(shapes)} such tensors)"
        )
    elif is_float:
        key, value, expected = is_float[0]
        problem = f"{key} holds {value.dtype}, expected {expected.dtype}"
    if problem:
        raise InputError(
            problem,
            path=path,
            remedy="Use the configuration and the token list that it was trained with.",
        )
