"""Shared by the formats of N-best lists: numbers, ids, words and lines with keys in files."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import re
from pathlib import Path
from typing import Callable, Container, Dict, Iterator, List, Optional, Sequence, Set, Tuple, Union

from espnet_bayeslm.nbest.types import Hypothesis, NBest
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import (
    BYTE_ORDER_MARK,
    Entry,
    PathLike,
    Table,
    read_entries,
    staged,
)

# Each digit has one place to go, so that a megabyte of them does not take an hour
NUMBER = r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?"
_NUMBER = re.compile(NUMBER, re.ASCII)
_DIGITS = re.compile("([0-9]+)", re.ASCII)

_MAX_NAME = 255  # bytes, on most file systems

SCORES = ("am_score", "lm_score", "graph_score")

AddList = Callable[[NBest], None]
"""Adds one list to what is being written."""

Columns = Dict[str, List[Path]]
"""Name of what is in some files -> the files, which are read as one."""

Row = Dict[str, Entry]
"""The entries of one key, by the names of the columns."""

Rows = Iterator[Tuple[str, List[Row]]]
"""(utterance, its hypotheses from rank 1 on)."""


def parse_number(value: str, *, path: PathLike, line: int, remedy: str) -> float:
    """Finite number of a field.

    Raises:
        InputError: It is something else.
    """
    if _NUMBER.fullmatch(value):
        number = float(value)
        if math.isfinite(number):
            return number
        problem = "is too large a number"
    elif value.lower().lstrip("+-") in ("inf", "infinity", "nan"):
        problem = "is not a finite number"
    else:
        problem = "stands where one number was expected"
    raise InputError(f"{value[:80]!r} {problem}", path=path, line=line, remedy=remedy)


def format_number(value: float) -> str:
    """Number in few digits where they are exact."""
    short = f"{value:.12g}"
    return short if float(short) == value else repr(value)


def natural_order(name: str) -> Tuple[List[Union[str, int]], str]:
    """Sort key that puts u2 before u10."""
    # The odd parts are the digits, so strings meet strings and numbers meet numbers
    parts = [int(part) if n % 2 else part for n, part in enumerate(_DIGITS.split(name))]
    return parts, name


def numbered(folder: Path, name: str) -> List[Path]:
    """Entries of a folder that are called `name` with {} = 1, 2, ..., in that order.

    Raises:
        InputError: The numbers are not 1 to N: one is missing, or is written in another way.
    """
    before, after = map(re.escape, name.split("{}"))
    pattern = re.compile(f"{before}([0-9]+){after}", re.ASCII)
    found = {entry.name for entry in folder.iterdir() if pattern.fullmatch(entry.name)}
    expected = [name.format(number) for number in range(1, len(found) + 1)]
    missing = [entry for entry in expected if entry not in found]
    if missing:
        others = sorted(found - set(expected), key=natural_order)
        raise InputError(
            f"{missing[0]} is missing, and {others[-1]} is there",
            path=folder,
            remedy="They must be numbered from 1 to N: did a job fail, or was one not copied?",
        )
    return [folder / entry for entry in expected]


def check_id(utt: str, *, path: Optional[PathLike] = None, line: Optional[int] = None) -> None:
    """Check that an utterance id can stand in every format.

    Raises:
        InputError: It is empty, has white space in it, begins with a byte order mark, or cannot
            be written as UTF-8.
    """
    if utt.split() == [utt] and not utt.startswith(BYTE_ORDER_MARK) and is_utf8(utt):
        return
    raise InputError(
        f"{utt[:80]!r} cannot be an utterance id",
        path=path,
        line=line,
        remedy="An id is one word of UTF-8 text without white space.",
    )


def check_file_name(utt: str, name: str) -> None:
    """Raise an InputError where an utterance id cannot be the name of a file."""
    check_id(utt)
    if "/" in name or "\0" in name or len(os.fsencode(name)) > _MAX_NAME:
        raise InputError(
            f"the utterance id {utt[:80]!r} cannot be the name of a file",
            remedy="Write another format.",
        )


def utterance_of(path: Path, suffixes: Sequence[str]) -> str:
    """Utterance id of a file: its name without .gz and the first of the suffixes that it has.

    Raises:
        InputError: That can be no id.
    """
    name = path.name.removesuffix(".gz")
    utt = name.removesuffix(next((suffix for suffix in suffixes if name.endswith(suffix)), ""))
    check_id(utt, path=path)
    return utt


class UniqueUtterances:
    """Checks the ids of lists or lattices as they are read, and that there are some.

    Args:
        path: What is read, for the error.
        remedy: What to do about an id that comes twice.
    """

    def __init__(self, path: PathLike, *, remedy: str = "Utterance ids must be unique."):
        self.path, self.remedy = path, remedy
        self._seen: Dict[str, Tuple[PathLike, int]] = {}

    def add(self, utt: str, file: PathLike, line: int) -> None:
        """Take an id that is new.

        Raises:
            InputError: The id cannot be one, or came before.
        """
        check_id(utt, path=file, line=line)
        if utt in self._seen:
            first, first_line = self._seen[utt]
            raise InputError(
                f"the utterance {utt[:80]!r} stands already in {first}:{first_line}",
                path=file,
                line=line,
                remedy=self.remedy,
            )
        self._seen[utt] = file, line

    def check(self, remedy: str, *, problem: str = "no utterances") -> None:
        """Raise an InputError where there was none."""
        if not self._seen:
            raise InputError(problem, path=self.path, remedy=remedy)


def is_utf8(text: str) -> bool:
    """Whether a text can be written: it has no half of a surrogate pair."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def words_line(words: Tuple[str, ...]) -> str:
    """Words with blanks between them.

    Raises:
        InputError: They would be read as other words.
    """
    line = " ".join(words)
    if tuple(line.split()) != words or not is_utf8(line):
        raise InputError(
            f"{line[:80]!r} holds an empty word, or one with white space or half a character",
            remedy="Such words cannot be written.",
        )
    return line


