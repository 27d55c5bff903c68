"""Shared by readers and writers of lists and lattices: numbers, words, ids, files, keys."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import re
from pathlib import Path
from typing import Callable, Container, Dict, Iterator, List, Optional, Sequence, Tuple, Union

from espnet_bayeslm.nbest.types import NBest
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import (
    BYTE_ORDER_MARK,
    SUFFIXES,
    PathLike,
    atomic_write,
    compressed_to,
    unpacked_name,
)
from espnet_bayeslm.utils.folders import staged

_DIGITS = re.compile("([0-9]+)", re.ASCII)
# Numbers as Python prints the scores of a beam search: tensors, and numbers of NumPy
_PRINTED = re.compile(
    r"(?:tensor|array|(?:(?:np|numpy)\.)?(?:float|int)[0-9]+)"
    r"\((\[)? *(?P<number>[^()\[\], ]+)(?(1)\])(?:, [a-z_]+=[^()]*)?\)",
    re.ASCII,
)

SURROGATE = re.compile("[\ud800-\udfff]")
"""Half of a surrogate pair, which JSON may hold and UTF-8 cannot."""

SCORES = ("am_score", "lm_score", "graph_score")

BESIDE = r"(?!sweep\.(json|tsv))"
"""Begins patterns that leave out the files that `rescore` writes beside its lists."""

NOTHING = "no N-best lists or lattices to write"

AddList = Callable[[NBest], None]
"""Adds one list to what is being written."""


def parse_number(value: str, *, path: PathLike, line: int, remedy: str) -> float:
    """Finite number of a field, plain or as Python prints a tensor: tensor(-3.5)."""
    printed = _PRINTED.fullmatch(value)
    try:
        number = float(printed["number"] if printed else value)
    except ValueError:
        problem = "stands where one number was expected"
    else:
        if math.isfinite(number):
            return number
        problem = "is not a finite number"
    raise InputError(f"{value[:80]!r} {problem}", path=path, line=line, remedy=remedy)


def placed(error: Exception, path: PathLike, line: Optional[int] = None) -> InputError:
    """Error as an InputError of a file and, where it is known, of a line."""
    if isinstance(error, InputError) and error.path is not None:
        return error
    message = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
    return InputError(message, path=path, line=line)


@contextlib.contextmanager
def at_line(path: PathLike, line: int) -> Iterator[None]:
    """Turn any error within the block into an InputError of a line of a file, from 1."""
    try:
        yield
    except Exception as error:
        raise placed(error, path, line) from error


def natural_order(name: str) -> Tuple[List[Union[str, int]], str]:
    """Sort key that puts u2 before u10."""
    # The odd parts are the digits, so strings meet strings and numbers meet numbers
    parts = [int(part) if n % 2 else part for n, part in enumerate(_DIGITS.split(name))]
    return parts, name


def hypothesis_key(utt: str, rank: int) -> str:
    """Key of the hypothesis `rank` (from 1) of an utterance, in Kaldi's files."""
    return f"{utt}-{rank}"


def numbered(folder: Path, name: str) -> List[Path]:
    """Entries of a folder that are called `name` with {} = 1, 2, ..., in that order."""
    pattern = re.escape(name).replace(r"\{\}", "[0-9]+")
    names = {entry.name for entry in folder.iterdir() if re.fullmatch(pattern, entry.name)}
    expected = [name.format(number) for number in range(1, len(names) + 1)]
    missing = [entry for entry in expected if entry not in names]
    if missing:
        others = sorted(names - set(expected), key=natural_order)
        problem = f"{missing[0]} is missing, and {others[-1]} is there"
        remedy = "They must be numbered from 1 to N: did a job fail, or was one not copied?"
        raise InputError(problem, path=folder, remedy=remedy)
    return [folder / entry for entry in expected]


def utterance_of(path: Path, suffixes: Sequence[str]) -> str:
    """Utterance id of a file: its name without .gz or such and the first suffix that it has."""
    name = unpacked_name(path.name)
    return name.removesuffix(next((suffix for suffix in suffixes if name.endswith(suffix)), ""))


