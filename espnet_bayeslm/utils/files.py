"""Outputs that appear whole or not at all, and inputs read line by line."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import IO, Dict, Iterator, Tuple, Union

from espnet_bayeslm.utils.errors import InputError

PathLike = Union[str, "os.PathLike[str]"]


def _umask_mode(mode: int) -> int:
    """Return `mode` less the process's umask (tempfile ignores the umask)."""
    umask = os.umask(0)
    os.umask(umask)
    return mode & ~umask


@contextlib.contextmanager
def atomic_write(path: PathLike, mode: str = "w") -> Iterator[IO]:
    """Open a file that replaces `path` when the block ends without an error.

    Args:
        path: The file to write; its folder is made where it is missing.
        mode: "w" (UTF-8 text) or "wb".
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    try:
        with os.fdopen(handle, mode, encoding=None if "b" in mode else "utf-8") as f:
            yield f
        os.chmod(name, _umask_mode(0o666))
        os.replace(name, target)
    except BaseException:
        os.unlink(name)
        raise


@contextlib.contextmanager
def atomic_directory(path: PathLike) -> Iterator[Path]:
    """Make a folder that replaces the folder `path` when the block ends without an error.

    Yields:
        A temporary folder beside `path`, to be filled.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        yield temporary
        os.chmod(temporary, _umask_mode(0o777))
        if target.exists():
            shutil.rmtree(target)
        os.replace(temporary, target)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def read_lines(path: PathLike) -> Iterator[Tuple[int, str]]:
    """Yield (line number from 1, line without its end) of a UTF-8 text file.

    Raises:
        InputError: The file is missing, is a folder, or is not UTF-8.
    """
    try:
        with open(path, encoding="utf-8", newline="\n") as f:
            for number, line in enumerate(f, 1):
                yield number, line.rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise InputError(
            f"not UTF-8 text ({error.reason} at byte {error.start})",
            path=path,
            remedy="Convert the file to UTF-8.",
        ) from error
    except (FileNotFoundError, IsADirectoryError) as error:
        raise InputError(f"cannot be read ({error.strerror})", path=path) from error


def read_keyed_lines(path: PathLike) -> Dict[str, Tuple[int, str]]:
    """Return {key: (line number, rest of the line)} of a Kaldi text file.

    Raises:
        InputError: A line without a key, or a key that comes twice.
    """
    entries: Dict[str, Tuple[int, str]] = {}
    for number, line in read_lines(path):
        fields = line.split(maxsplit=1)
        if not fields:
            raise InputError(
                "an empty line where `key value ...` was expected",
                path=path,
                line=number,
                remedy="Delete the line.",
            )
        key = fields[0]
        if key in entries:
            raise InputError(
                f"the key {key!r} stands already in line {entries[key][0]}",
                path=path,
                line=number,
                remedy="Keys must be unique.",
            )
        entries[key] = (number, fields[1].strip() if len(fields) > 1 else "")
    return entries
