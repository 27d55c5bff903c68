"""JSON of which all is checked: what the formats that are JSON share."""

from __future__ import annotations

import contextlib
import json
import math
import re
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from espnet_bayeslm.nbest.fields import (
    AddList,
    UniqueUtterances,
    Writable,
    check_no_others,
    files_matching,
    is_utf8,
    words_line,
)
from espnet_bayeslm.nbest.types import Hypothesis, NBest
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike, atomic_write, compress_to, read_lines

# An integer of more digits is read as a float: a million digits would take hours
_MAX_DIGITS = 18
_BLANKS = " \t\r\n"
_BLOCK = 1 << 14  # characters
_TOO_DEEP = "brackets within brackets without an end"


class BadValue(ValueError):
    """Fault of a JSON value; the message goes into an InputError."""


@contextlib.contextmanager
def located(path: PathLike, line: int, remedy: str) -> Iterator[None]:
    """Turn a `BadValue` within the block into an InputError with its place."""
    try:
        yield
    except BadValue as error:
        raise InputError(str(error), path=path, line=line, remedy=remedy) from error


def parse_json(text: str) -> Any:
    """JSON value of a text.

    Raises:
        BadValue: It is no JSON, has a key twice, or a number that is not finite.
    """
    try:
        return _DECODER.decode(text)
    except json.JSONDecodeError as error:
        raise BadValue(f"not JSON ({error.msg} at column {error.colno})") from error
    except RecursionError as error:
        raise BadValue(_TOO_DEEP) from error


def json_items(path: PathLike, *, remedy: str) -> Iterator[Tuple[int, Any]]:
    """Yield (line from 1, value) of the items of a JSON list, or of values one after the other.

    Args:
        path: The file; no more than an item and a block of it is in memory.
        remedy: What errors say that the file should be.

    Raises:
        InputError: It cannot be read, or is not such JSON.
    """
    source = _Source(path)
    try:
        if source.peek() == "[":
            yield from source.listed()
        else:
            while source.peek():
                yield source.line, source.value()
    except BadValue as error:
        raise InputError(str(error), path=path, line=source.line, remedy=remedy) from error


class _Source:
    """A JSON text that is read block by block.

    Attributes:
        line: The number of the line where what was not taken yet begins.
    """

    def __init__(self, path: PathLike):
        self._lines = read_lines(path)
        self._text = ""
        self.line = 1

    def _more(self) -> bool:
        """Read as much again as there is; return whether there was any."""
        wanted, parts = max(len(self._text), _BLOCK), [self._text]
        for _, line in self._lines:
            parts.append(f"{line}\n")
            wanted -= len(parts[-1])
            if wanted <= 0:
                break
        self._text = "".join(parts)
        return len(parts) > 1

    def _take(self, size: int) -> None:
        self.line += self._text.count("\n", 0, size)
        self._text = self._text[size:]

    def peek(self) -> str:
        """Next character that is no blank, "" at the end."""
        while True:
            self._take(len(self._text) - len(self._text.lstrip(_BLANKS)))
            if self._text or not self._more():
                return self._text[:1]

    def value(self) -> Any:
        """Next value, which begins at once."""
        while True:
            try:
                value, end = _DECODER.raw_decode(self._text)
            except json.JSONDecodeError as error:
                if self._more():
                    continue
                self.line += error.lineno - 1
                raise BadValue(f"not JSON ({error.msg} at column {error.colno})") from error
            except RecursionError as error:
                raise BadValue(_TOO_DEEP) from error
            if end == len(self._text) and self._more():
                continue  # a number may go on
            self._take(end)
            return value

    def listed(self) -> Iterator[Tuple[int, Any]]:
        """Yield (line, value) of a list, which must be all that there is."""
        self._take(1)
        more = self.peek() != "]"
        while more:
            yield self.line, self.value()
            more = self.peek() == ","
            if more:
                self._take(1)
                self.peek()
        if self.peek() != "]":
            raise BadValue("not JSON (',' or the end of the list was expected)")
        self._take(1)
        if self.peek():
            raise BadValue("not JSON (something after the end of the list)")


