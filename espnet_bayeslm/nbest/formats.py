"""The formats of N-best lists. A new one is a reader and a writer, named here."""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path
from typing import Callable, ContextManager, Dict, Iterable, Iterator

from espnet_bayeslm.nbest.espnet import espnet_writer, read_espnet
from espnet_bayeslm.nbest.fields import AddList
from espnet_bayeslm.nbest.jsonl import jsonl_writer, read_jsonl
from espnet_bayeslm.nbest.kaldi import kaldi_writer, read_kaldi, read_kaldi_once
from espnet_bayeslm.nbest.kaldi_files import OutOfStep
from espnet_bayeslm.nbest.srilm import read_srilm, srilm_writer
from espnet_bayeslm.nbest.types import NBest
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike

READERS: Dict[str, Callable[[PathLike], Iterator[NBest]]] = {
    "kaldi": read_kaldi,
    "espnet": read_espnet,
    "srilm": read_srilm,
    "jsonl": read_jsonl,
}
# Readers of files that are in step, which they find out as they go.
ONCE = {"kaldi": read_kaldi_once}
WRITERS: Dict[str, Callable[[Path], ContextManager[AddList]]] = {
    "kaldi": kaldi_writer,
    "espnet": espnet_writer,
    "srilm": srilm_writer,
    "jsonl": jsonl_writer,
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


@contextlib.contextmanager
def nbest_writer(path: PathLike, *, format: str = "kaldi") -> Iterator[AddList]:
    """Write N-best lists one by one, in the format that `read_nbest` reads, all or nothing.

    Args:
        path: The folder (made where it is missing), or, for jsonl, a name that ends in .jsonl
            or .jsonl.gz.
        format: One of `WRITERS`.

    Yields:
        What adds a list.

    Raises:
        ValueError: The format is unknown or cannot hold a list (a reference, a score that it has
            no place for, a word with white space), or there are other lists in the folder that
            would be read with these.
    """
    check_format(format)
    with WRITERS[format](Path(path)) as add:
        yield add


def write_nbest(nbests: Iterable[NBest], path: PathLike, *, format: str = "kaldi") -> None:
    """Write N-best lists as `nbest_writer` does; one is kept in memory at a time."""
    with nbest_writer(path, format=format) as add:
        for nbest in nbests:
            add(nbest)


class CheckedLists:
    """N-best lists that are read through before the work: no fault comes to light after hours.

    Each iteration reads them again, and none is kept.

    Args:
        path: The file or folder.
        format: One of `READERS`.

    Attributes:
        utts: The utterances, in their order.
        digest: What tells the words of these lists from those of others.

    Raises:
        InputError: The format is unknown, or the input cannot be used.
    """

    def __init__(self, path: PathLike, format: str = "kaldi"):
        check_format(format)
        self.path = path
        self._read = ONCE.get(format, READERS[format])
        try:
            self._scan()
        except OutOfStep:
            self._read = READERS[format]
            self._scan()

    def __iter__(self) -> Iterator[NBest]:
        return self._read(self.path)

    def _scan(self) -> None:
        self.utts: Dict[str, None] = {}
        digest = hashlib.sha256()
        for item in self:
            self.utts[item.utt] = None
            digest.update(repr((item.utt, [hyp.words for hyp in item.hypotheses])).encode())
        self.digest = digest.hexdigest()
