"""A folder that one process at a time may write to."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
from pathlib import Path
from typing import Iterator

from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike
from espnet_bayeslm.utils.log import LOG

LOCK = "training.lock"
# What a file system without locks answers.
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


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