def _unique(pairs: List[Tuple[str, Any]]) -> Dict[str, Any]:
    """JSON object whose keys come once each."""
    content = dict(pairs)
    if len(content) != len(pairs):
        raise BadValue("a key that comes twice in one object")
    return content


def _refuse(constant: str) -> None:
    """Refuse NaN and the infinities, which JSON does not have and Python reads."""
    raise BadValue(f"{constant} is not a finite number")


def _integer(digits: str) -> float:
    """Number of a JSON integer."""
    return int(digits) if len(digits) <= _MAX_DIGITS else float(digits)


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_refuse, parse_int=_integer)


def as_object(content: Any, what: str) -> Dict[str, Any]:
    """JSON object, checked; `what` it is goes into the error."""
    if not isinstance(content, dict):
        raise BadValue(f"{what} is {shown(content)}, and an object was expected")
    return content


def as_list(content: Any, what: str) -> List[Any]:
    """JSON list of one value or more, checked."""
    if not isinstance(content, list) or not content:
        raise BadValue(f"{what} are {shown(content)}, and a list was expected")
    return content


def as_string(content: Any, what: str) -> str:
    """JSON string that can be written, checked."""
    if not isinstance(content, str) or not is_utf8(content):
        raise BadValue(f"{what} is {shown(content)}, and a string was expected")
    return content


def as_words(content: Any, what: str) -> Tuple[str, ...]:
    """Words of a JSON string."""
    return tuple(as_string(content, what).split())


def as_score(content: Any, what: str) -> Optional[float]:
    """Finite number, None where there is none."""
    if content is None:
        return None
    if type(content) not in (int, float) or not math.isfinite(content):
        raise BadValue(f"{what} is {shown(content)}, and a finite number was expected")
    return float(content)


def others(content: Mapping[str, Any], keys: Sequence[str]) -> Dict[str, Any]:
    """Values under other keys, if they can be written again."""
    found = {name: value for name, value in content.items() if name not in keys}
    if not found:
        return found
    try:
        as_text(found).encode("utf-8")
    except (ValueError, RecursionError) as error:
        raise BadValue(f"{shown(found)} cannot be kept: {error}"[:200]) from error
    return found


def shown(value: Any) -> str:
    """JSON value as an error shows it."""
    return "missing" if value is None else ascii(value)[:80]


def as_text(content: Any) -> str:
    """JSON text of a value, on one line."""
    return json.dumps(content, ensure_ascii=False, allow_nan=False)


class Beside(NamedTuple):
    """Fields of a JSON object beside the hypotheses: reference, speaker, and what is kept.

    Attributes:
        keys: Those of an object that are read; what others hold is kept.
        ref: The key of the reference.
    """

    keys: Tuple[str, ...]
    ref: str = "ref"

    def list_of(self, utt: str, hyps: Sequence[Hypothesis], content: Mapping[str, Any]) -> NBest:
        """List of an utterance, with what stands beside its hypotheses in a JSON object."""
        words, speaker = content.get(self.ref), content.get("speaker")
        return NBest(
            utt,
            tuple(hyps),
            None if words is None else as_words(words, self.ref),
            None if speaker is None else as_string(speaker, "speaker"),
            others(content, self.keys),
        )

    def fields(self, nbest: NBest) -> Dict[str, Any]:
        """Fields of a list, as `list_of` reads them."""
        content: Dict[str, Any] = {}
        if nbest.ref is not None:
            content[self.ref] = words_line(nbest.ref)
        if nbest.speaker is not None:
            content["speaker"] = nbest.speaker
        return {**content, **others(nbest.extra, self.keys)}


