"""Reading checkpoints safely and writing them whole."""

from __future__ import annotations

import contextlib
import datetime
import errno
import logging
import math
import os
import threading
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping

import numpy as np
import torch

from espnet_bayeslm.bayes.kinds import current_names, is_posterior_key
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import atomic_write

# Why a folder cannot be written to: no room, or something that stands in the way.
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
NO_ENTRY = (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EEXIST)
# Classes that ESPnet's reporter leaves in `checkpoint.pth` beside plain values.
REPORTER_TYPES: List[Any] = [
    *(np.float64(0).__reduce__()[0], np.dtype, datetime.timedelta),
    *(type(np.dtype(number)) for number in (np.float64, np.float32, np.int64)),
]


def read_checkpoint(path: Any) -> Any:
    """Content of a checkpoint, read with `weights_only=True`.

    Raises:
        InputError: Not readable, damaged, or with more in it than values and tensors.
    """
    try:
        with torch.serialization.safe_globals(REPORTER_TYPES):
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # damaged bytes may end in any
        reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise InputError(
            f"cannot be read as a checkpoint ({reason})",
            path=path,
            remedy="Restore the file, or delete it and train again.",
        ) from error


def load_state(path: Any) -> Dict[str, torch.Tensor]:
    """The model's state_dict in a checkpoint.

    Args:
        path: `Nepoch.pth`, `valid.loss.ave.pth` or `checkpoint.pth`.

    Raises:
        InputError: Not readable, or not a dictionary of tensors.
    """
    state = read_checkpoint(path)
    if isinstance(state, dict) and isinstance(state.get("model"), Mapping):
        state = state["model"]
    if not isinstance(state, Mapping) or not all(map(_is_weight, state, state.values())):
        raise InputError(
            "expected a dictionary of tensors",
            path=path,
            remedy="Give a model file that ESPnet's training wrote.",
        )
    return dict(state)


def _is_weight(key: Any, value: Any) -> bool:
    """Whether an entry of a checkpoint is a dense tensor with a name."""
    return isinstance(key, str) and torch.is_tensor(value) and value.layout == torch.strided


def check_run(checkpoint: Any, *, path: Any) -> None:
    """Raise an InputError where what `read_checkpoint` returned is not a stopped training."""
    types = {"model": Mapping, "optimizers": list, "schedulers": list, "reporter": Mapping}
    parts = checkpoint if isinstance(checkpoint, Mapping) else {}
    wrong = [name for name, kind in types.items() if not isinstance(parts.get(name), kind)]
    if not wrong and not (
        isinstance(parts["reporter"].get("epoch"), int)
        and isinstance(parts["reporter"].get("stats"), Mapping)
        and all(isinstance(state, Mapping) for state in parts["optimizers"])
    ):
        wrong = ["reporter", "optimizers"]
    if wrong:
        raise InputError(
            f"cannot be resumed: {', '.join(wrong)} of the training not in it",
            path=path,
            remedy="Restore the file, or delete it and train again.",
        )


def check_fits(
    state: Mapping[str, torch.Tensor],
    module: torch.nn.Module,
    *,
    path: Any,
    complete: bool = True,
    posterior: bool = False,
) -> None:
    """Check that a checkpoint is of a module's architecture.

    Args:
        state: The checkpoint.
        module: The module it is meant for.
        path: Its file, for the message.
        complete: Whether it must have every tensor of the module.
        posterior: Whether posteriors must be the same too; else they may be there or not.

    Raises:
        InputError: Tensors are missing, have no place in the module, or have another shape.
    """
    problem = _misfit(current_names(state), module.state_dict(), complete, posterior)
    if problem:
        raise InputError(
            problem,
            path=path,
            remedy="Use the configuration and the token list that it was trained with.",
        )