class Writable:
    """Checks the N-best lists that a format is to hold, or the ids of lattices.

    Args:
        format: Its name, for errors.
        holds: Which of the scores and "ref" have a place in it.
        needs: Which of the scores it cannot be without; they have a place.
    """

    def __init__(self, format: str, *, holds: Container[str] = (), needs: Container[str] = ()):
        self.format, self.holds, self.needs = format, holds, needs
        self.utts: Set[str] = set()

    def add(self, utt: str) -> None:
        """Take an id; raise an InputError where it cannot be one, or comes twice."""
        check_id(utt)
        if utt in self.utts:
            raise InputError(f"the utterance {utt!r} comes twice", remedy="Ids must be unique.")
        self.utts.add(utt)

    def check(self, nbest: NBest) -> None:
        """Take a list; raise an InputError where it cannot be held, or its id comes twice."""
        self.add(nbest.utt)
        has_no_place = nbest.ref is not None and "ref" not in self.holds
        problem = "has a reference, for which there is no place" if has_no_place else ""
        num_scored = sum(hyp.am_score is not None for hyp in nbest.hypotheses)
        for hyp in nbest.hypotheses:
            problem = problem or _problem(hyp, self.holds, self.needs)
        if num_scored not in (0, len(nbest.hypotheses)):
            problem = problem or "has an am_score for some hypotheses only"
        if problem:
            raise InputError(
                f"the {self.format} format cannot hold this: the utterance {nbest.utt!r} {problem}",
                remedy="Change the lists (dataclasses.replace), or write jsonl, which holds all.",
            )

    def finish(self) -> None:
        """Raise an InputError where there was no id."""
        if not self.utts:
            raise InputError("no N-best lists or lattices to write")

    @contextlib.contextmanager
    def staged(self, folder: Path, pattern: str) -> Iterator[Path]:
        """Make a folder for lists or lattices, whose files move into `folder` when all is well.

        Args:
            folder: Where they belong.
            pattern: What the names match that are read there: others than these are refused.
        """
        with staged(folder) as temporary:
            yield temporary
            self.finish()
            check_no_others(folder, pattern, written=set(os.listdir(temporary)))