class JsonFormat(ABC):
    """A format whose lists are JSON objects.

    Attributes:
        name: What errors call it.
        remedy: What errors say that a file should be.
        suffixes: Of the files that are read in a folder; the first is that of a new file.
        beside: What it has beside the hypotheses.
        scored: What errors say that only some of the hypotheses have.
        holds: Which of the scores and "ref" have a place in it.
        frame: What stands before, between and after the objects.
    """

    name: str
    remedy: str
    suffixes: Tuple[str, ...]
    beside: Beside
    scored = "hypotheses have an am_score"
    holds: Tuple[str, ...] = ("am_score", "ref")
    frame = ("", "\n", "\n")

    @abstractmethod
    def parse(self, value: Any, name: str) -> NBest:
        """List of a value; `name` is its id where the value says none.

        Raises:
            BadValue: It is none.
        """

    @abstractmethod
    def as_json(self, nbest: NBest) -> Dict[str, Any]:
        """JSON object of a list, but for what is `beside`."""

    def values(self, file: Path) -> Iterator[Tuple[int, str, Any]]:
        """Yield (line, name, value) of each list: the name is the file's and the list's number."""
        name = self.stem(file)
        for number, (line, value) in enumerate(json_items(file, remedy=self.remedy), 1):
            yield line, f"{name}-{number:06d}", value

    def read(self, path: PathLike) -> Iterator[NBest]:
        """Yield the N-best lists of a file, or of a folder's files with such names, in their order.

        Raises:
            InputError: What is not such JSON (file, line, remedy), an id twice, or no such file.
        """
        utterances = UniqueUtterances(path)
        problem = f"no *{self.suffixes[0]} in it"
        for file in files_matching(Path(path), self._pattern, problem=problem):
            for line, name, value in self.values(file):
                with located(file, line, self.remedy):
                    nbest = self.parse(value, name)
                utterances.add(nbest.utt, file, line)
                yield nbest
        utterances.check(self.remedy)

    @property
    def _pattern(self) -> str:
        # what `rescore` writes beside its lists is none
        return "|".join(rf"(?!sweep\.json).*{re.escape(suffix)}" for suffix in self.suffixes)

    def stem(self, path: Path) -> str:
        """Name of a file without the first of the suffixes that it has."""
        found = (path.name.removesuffix(s) for s in self.suffixes if path.name.endswith(s))
        return next(found, path.name)

    def list_of(self, utt: str, hyps: Sequence[Hypothesis], content: Mapping[str, Any]) -> NBest:
        """List of an utterance, all or none of whose hypotheses have an `am_score`."""
        num_scored = sum(hyp.am_score is not None for hyp in hyps)
        if num_scored not in (0, len(hyps)):
            raise BadValue(f"{num_scored} of {len(hyps)} {self.scored}")
        return self.beside.list_of(utt, hyps, content)

    @contextlib.contextmanager
    def writer(self, path: Path) -> Iterator[AddList]:
        """Write N-best lists into one file, each a JSON object; reading them gives the same lists.

        Args:
            path: The file where it ends in one of the suffixes (gzipped in .gz), else the folder
                in which `nbest` with the first of them is written (made where it is missing).

        Raises:
            ValueError: A list that the format cannot hold, or the folder has other such files.
                Nothing is written then.
        """
        is_file = path.name.endswith(self.suffixes) and not path.is_dir()
        file = path if is_file else path / f"nbest{self.suffixes[0]}"
        if not is_file:
            check_no_others(path, self._pattern, written=(file.name,))
        known = Writable(self.name, holds=self.holds)
        before, between, after = self.frame
        with atomic_write(file, "wb") as raw, compress_to(raw, file) as f:

            def add(nbest: NBest) -> None:
                f.write((between if known.utts else before).encode())
                known.check(nbest)
                content = {**self.as_json(nbest), **self.beside.fields(nbest)}
                f.write(as_text(content).encode())

            yield add
            known.finish()
            f.write(after.encode())
