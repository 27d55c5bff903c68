"""Files of a training that stay whole, should a kill or a full disk stop it."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
from pathlib import Path
from typing import Any, Callable, Iterator, Sequence

import torch
from espnet2.train import trainer
from espnet2.train.reporter import Reporter
from espnet2.train.trainer import TrainerOptions

from espnet_bayeslm.bayes import process_rank
from espnet_bayeslm.loading.checkpoint import read_checkpoint
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import atomic_write
from espnet_bayeslm.utils.log import LOG

# Why a folder cannot be written to: no room, or something that stands in the way.
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
NO_ENTRY = (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EEXIST)


@contextlib.contextmanager
def writing_errors(folder: Path) -> Iterator[None]:
    """Turn errors of writing to an experiment's folder into an InputError with a remedy."""
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


@contextlib.contextmanager
def replaced(owner: Any, name: str, function: Callable) -> Iterator[None]:
    """Replace a function within the block by one whose first argument is the old function."""
    before = getattr(owner, name)
    setattr(owner, name, functools.partial(function, before))
    try:
        yield
    finally:
        setattr(owner, name, before)


@contextlib.contextmanager
def whole_checkpoints(folder: Path) -> Iterator[None]:
    """Within the block ESPnet's trainer writes checkpoints whole, and averages that are right.

    What a kill has left of a checkpoint is removed first.
    """
    averages = replaced(trainer, "average_nbest_models", average_apart)
    with replaced(torch, "save", save_whole), averages:
        if process_rank() == 0:
            for leftover in folder.glob(".*.pth.*"):
                leftover.unlink()
        yield


def save_whole(save: Callable, obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
    """`torch.save` to a path that appears whole or not at all.

    ESPnet's trainer writes its checkpoints in place: a run killed while it writes would leave
    one that cannot be resumed.
    """
    if not isinstance(f, (str, os.PathLike)):
        return save(obj, f, *args, **kwargs)
    try:
        with atomic_write(f, "wb") as stream:
            save(obj, stream, *args, **kwargs)
    except (OSError, RuntimeError) as error:
        # torch's writer hides what stopped it behind a RuntimeError about positions
        cause = error if isinstance(error, OSError) else error.__context__
        if not isinstance(cause, OSError):
            raise
        raise OSError(cause.errno, cause.strerror, os.fspath(f)) from error


def average_apart(
    average: Callable,
    output_dir: Path,
    reporter: Reporter,
    best_model_criterion: Sequence[Sequence[str]],
    nbest: Sequence[int],
    **options: Any,
) -> None:
    """ESPnet's average of the best epochs, for each criterion and number apart.

    It adds up in the first epoch's own tensors, which the next average would start from.
    """
    for phase, key, mode in best_model_criterion:
        if reporter.has(phase, key):
            num_epochs = len(reporter.sort_epochs(phase, key, mode))
            # ascending: `*.ave.pth` leads to the last
            for number in [n for n in sorted(nbest) if n <= num_epochs] or [1]:
                average(output_dir, reporter, [(phase, key, mode)], [number], **options)


def link(path: Path, target: str) -> None:
    """Make `path` a symbolic link to a file beside it, if it is not one and the file is there."""
    is_right = path.is_symlink() and os.readlink(path) == target
    if not is_right and path.with_name(target).exists():
        path.unlink(missing_ok=True)
        path.symlink_to(target)
        LOG.info(f"{path} leads to {target} again")


def heal(folder: Path, model: torch.nn.Module, reporter: Reporter, options: TrainerOptions) -> None:
    """Complete an experiment's folder after a kill, with the model and the reporter as resumed.

    ESPnet writes `checkpoint.pth`, then the epoch's model, and then the links to the latest and
    the best: a kill in between leaves undone what belongs to an epoch that will not be trained
    again.
    """
    name = f"{reporter.get_epoch()}epoch.pth"
    if not (folder / name).exists():
        torch.save(model.state_dict(), folder / name)
        LOG.info(f"Wrote {folder / name} again")
    link(folder / "latest.pth", name)
    for phase, key, mode in options.best_model_criterion:
        if reporter.has(phase, key):
            best = reporter.get_best_epoch(phase, key, mode)
            link(folder / f"{phase}.{key}.best.pth", f"{best}epoch.pth")