def _problem(hyp: Hypothesis, holds: Container[str], needs: Container[str]) -> str:
    """Reason why a hypothesis cannot be written, "" where it can."""
    for name in SCORES:
        score = getattr(hyp, name)
        if score is None and name in needs:
            return f"has no {name} for {' '.join(hyp.words)[:80]!r}"
        if score is not None and name not in holds and name not in needs:
            return f"has a {name}, for which there is no place"
        if score is not None and not math.isfinite(score):
            return f"has the {name} {score}"
    return ""


def files_matching(path: Path, pattern: str, *, problem: str, remedy: str = "") -> List[Path]:
    """Files to read: the one, or those of a folder whose names match, in natural order.

    Args:
        path: The file or folder.
        pattern: Of the whole name.
        problem: What is wrong with a folder that has none.
        remedy: What to do then.

    Raises:
        InputError: The folder has none.
    """
    if not path.is_dir():
        return [path]
    names = [entry.name for entry in path.iterdir() if re.fullmatch(pattern, entry.name, re.DOTALL)]
    if not names:
        raise InputError(problem, path=path, remedy=remedy)
    return [path / name for name in sorted(names, key=natural_order)]


def check_no_others(folder: Path, pattern: str, *, written: Container[str]) -> None:
    """Check that a folder holds no lists that would be read with those written now.

    Args:
        folder: It may be missing.
        pattern: What the names of such files match.
        written: Names that will be replaced.

    Raises:
        InputError: It does.
    """
    others = sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []
    for name in others:
        if re.fullmatch(pattern, name, re.DOTALL) and name not in written:
            raise InputError(
                f"holds {name!r}, which would be read with the lists that are to be written",
                path=folder,
                remedy="Give a new folder.",
            )


def packed(path: Path) -> Path:
    """`path`, or `path`.gz where that is there.

    Raises:
        InputError: Both are there.
    """
    zipped = path.with_name(f"{path.name}.gz")
    if not zipped.exists():
        return path
    if path.exists():
        raise InputError(f"{zipped.name} is there too", path=path, remedy="Delete one of the two.")
    return zipped


class OutOfStep(Exception):
    """Files do not have the same keys in the same order."""


def rows_in_step(columns: Columns) -> Iterator[Tuple[str, Row]]:
    """Yield (key, its row) of files that are read side by side.

    Raises:
        OutOfStep: They do not have the same keys in the same order.
    """
    for entries in itertools.zip_longest(*map(read_entries, columns.values())):
        if None in entries or any(key != entries[0][0] for key, _ in entries):
            raise OutOfStep
        yield entries[0][0], {n: entry for n, (_, entry) in zip(columns, entries, strict=True)}


def are_in_step(rows: Iterator[object]) -> bool:
    """Whether what is read side by side comes to its end without being out of step."""
    try:
        for _ in rows:
            pass
    except OutOfStep:
        return False
    return True


def check_has_keys(table: Table, wanted: Table, *, paths: Sequence[Path]) -> None:
    """Check that files have all the keys of others.

    Args:
        table: What the files hold.
        wanted: What the others hold.
        paths: The files.

    Raises:
        InputError: They have not; it names the file beside that of the first such key.
    """
    missing = [key for key in wanted if key not in table]
    if missing:
        other, line, _ = wanted[missing[0]]
        path = next((path for path in paths if path.parent == other.parent), paths[0])
        # Parts have files of the same name: the part says which is meant
        name = other.name if other.parent == path.parent else f"{other.parent.name}/{other.name}"
        raise InputError(
            f"{len(missing)} of the {len(wanted)} keys of {other.name} are missing, the first"
            f" {missing[0][:80]!r} ({name}:{line})",
            path=path,
            remedy="All files of a list must have the same keys; write them anew together.",
        )
