"""Compressed files: read by their first bytes, written by their names."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import lzma
import os
import re
import shlex
import shutil
import tempfile
import zlib
from pathlib import Path
from typing import IO, Any, Callable, Dict, Iterator, Optional, Tuple, Union, cast

from espnet_bayeslm.utils.errors import InputError

PathLike = Union[str, os.PathLike[str]]

SUFFIXES = (".gz", ".bz2", ".xz", ".zst", ".Z")
"""Endings of the names of compressed files; the last two are found, and refused in one line."""
PACKED = rf"({'|'.join(map(re.escape, SUFFIXES))})?"
"""Pattern of such an ending, or none."""
DAMAGED = (OSError, EOFError, zlib.error, lzma.LZMAError)
"""Errors of files that cannot be unpacked, or cannot be read at all."""

_Open = Callable[..., Any]
# Suffix -> first bytes, more of them that no text has, what opens such a file, and a command
_READ: Dict[str, Tuple[bytes, bytes, _Open, str]] = {
    ".gz": (b"\x1f\x8b", b"", gzip.open, "gzip"),
    ".bz2": (b"BZh", rb"[1-9](1AY&SY|\x17rE8P\x90)", bz2.open, "bzip2"),
    ".xz": (b"\xfd7zXZ\x00", b"", lzma.open, "xz"),
}
# First bytes -> name, and the command that unpacks such a file of any name
_REFUSED = {
    b"\x28\xb5\x2f\xfd": ("zstd", "zstd -dc <"),
    b"\x1f\x9d": ("compress", "gzip -dc <"),
    b"PK\x03\x04": ("zip", "unzip -p"),
    b"7z\xbc\xaf": ("7-zip", "7z x -so"),
    b"\x04\x22\x4d\x18": ("lz4", "lz4 -dc <"),
    b"\x5d\x00\x00": ("lzma", "xz -dc <"),
}
_LONGEST = 16


def unpacked_name(name: str) -> str:
    """Name of a file without the ending of a compressed file."""
    return re.sub(rf"{PACKED}\Z", "", name)


@contextlib.contextmanager
def open_unpacked(path: PathLike) -> Iterator[IO[bytes]]:
    """Open a file for reading; gzip, bzip2 and xz are unpacked, whatever the file's name is.

    Raises:
        InputError: The file is compressed in another way.
        OSError, EOFError, zlib.error, lzma.LZMAError: One of `DAMAGED`, while it is read, too.
    """
    with open(path, "rb") as raw:
        begin = raw.peek(_LONGEST)[:_LONGEST]
        suffix = _packed_by(begin, path)
        if suffix is None:
            yield raw
            return
        if not begin:  # they are taken for an empty text
            raise EOFError("a compressed file without a byte: cut short?")
        with _READ[suffix][2](raw, "rb") as f:
            # GzipFile's own iteration over lines is several times slower
            yield cast(IO[bytes], io.BufferedReader(f))


def _packed_by(begin: bytes, path: PathLike) -> Optional[str]:
    """Suffix that says how a file is compressed, by its first bytes; None for a plain file.

    Files of such a name that are cut short within these bytes are compressed files too.
    """
    for magic, (name, command) in _REFUSED.items():
        if begin.startswith(magic):
            raise InputError(
                f"compressed by {name}, which is not read",
                path=path,
                remedy=f"Decompress it first: `{command} {_quoted(path)} > NEW_FILE`.",
            )
    for suffix, (first, more, *_) in _READ.items():
        if re.match(re.escape(first) + more, begin, re.DOTALL):
            return suffix
    suffix = Path(path).suffix
    first = _READ[suffix][0] if suffix in _READ else b""
    return suffix if suffix in _READ and first.startswith(begin[: len(first)]) else None


def _suffix_of(path: PathLike) -> Optional[str]:
    """Suffix that says how a file is compressed; None for a plain file, and for a pipe."""
    if not Path(path).is_file():
        return None
    with open(path, "rb") as f:
        return _packed_by(f.read(_LONGEST), path)


def converted_by(command: str, path: PathLike) -> str:
    """Advice for a text file, perhaps a compressed one, that a command converts."""
    suffix = _suffix_of(path)
    line = f"{command} < {_quoted(path)}"
    if suffix is not None:
        line = f"{_READ[suffix][3]} -dc < {_quoted(path)} | {command}"
    return f"Convert it: `{line} > NEW_FILE`."


def _quoted(path: PathLike) -> str:
    """Path as a shell takes it."""
    return shlex.quote(os.fspath(path))


@contextlib.contextmanager
def unpacked_file(path: PathLike) -> Iterator[PathLike]:
    """Path of a file without compression: `path`, or a temporary file within the block.

    Raises:
        InputError: The file is compressed in another way, or damaged.
    """
    if _suffix_of(path) is None:
        yield path
        return
    with tempfile.NamedTemporaryFile() as unpacked:
        try:
            with open_unpacked(path) as f:
                shutil.copyfileobj(f, unpacked)
        except DAMAGED as error:
            raise InputError(f"cannot be read ({error})", path=path) from error
        unpacked.flush()
        yield unpacked.name


@contextlib.contextmanager
def compressed_to(f: IO[bytes], path: PathLike) -> Iterator[IO[bytes]]:
    """Binary stream into the open file `f`, compressed as the name `path` ends."""
    suffix = Path(path).suffix
    if suffix == ".gz":
        # no name and no time: the same content gives the same bytes
        opened: Any = gzip.GzipFile(filename="", fileobj=f, mode="wb", compresslevel=6, mtime=0)
    elif suffix in _READ:
        opened = _READ[suffix][2](f, "wb")
    elif suffix in SUFFIXES:
        raise InputError(f"{suffix} is not written", path=path, remedy="Give a name in .gz.")
    else:
        yield f
        return
    with opened, io.BufferedWriter(opened) as packed:
        yield packed
