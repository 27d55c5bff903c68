"""Shared by the readers of lists and lattices: numbers, ids, files of a folder, tables of keys."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Dict, List, Optional, Sequence, Tuple, Union

from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import BYTE_ORDER_MARK, PathLike, Table

_DIGITS = re.compile("([0-9]+)", re.ASCII)

SCORES = ("am_score", "lm_score", "graph_score")


def parse_number(value: str, *, path: PathLike, line: int, remedy: str) -> float:
    """Finite number of a field."""
    try:
        number = float(value)
    except ValueError:
        problem = "stands where one number was expected"
    else:
        if math.isfinite(number):
            return number
        problem = "is not a finite number"
    raise InputError(f"{value[:80]!r} {problem}", path=path, line=line, remedy=remedy)


def natural_order(name: str) -> Tuple[List[Union[str, int]], str]:
    """Sort key that puts u2 before u10."""
    # The odd parts are the digits, so strings meet strings and numbers meet numbers
    parts = [int(part) if n % 2 else part for n, part in enumerate(_DIGITS.split(name))]
    return parts, name


def numbered(folder: Path, name: str) -> List[Path]:
    """Entries of a folder that are called `name` with {} = 1, 2, ..., in that order."""
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
    """Check that an utterance id can stand in every format."""
    if utt.split() == [utt] and not utt.startswith(BYTE_ORDER_MARK) and is_utf8(utt):
        return
    raise InputError(
        f"{utt[:80]!r} cannot be an utterance id",
        path=path,
        line=line,
        remedy="An id is one word of UTF-8 text without white space.",
    )


def utterance_of(path: Path, suffixes: Sequence[str]) -> str:
    """Utterance id of a file: its name without .gz and the first of the suffixes that it has."""
    name = path.name.removesuffix(".gz")
    utt = name.removesuffix(next((suffix for suffix in suffixes if name.endswith(suffix)), ""))
    check_id(utt, path=path)
    return utt


class UniqueUtterances:
    """Checks the ids of lists or lattices as they are read, and that there are some."""

    def __init__(self, path: PathLike, *, remedy: str = "Utterance ids must be unique."):
        self.path, self.remedy = path, remedy
        self._seen: Dict[str, Tuple[PathLike, int]] = {}

    def add(self, utt: str, file: PathLike, line: int) -> None:
        """Take an id that is new."""
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
    """True if a text can be written: it has no half of a surrogate pair."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def files_matching(path: Path, pattern: str, *, problem: str, remedy: str = "") -> List[Path]:
    """Files to read: the one, or a folder's files of matching names, in natural order."""
    if not path.is_dir():
        return [path]
    names = [entry.name for entry in path.iterdir() if re.fullmatch(pattern, entry.name, re.DOTALL)]
    if not names:
        raise InputError(problem, path=path, remedy=remedy)
    return [path / name for name in sorted(names, key=natural_order)]


def packed(path: Path) -> Path:
    """`path`, or `path`.gz where that is there."""
    zipped = path.with_name(f"{path.name}.gz")
    if not zipped.exists():
        return path
    if path.exists():
        raise InputError(f"{zipped.name} is there too", path=path, remedy="Delete one of the two.")
    return zipped


def check_has_keys(table: Table, wanted: Table, *, paths: Sequence[Path]) -> None:
    """Check that files have all the keys of other files."""
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
