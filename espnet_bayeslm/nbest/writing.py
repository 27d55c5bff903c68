"""Shared by the writers of lists and lattices: numbers, words, and what may be written."""

from __future__ import annotations

import contextlib
import math
import os
import re
from pathlib import Path
from typing import Callable, Container, Iterator, Set, Tuple

from espnet_bayeslm.nbest.fields import SCORES, check_id, is_utf8
from espnet_bayeslm.nbest.types import NBest
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import staged

_MAX_NAME = 255  # bytes, on most file systems

AddList = Callable[[NBest], None]
"""Adds one list to what is being written."""


def format_number(value: float) -> str:
    """Number in few digits where they are exact."""
    short = f"{value:.12g}"
    return short if float(short) == value else repr(value)


def check_file_name(utt: str, name: str) -> None:
    """Raise an InputError where an utterance id cannot be the name of a file."""
    check_id(utt)
    if "/" in name or "\0" in name or len(os.fsencode(name)) > _MAX_NAME:
        raise InputError(
            f"the utterance id {utt[:80]!r} cannot be the name of a file",
            remedy="Write Kaldi lattices.",
        )


def words_line(words: Tuple[str, ...]) -> str:
    """Words with blanks between them."""
    line = " ".join(words)
    if tuple(line.split()) != words or not is_utf8(line):
        raise InputError(
            f"{line[:80]!r} holds an empty word, or one with white space or half a character",
            remedy="Replace it: no format can hold such words.",
        )
    return line


class Writable:
    """Checks of the lists or lattices that are written, one by one."""

    def __init__(self) -> None:
        self.utts: Set[str] = set()

    def add(self, utt: str) -> None:
        """Take an id."""
        check_id(utt)
        if utt in self.utts:
            raise InputError(f"the utterance {utt!r} comes twice", remedy="Ids must be unique.")
        self.utts.add(utt)

    def check(self, nbest: NBest) -> None:
        """Take a list."""
        self.add(nbest.utt)
        nbest.scores("am_score")
        for hyp in nbest.hypotheses:
            for name in SCORES:
                score = getattr(hyp, name)
                if score is not None and not math.isfinite(score):
                    raise InputError(
                        f"the utterance {nbest.utt!r} has the {name} {score}",
                        remedy="Give finite scores.",
                    )

    def finish(self) -> None:
        """Raise an InputError where there was no id."""
        if not self.utts:
            raise InputError("no N-best lists or lattices to write")

    @contextlib.contextmanager
    def staged(self, folder: Path, pattern: str) -> Iterator[Path]:
        """Make a folder for lists or lattices, whose files move into `folder` when all is well."""
        with staged(folder) as temporary:
            yield temporary
            self.finish()
            check_no_others(folder, pattern, written=set(os.listdir(temporary)))


def check_no_others(folder: Path, pattern: str, *, written: Container[str]) -> None:
    """Check that a folder holds no other lists, which would be read with the new ones."""
    others = sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []
    for name in others:
        if re.fullmatch(pattern, name, re.DOTALL) and name not in written:
            raise InputError(
                f"holds {name!r}, which would be read with the lists that are to be written",
                path=folder,
                remedy="Give a new folder.",
            )
