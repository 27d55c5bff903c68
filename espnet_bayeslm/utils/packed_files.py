"""Compressed files: read by their first bytes, written by their names."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import lzma
import os
import re
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
# Suffix -> first bytes, and what opens such a file
_READ: Dict[str, Tuple[bytes, _Open]] = {
    ".gz": (rb"\x1f\x8b", gzip.open),
    ".bz2": (rb"BZh[1-9](1AY&SY|\x17rE8P\x90)", bz2.open),
    ".xz": (rb"\xfd7zXZ\x00", lzma.open),
}
# First bytes -> name, and the command that unpacks such a file
_REFUSED = {
    b"\x28\xb5\x2f\xfd": ("zstd", "zstd -d"),
    b"\x1f\x9d": ("compress", "gunzip"),
    b"PK\x03\x04": ("zip", "unzip"),
    b"7z\xbc\xaf": ("7-zip", "7z x"),
    b"\x04\x22\x4d\x18": ("lz4", "lz4 -d"),
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
        opener = _opener(begin, path)
        if opener is None:
            yield raw
            return
        if not begin:  # they are taken for an empty text
            raise EOFError("a compressed file without a byte: cut short?")
        with opener(raw, "rb") as f:
            # GzipFile's own iteration over lines is several times slower
            yield cast(IO[bytes], io.BufferedReader(f))


def _opener(begin: bytes, path: PathLike) -> Optional[_Open]:
    """Function that opens a file, by its first bytes, else by its name; None for a plain file."""
    for magic, (name, command) in _REFUSED.items():
        if begin.startswith(magic):
            raise InputError(
                f"compressed by {name}, which is not read",
                path=path,
                remedy=f"Decompress it first: `{command} {os.fspath(path)}`.",
            )
    for magic, opener in _READ.values():
        if re.match(magic, begin, re.DOTALL):
            return opener
    _, named = _READ.get(Path(path).suffix, (b"", None))
    return named


@contextlib.contextmanager
def compressed_to(f: IO[bytes], path: PathLike) -> Iterator[IO[bytes]]:
    """Binary stream into the open file `f`, compressed as the name `path` ends."""
    suffix = Path(path).suffix
    if suffix == ".gz":
        # no name and no time: the same content gives the same bytes
        opened: Any = gzip.GzipFile(filename="", fileobj=f, mode="wb", compresslevel=6, mtime=0)
    elif suffix in _READ:
        opened = _READ[suffix][1](f, "wb")
    elif suffix in SUFFIXES:
        raise InputError(f"{suffix} is not written", path=path, remedy="Give a name in .gz.")
    else:
        yield f
        return
    with opened, io.BufferedWriter(opened) as packed:
        yield packed
