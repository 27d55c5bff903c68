"""Outputs that appear whole or not at all, and inputs read line by line."""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import shutil
import tempfile
import zlib
from pathlib import Path
from typing import IO, Dict, Iterator, Tuple, Union, cast

from espnet_bayeslm.utils.errors import InputError

PathLike = Union[str, "os.PathLike[str]"]

BYTE_ORDER_MARK = "\ufeff"


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


@contextlib.contextmanager
def staged(path: PathLike) -> Iterator[Path]:
    """Make a folder whose contents move into the folder `path` when the block ends well.

    What else stands in `path` stays. After an error nothing has been written.

    Yields:
        A temporary folder beside `path`, to be filled.

    Raises:
        InputError: `path` is a file.
    """
    target = Path(path)
    if target.exists() and not target.is_dir():
        raise InputError("a file, where a folder is to be written", path=target)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as temporary:
        yield Path(temporary)
        target.mkdir(exist_ok=True)
        for entry in sorted(Path(temporary).iterdir()):
            if (target / entry.name).is_dir():
                shutil.rmtree(target / entry.name)
            os.replace(entry, target / entry.name)


def _open_bytes(path: PathLike) -> IO[bytes]:
    """Open a file for reading, unpacked where its name ends in .gz."""
    if not os.fspath(path).endswith(".gz"):
        return open(path, "rb")
    if os.stat(path).st_size == 0:  # gzip itself takes it for an empty text
        raise EOFError("a gzip file without a byte: cut short?")
    # GzipFile's own iteration over lines is several times slower
    return cast(IO[bytes], io.BufferedReader(cast(io.RawIOBase, gzip.open(path, "rb"))))


def read_lines(path: PathLike) -> Iterator[Tuple[int, str]]:
    """Yield (line number from 1, line without its end) of a UTF-8 text file.

    A file whose name ends in .gz is unpacked. Lines may end as on Windows, and a byte order mark
    before the first line is left out.

    Raises:
        InputError: The file is missing, is a folder, is not UTF-8, or is a gzip file cut short.
    """
    try:
        with _open_bytes(path) as f:
            for number, line in enumerate(f, 1):
                try:
                    text = line.decode("utf-8")
                except UnicodeDecodeError as error:
                    raise InputError(
                        f"not UTF-8 text ({error.reason} at byte {error.start} of the line)",
                        path=path,
                        line=number,
                        remedy="Convert the file to UTF-8.",
                    ) from error
                if number == 1:
                    text = text.removeprefix(BYTE_ORDER_MARK)
                yield number, text.rstrip("\r\n")
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"cannot be read ({reason})", path=path) from error


def keyed_lines(path: PathLike) -> Iterator[Tuple[int, str, str]]:
    """Yield (line number, key, rest of the line) of a Kaldi text file.

    Raises:
        InputError: A line without a key, or a byte order mark that is not the file's first.
    """
    for number, line in read_lines(path):
        fields = line.split(maxsplit=1)
        if not fields:
            raise InputError(
                "an empty line where `key value ...` was expected",
                path=path,
                line=number,
                remedy="Delete the line.",
            )
        if fields[0].startswith(BYTE_ORDER_MARK):
            raise InputError(
                "a byte order mark within the file",
                path=path,
                line=number,
                remedy="Delete it; it comes from joining files that begin with one.",
            )
        yield number, fields[0], fields[1].strip() if len(fields) > 1 else ""


def read_keyed_lines(path: PathLike) -> Dict[str, Tuple[int, str]]:
    """Return {key: (line number, rest of the line)} of a Kaldi text file.

    Raises:
        InputError: A line without a key, or a key that comes twice.
    """
    entries: Dict[str, Tuple[int, str]] = {}
    for number, key, value in keyed_lines(path):
        if key in entries:
            raise InputError(
                f"the key {key[:80]!r} stands already in line {entries[key][0]}",
                path=path,
                line=number,
                remedy="Keys must be unique.",
            )
        entries[key] = (number, value)
    return entries
