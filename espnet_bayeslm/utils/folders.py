"""Folders that are written whole or not at all, by one process at a time."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import shutil
import socket
from pathlib import Path
from typing import AbstractSet, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple

import yaml

from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike
from espnet_bayeslm.utils.log import LOG

LOCK = "training.lock"
# What a file system without locks answers.
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


@contextlib.contextmanager
def staged(
    path: PathLike, *, replaces: Iterable[str] = (), last: Sequence[str] = ()
) -> Iterator[Path]:
    """Make a folder whose files move into the folder `path` when the block ends well.

    Anything else in `path`, or in the folder that it leads to, stays. After an error nothing has
    been written.

    Args:
        path: The folder.
        replaces: Files that an earlier run has written there, as paths from it: they go.
        last: Files by which others know that all are there: they go first and come last.

    Yields:
        A temporary folder, to be filled.
    """
    target, place = _destination(path)
    # where this process is killed it stays
    temporary = place / f"{leftover_prefix(target)}{secrets.token_hex(4)}"
    temporary.mkdir()
    try:
        yield temporary
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            os.rename(temporary, target)
            return
        names = files_in(temporary)
        _check_way(target, names)
        for name in last:
            (target / name).unlink(missing_ok=True)
        for name in sorted(names, key=lambda name: last.index(name) if name in last else -1):
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            os.replace(temporary / name, target / name)
        for name in set(replaces) - set(names):
            _remove(target, name)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def check_folder(path: PathLike, *, written: Optional[AbstractSet[str]] = None) -> None:
    """Check that `staged` can write to a folder, before the work for it.

    If `written` is given, it has the names of all that may be in the folder already.
    """
    others = set(entries(path)) - written if written is not None and Path(path).is_dir() else None
    if others:
        raise InputError(
            f"holds {min(others)}, which is nothing that was exported",
            path=path,
            remedy="Give a new folder.",
        )
    _destination(path)


def check_output(
    output: PathLike, marker: str, *, tool: str, inputs: Mapping[str, Optional[PathLike]]
) -> List[str]:
    """Check that a tool can write its output folder, and find the files of an earlier run.

    The file `marker`, yaml or JSON, names the `files` of a run. Without it the folder must be new
    or empty. No input, {option: path}, may lie in the folder.
    """
    folder = Path(output)
    there = entries(folder) if folder.is_dir() else []
    # a run that was killed while its files came into place has left a folder within
    ours = marker in there or (folder.is_dir() and len(os.listdir(folder)) > len(there))
    within = [
        f"{option} {path} is in it"
        for option, path in inputs.items()
        if ours and path is not None and Path(path).resolve().is_relative_to(folder.resolve())
    ]
    if (folder.exists() and not folder.is_dir()) or (there and not ours):
        within.append(f"is there, and is not the output of an earlier `bayeslm {tool}`")
    if within:
        raise InputError(within[0], path=output, remedy="Give --output a new folder.")
    _destination(folder)
    try:
        content = yaml.safe_load((folder / marker).read_text(encoding="utf-8"))
        return [str(name) for name in content["files"]]
    except (OSError, ValueError, yaml.YAMLError, TypeError, KeyError):
        return []


def entries(folder: PathLike) -> List[str]:
    """Names in a folder, without the leftovers of killed `staged` runs."""
    prefix = leftover_prefix(folder)
    return sorted(name for name in os.listdir(folder) if not name.startswith(prefix))


def leftover_prefix(folder: PathLike) -> str:
    """Beginning of the names of temporary folders that `staged` makes for a folder."""
    return f".{Path(folder).resolve().name}."


def _destination(path: PathLike) -> Tuple[Path, Path]:
    """Folder that `path` is, leads to or will be, and the nearest one to it that is there."""
    target = Path(path)
    if target.is_symlink() and not target.exists():
        raise InputError(
            f"a link to {os.readlink(target)}, which does not exist",
            path=target,
            remedy="Remove the link, or make its target.",
        )
    if target.exists() and not target.is_dir():
        raise InputError("a file, where a folder is to be written", path=target)
    target = target.resolve()
    place = next(folder for folder in (target, *target.parents) if folder.exists())
    if not (place.is_dir() and os.access(place, os.W_OK)):
        raise InputError(f"cannot be written ({place} is no folder, or read-only)", path=path)
    return target, place


def files_in(folder: PathLike) -> List[str]:
    """Files of a folder and its subfolders, as paths from it."""
    paths = (path for path in Path(folder).rglob("*") if not path.is_dir())
    return sorted(str(path.relative_to(folder)) for path in paths)


def _check_way(folder: Path, names: Iterable[str]) -> None:
    """Raise an InputError where a folder stands in place of a file, or a file of a folder."""
    for name in names:
        above = [folder / part for part in list(Path(name).parents)[:-1]]
        if (folder / name).is_dir() or any(p.exists() and not p.is_dir() for p in above):
            raise InputError(
                "is in the way of a file to be written",
                path=folder / name,
                remedy="Move it, or give another folder.",
            )


def _remove(folder: Path, name: str) -> None:
    """Remove a file from a folder, and the folders in it that this leaves empty."""
    if Path(name).is_absolute() or ".." in Path(name).parts:
        return
    with contextlib.suppress(OSError):  # another's folder has its name now
        (folder / name).unlink()
    for above in list((folder / name).parents)[: len(Path(name).parents) - 1]:
        with contextlib.suppress(OSError):  # not empty
            above.rmdir()


@contextlib.contextmanager
def folder_lock(folder: PathLike) -> Iterator[None]:
    """Hold an experiment's folder against other processes, which may run on other machines.

    The operating system gives the lock up when its owner ends, however it ends; the file stays.
    """
    path = Path(folder) / LOCK
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+", buffering=0) as f:
        try:
            # lockf, not flock: a forked process (a data loader's worker) must not inherit the lock
            # and outlive its owner with it.
            fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError) as error:
            f.seek(0)
            owner = f.read().decode().strip() or "another process"
            raise InputError(
                f"{owner} is training here",
                path=folder,
                remedy="Wait for it or end it, or give another folder.",
            ) from error
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            LOG.warning(f"{path}: no locks here: start no second training in this folder")
        with contextlib.suppress(OSError):  # no room for who has it
            f.truncate(0)
            f.write(f"process {os.getpid()} of {socket.gethostname()}\n".encode())
        yield
