"""JSON whose content is checked: shared by the formats that are JSON."""

from __future__ import annotations

import contextlib
import json
import math
import re
import sys
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple

from espnet_bayeslm.nbest.fields import UniqueUtterances, files_matching, is_utf8
from espnet_bayeslm.nbest.types import Hypothesis, NBest
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike, read_text

_LARGEST = sys.float_info.max  # integers may be larger
_START = re.compile(r"[ \t\r\n]*(\[?)[ \t\r\n]*")
# What stands between values, and between items of a list or after the last
_BLANKS = re.compile(r"[ \t\r\n]*")
_COMMA = re.compile(r"[ \t\r\n]*(,[ \t\r\n]*|(?=\]\Z))")

Value = Tuple[int, str, Any]
"""Line from 1, id where the value has none, and the JSON value of a list."""


class BadValue(ValueError):
    """Fault of a JSON value; the message goes into an InputError."""


@contextlib.contextmanager
def located(path: PathLike, line: int, remedy: str) -> Iterator[None]:
    """Turn a `BadValue` within the block into an InputError with its place."""
    try:
        yield
    except BadValue as error:
        raise InputError(str(error), path=path, line=line, remedy=remedy) from error


@contextlib.contextmanager
def _json_errors() -> Iterator[None]:
    """Turn what the decoder raises within the block into a `BadValue`."""
    try:
        yield
    except json.JSONDecodeError as error:
        line = f"line {error.lineno}, " * (error.lineno > 1)
        raise BadValue(f"not JSON ({error.msg} at {line}column {error.colno})") from error
    except RecursionError as error:
        raise BadValue("brackets are nested too deeply") from error
    except BadValue:
        raise
    except ValueError as error:  # a million digits
        raise BadValue(f"not JSON ({error})") from error


def parse_json(text: str) -> Any:
    """JSON value of a text.

    Raises:
        BadValue: The text is no JSON, or has a key twice.
    """
    with _json_errors():
        return _DECODER.decode(text)


def json_items(path: PathLike, *, remedy: str) -> Iterator[Tuple[int, Any]]:
    """Yield (line from 1, value) of the items of a JSON list, or of values one after the other."""
    text = read_text(path).rstrip(" \t\r\n")
    start = _START.match(text)
    assert start is not None  # of an empty text too
    line, place, listed = 1 + start[0].count("\n"), start.end(), bool(start[1])
    closed = listed and text.endswith("]")
    gap = None
    while place < len(text) - closed:
        with located(path, line, remedy), _json_errors():
            value, after = _DECODER.raw_decode(text, place)
        yield line, value
        gap = (_COMMA if listed else _BLANKS).match(text, after)
        if gap is None:
            break
        line += text.count("\n", place, gap.end())
        place = gap.end()
    ends_with_comma = listed and gap is not None and gap[1].startswith(",")
    if place < len(text) - closed or listed > closed or ends_with_comma:
        problem = "not JSON (',' or the end of the list was expected)"
        raise InputError(problem, path=path, line=line, remedy=remedy)


def _unique(pairs: List[Tuple[str, Any]]) -> Dict[str, Any]:
    """JSON object whose keys come once each."""
    content = dict(pairs)
    if len(content) != len(pairs):
        raise BadValue("a key comes twice in one object")
    return content


_DECODER = json.JSONDecoder(object_pairs_hook=_unique)

# Kind of a value -> test of it
_KINDS: Dict[str, Callable[[Any], bool]] = {
    "an object": lambda value: isinstance(value, dict),
    "a list": lambda value: isinstance(value, list) and bool(value),
    "a string": lambda value: isinstance(value, str) and is_utf8(value),
    "a finite number": lambda value: type(value) in (int, float) and abs(value) <= _LARGEST,
}


def checked(value: Any, what: str, kind: str) -> Any:
    """JSON value of a kind; `what` names it in the error."""
    if not _KINDS[kind](value):
        verb = "are" if kind == "a list" else "is"
        raise BadValue(f"{what} {verb} {shown(value)}, and {kind} was expected")
    return value


def as_words(value: Any, what: str) -> Tuple[str, ...]:
    """Words of a JSON string."""
    return tuple(checked(value, what, "a string").split())


def as_score(value: Any, what: str) -> Optional[float]:
    """Finite number, None where there is none."""
    if value is None or (type(value) is float and math.isfinite(value)):
        return value
    return float(checked(value, what, "a finite number"))


def others(content: Mapping[str, Any], keys: Sequence[str]) -> Dict[str, Any]:
    """Values under other keys, if they can be written again."""
    found = {name: value for name, value in content.items() if name not in keys}
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


def nbest_of(
    utt: str,
    hypotheses: Iterable[Hypothesis],
    content: Mapping[str, Any],
    *,
    keys: Sequence[str],
    ref: str = "ref",
) -> NBest:
    """List of an utterance, with its reference, speaker and other fields.

    Raises:
        BadValue: A field is of another type, or only some hypotheses have a score.
    """
    hyps = tuple(hypotheses)
    num_scored = sum(hyp.am_score is not None for hyp in hyps)
    if num_scored not in (0, len(hyps)):
        raise BadValue(f"{num_scored} of {len(hyps)} hypotheses have a score")
    words, speaker = content.get(ref), content.get("speaker")
    return NBest(
        utt,
        hyps,
        None if words is None else as_words(words, ref),
        None if speaker is None else checked(speaker, "speaker", "a string"),
        others(content, keys),
    )


def read_json_lists(
    path: PathLike,
    parse: Callable[[Any, str], NBest],
    *,
    remedy: str,
    suffix: str = ".json",
    values: Optional[Callable[[Path], Iterator[Value]]] = None,
) -> Iterator[NBest]:
    """Yield the N-best lists of a file, or of a folder's files by natural order.

    Args:
        path: The file or folder.
        parse: Makes a list of a JSON value and of the id that it has where the value says none.
        remedy: Description of the file that was expected, for errors.
        suffix: Suffix of the files that are read in a folder, perhaps with .gz.
        values: Yields the values of a file; None: `numbered_items`.

    Raises:
        InputError: A value is not such JSON (file, line, remedy), an id comes twice, or there is no
            file.
    """
    # rescore writes sweep.json beside its lists
    pattern = rf"(?!sweep\.json).*{re.escape(suffix)}(\.gz)?"
    utterances = UniqueUtterances(path)
    for file in files_matching(Path(path), pattern, problem=f"no *{suffix} in it"):
        found = values(file) if values else numbered_items(file, remedy)
        for line, name, value in found:
            with located(file, line, remedy):
                nbest = parse(value, name)
            utterances.add(nbest.utt, file, line)
            yield nbest
    utterances.check(remedy)


def numbered_items(path: Path, remedy: str) -> Iterator[Value]:
    """Yield the values of a JSON file, named after the file and numbered from 1."""
    for number, (line, value) in enumerate(json_items(path, remedy=remedy), 1):
        yield line, f"{json_stem(path)}-{number:06d}", value


def json_stem(path: Path) -> str:
    """Name of a JSON file without .json or .json.gz."""
    return path.name.removesuffix(".gz").removesuffix(".json")