def _misfit(
    state: Mapping[str, torch.Tensor],
    every: Mapping[str, torch.Tensor],
    complete: bool,
    posterior: bool,
) -> str:
    """What of a checkpoint does not fit a module's state_dict, in words; "" where all does."""
    own, given = ([k for k in x if posterior or not is_posterior_key(k)] for x in (every, state))
    names = {
        "of the model are not in it": [k for k in own if k not in state] if complete else [],
        "of it have no place in the model": [key for key in given if key not in every],
    }
    problems = [f"{len(k)} tensors {what} (the first: {k[0]})" for what, k in names.items() if k]
    if problems:
        return f"the checkpoint is of another architecture: {', '.join(problems)}"
    both = [(key, value, every[key]) for key, value in state.items() if key in every]
    shapes = [part for part in both if part[1].shape != part[2].shape]
    if shapes:
        key, value, expected = shapes[0]
        return (
            f"{key} has shape {tuple(value.shape)} in the checkpoint, expected"
            f" {tuple(expected.shape)} ({len(shapes)} such tensors)"
        )
    for key, value, expected in both:
        if value.dtype.is_floating_point != expected.dtype.is_floating_point:
            return f"{key} holds {value.dtype}, expected {expected.dtype}"
    return ""


@contextlib.contextmanager
def whole_checkpoints() -> Iterator[None]:
    """Make `torch.save` to a path appear whole or not at all within the block.

    ESPnet's trainer writes its checkpoints in place: a run killed while it writes would leave
    one that cannot be resumed.
    """
    save = torch.save

    def save_whole(obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
        if not isinstance(f, (str, os.PathLike)):
            return save(obj, f, *args, **kwargs)
        try:
            with atomic_write(Path(f), "wb") as stream:
                save(obj, stream, *args, **kwargs)
        except (OSError, RuntimeError) as error:
            # torch's writer hides what stopped it behind a RuntimeError about positions
            cause = error if isinstance(error, OSError) else error.__context__
            if not isinstance(cause, OSError):
                raise
            raise OSError(cause.errno, cause.strerror, os.fspath(f)) from error

    torch.save = save_whole
    try:
        yield
    finally:
        torch.save = save


def _what_remains(folder: Path) -> str:
    """Epoch of an experiment that a later run will start from, as a sentence's start."""
    try:
        epoch = read_checkpoint(folder / "checkpoint.pth")["reporter"]["epoch"]
    except (InputError, KeyError):
        return "No epoch was saved"
    return f"The checkpoint of epoch {epoch} is kept"


@contextlib.contextmanager
def writing_errors(folder: Path) -> Iterator[None]:
    """Turn what keeps a run from writing to its folder into bad input: one line, and a remedy.

    Raises:
        InputError: In place of an OSError of such a kind.
    """
    report = threading.excepthook

    def show(args: threading.ExceptHookArgs) -> None:
        """Give TensorBoard's thread a line; its error comes again where it is written to next."""
        if getattr(args.exc_value, "errno", None) in NO_ROOM:
            logging.warning(f"{folder}: TensorBoard's events: {args.exc_value}")
        else:
            report(args)

    threading.excepthook = show
    try:
        yield
    except OSError as error:
        # what a stream's own flush could not write has no name, and a link has a second one
        path = Path(error.filename2 or error.filename or folder)
        ours, whole = path.absolute(), folder.absolute()
        concerns = ours.is_relative_to(whole) or whole.is_relative_to(ours)
        if error.errno not in NO_ROOM + NO_ENTRY or not concerns:
            raise
        remedy = "make room" if error.errno in NO_ROOM else "mend that"
        raise InputError(
            f"cannot be written ({error.strerror})",
            path=path,
            remedy=f"{_what_remains(folder)}: {remedy}, and run the same command again with"
            " --resume true.",
        ) from error
    finally:
        threading.excepthook = report


def valid_perplexities(stats: Mapping[int, Mapping[str, Any]]) -> Dict[int, float]:
    """{epoch: perplexity of the validation text}, from an ESPnet reporter's statistics."""
    return {
        # of ESPnet's own LMs there is the loss, ln of it
        epoch: float(valid["ppl"]) if "ppl" in valid else math.exp(min(float(valid["loss"]), 700))
        for epoch, valid in ((epoch, phases.get("valid", {})) for epoch, phases in stats.items())
        if valid
    }
