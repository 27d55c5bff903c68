"""Checkpoints of a training: written whole, checked before a run goes on, read for its epochs."""

from __future__ import annotations

import contextlib
import errno
import math
import os
from pathlib import Path
from typing import Any, Dict, Iterator, Mapping

import torch

from espnet_bayeslm.loading.checkpoint import read_checkpoint
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import atomic_write

# Why a folder cannot be written to: no room, or something that stands in the way.
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
NO_ENTRY = (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EEXIST)


def check_run(checkpoint: Any, *, path: Any) -> None:
    """Raise an InputError where what `read_checkpoint` returned is not a stopped training."""
    types = {"model": Mapping, "optimizers": list, "schedulers": list, "reporter": Mapping}
    parts = checkpoint if isinstance(checkpoint, Mapping) else {}
    wrong = [name for name, kind in types.items() if not isinstance(parts.get(name), kind)]
    if not wrong:
        epoch, stats = (parts["reporter"].get(name) for name in ("epoch", "stats"))
        are_states = all(isinstance(state, Mapping) for state in parts["optimizers"])
        if not (isinstance(epoch, int) and isinstance(stats, Mapping) and are_states):
            wrong = ["reporter", "optimizers"]
    if wrong:
        raise InputError(
            f"cannot be resumed: {', '.join(wrong)} of the training not in it",
            path=path,
            remedy="Restore the file, or delete it and train again.",
        )


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


@contextlib.contextmanager
def writing_errors(folder: Path) -> Iterator[None]:
    """Turn what keeps a run from writing to its folder into bad input: one line, and a remedy."""
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
        remains = "No epoch was saved"
        with contextlib.suppress(InputError, KeyError):
            epoch = read_checkpoint(folder / "checkpoint.pth")["reporter"]["epoch"]
            remains = f"The checkpoint of epoch {epoch} is kept"
        raise InputError(
            f"cannot be written ({error.strerror})",
            path=path,
            remedy=f"{remains}: {remedy}, and run the same command again with --resume true.",
        ) from error


def valid_perplexities(stats: Mapping[int, Mapping[str, Any]]) -> Dict[int, float]:
    """{epoch: perplexity of the validation text}, from an ESPnet reporter's statistics."""
    return {
        # of ESPnet's own LMs there is the loss, ln of it
        epoch: float(valid["ppl"]) if "ppl" in valid else math.exp(min(float(valid["loss"]), 700))
        for epoch, valid in ((epoch, phases.get("valid", {})) for epoch, phases in stats.items())
        if valid
    }
