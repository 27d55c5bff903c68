"""The formats of N-best lists. A new one is a reader and a writer, named here."""

from __future__ import annotations

from pathlib import Path
from typing import Iterable, Iterator

from espnet_bayeslm.nbest.espnet import read_espnet, write_espnet
from espnet_bayeslm.nbest.jsonl import read_jsonl, write_jsonl
from espnet_bayeslm.nbest.kaldi import read_kaldi, write_kaldi
from espnet_bayeslm.nbest.srilm import read_srilm, write_srilm
from espnet_bayeslm.nbest.types import NBest
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike

READERS = {
    "kaldi": read_kaldi,
    "espnet": read_espnet,
    "srilm": read_srilm,
    "jsonl": read_jsonl,
}
WRITERS = {
    "kaldi": write_kaldi,
    "espnet": write_espnet,
    "srilm": write_srilm,
    "jsonl": write_jsonl,
}


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

    No more than one list and the ids are kept in memory, except where the lines of a Kaldi
    archive's or an ESPnet job's files are not in the same order. Utterances come as the files
    have them; files of a folder by natural order (u2 before u10).

    Args:
        path: The file or folder.
        format: One of `READERS`.

    Raises:
        InputError: The format is unknown, or the input cannot be used.
    """
    check_format(format)
    return READERS[format](path)


def write_nbest(nbests: Iterable[NBest], path: PathLike, *, format: str = "kaldi") -> None:
    """Write N-best lists in the format that `read_nbest` reads, all of them or nothing.

    Args:
        nbests: The lists; one is kept in memory at a time.
        path: The folder (made where it is missing), or, for jsonl, a name that ends in .jsonl
            or .jsonl.gz.
        format: One of `WRITERS`.

    Raises:
        ValueError: The format is unknown or cannot hold a list (a reference, a score that it has
            no place for, a word with white space), or there are other lists in the folder that
            would be read with these.
    """
    check_format(format)
    WRITERS[format](nbests, Path(path))