@dataclasses.dataclass(eq=False)
class UniqueUtterances:
    """Checks the ids of lists or lattices as they are read or written, and that there are some."""

    path: Optional[PathLike] = None
    remedy: str = "Utterance ids must be unique."
    _seen: Dict[str, str] = dataclasses.field(default_factory=dict, init=False)

    def add(self, utt: str, file: Optional[PathLike] = None, line: int = 1) -> None:
        """Take an id that is new and can stand in every format; of a line of a file, when read."""
        if utt.split() != [utt] or utt.startswith(BYTE_ORDER_MARK) or SURROGATE.search(utt):
            problem = f"{utt[:80]!r} cannot be an utterance id"
            remedy = "An id is one word of UTF-8 text without white space."
            raise InputError(problem, path=file, line=line, remedy=remedy)
        if utt in self._seen:
            where = f"stands already in {self._seen[utt]}" if file is not None else "comes twice"
            problem = f"the utterance {utt[:80]!r} {where}"
            raise InputError(problem, path=file, line=line, remedy=self.remedy)
        self._seen[utt] = f"{file}:{line}"

    def check(self, problem: str = "no utterances", remedy: str = "") -> None:
        """Raise an InputError where there was none."""
        if not self._seen:
            raise InputError(problem, path=self.path, remedy=remedy)


def files_matching(path: Path, pattern: str, *, problem: str, remedy: str = "") -> List[Path]:
    """Files to read: the one, or a folder's files of matching names, in natural order."""
    if not path.is_dir():
        return [path]
    names = [entry.name for entry in path.iterdir() if re.fullmatch(pattern, entry.name, re.DOTALL)]
    if not names:
        raise InputError(problem, path=path, remedy=remedy)
    return [path / name for name in sorted(names, key=natural_order)]


def packed(path: Path) -> Path:
    """`path`, or `path`.gz or such where that is there."""
    names = ("", *SUFFIXES)
    existing = [p for name in names if (p := path.with_name(f"{path.name}{name}")).exists()]
    if len(existing) > 1:
        raise InputError(
            f"{existing[1].name} is there too", path=existing[0], remedy="Delete one of the two."
        )
    return existing[0] if existing else path


def format_number(value: float) -> str:
    """Finite number in few digits where they are exact."""
    if not math.isfinite(value):
        raise InputError(f"a score of {value} cannot be written", remedy="Give finite scores.")
    short = f"{value:.12g}"
    return short if float(short) == value else repr(value)


def words_line(words: Tuple[str, ...]) -> str:
    """Words with blanks between them."""
    line = " ".join(words)
    if tuple(line.split()) != words or SURROGATE.search(line):
        raise InputError(
            f"{line[:80]!r} holds an empty word, or one with white space or half a character",
            remedy="Replace it: no format can hold such words.",
        )
    return line


def check_scores(nbest: NBest) -> None:
    """Check that the scores of a list can be written."""
    nbest.scores("am_score")
    for name in SCORES:
        for score in (getattr(hyp, name) for hyp in nbest.hypotheses):
            if score is not None and not math.isfinite(score):
                problem = f"the utterance {nbest.utt!r} has the {name} {score}"
                raise InputError(problem, remedy="Give finite scores.")


@contextlib.contextmanager
def folder_writer(folder: Path, pattern: str) -> Iterator[Tuple[UniqueUtterances, Path]]:
    """Write a folder of lists or lattices: their ids, and a folder whose files move there."""
    known = UniqueUtterances()
    with staged(folder) as temporary:
        yield known, temporary
        known.check(NOTHING)
        check_no_others(folder, pattern, written=set(os.listdir(temporary)))


@contextlib.contextmanager
def file_writer(
    path: PathLike, pattern: str, default: str
) -> Iterator[Tuple[UniqueUtterances, Callable[[bytes], object]]]:
    """Write one file of lists or lattices: their ids, and the function that adds bytes.

    It is `path` where its name matches the pattern (compressed as it ends), else the file `default`
    of the folder `path`, which must have no other file that matches.
    """
    target = Path(path)
    file = target
    if target.is_dir() or not re.fullmatch(pattern, target.name, re.DOTALL):
        check_no_others(target, pattern, written=(default,))
        file = target / default
    known = UniqueUtterances()
    with atomic_write(file, "wb") as raw, compressed_to(raw, file) as f:
        yield known, f.write
        known.check(NOTHING)


def check_no_others(folder: Path, pattern: str, *, written: Container[str]) -> None:
    """Check that a folder holds no other lists, which would be read with the new ones."""
    others = sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []
    for name in others:
        if re.fullmatch(pattern, name, re.DOTALL) and name not in written:
            problem = f"holds {name!r}, which would be read with the lists that are to be written"
            raise InputError(problem, path=folder, remedy="Give a new folder.")
