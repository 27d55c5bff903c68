"""The formats of N-best lists. A new one is a reader and a writer, named here."""

from __future__ import annotations

from pathlib import Path
from typing import Iterable, Iterator

from espnet_bayeslm.rescoring.kaldi import read_kaldi, write_kaldi
from espnet_bayeslm.rescoring.nbest import NBest
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike

READERS = {"kaldi": read_kaldi}
WRITERS = {"kaldi": write_kaldi}


def check_format(format: str) -> None:
    """Check that a format is known.

    Raises:
        InputError: It is not; the error names those that are.
    """
    if format not in READERS:
        raise InputError(
            f"unknown N-best format {format!r}",
            remedy=f"The formats are: {', '.join(READERS)}.",
        )


def read_nbest(path: PathLike, format: str = "kaldi") -> Iterator[NBest]:
    """Return the N-best lists of a file or folder, one by one.

    Args:
        path: The file or folder.
        format: One of `READERS`.

    Raises:
        InputError: The format is unknown, or the input cannot be used.
    """
    check_format(format)
    return READERS[format](path)


def write_nbest(nbests: Iterable[NBest], path: PathLike, *, format: str = "kaldi") -> None:
    """Write N-best lists in the format that `read_nbest` reads.

    Args:
        nbests: The lists.
        path: The folder (made where it is missing).
        format: One of `WRITERS`.
    """
    check_format(format)
    Path(path).mkdir(parents=True, exist_ok=True)
    WRITERS[format](nbests, Path(path))
