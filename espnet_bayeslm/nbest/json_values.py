"""JSON whose content is checked: shared by the formats that are JSON."""

from __future__ import annotations

import contextlib
import json
import math
import re
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple

from espnet_bayeslm.nbest.fields import UniqueUtterances, files_matching, is_utf8
from espnet_bayeslm.nbest.types import Hypothesis, NBest
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike, read_text

# An integer of more digits is read as a float: Python refuses to convert a million digits
_MAX_DIGITS = 18
_BLANKS = re.compile(r"[ \t\r\n]*")
_LIST = re.compile(r"[ \t\r\n]*\[")
_COMMA = re.compile(r"[ \t\r\n]*,")

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


def parse_json(text: str) -> Any:
    """JSON value of a text.

    Raises:
        BadValue: The text is no JSON, has a key twice, or a number that is not finite.
    """
    try:
        return _DECODER.decode(text)
    except json.JSONDecodeError as error:
        raise BadValue(f"not JSON ({error.msg} at column {error.colno})") from error
    except RecursionError as error:
        raise BadValue("brackets are nested too deeply") from error


def json_items(path: PathLike, *, remedy: str) -> Iterator[Tuple[int, Any]]:
    """Yield (line from 1, value) of the items of a JSON list, or of values one after the other."""
    text = read_text(path)
    listed = _LIST.match(text)
    place = _after_blanks(text, listed.end() if listed else 0)
    line = 1 + text.count("\n", 0, place)
    more = place < len(text) and not (listed and text[place] == "]")
    while more:
        value, end = _value_at(text, place, path, line, remedy)
        yield line, value
        comma = _COMMA.match(text, end) if listed else None
        after = _after_blanks(text, comma.end() if comma else end)
        line += text.count("\n", place, after)
        place = after
        more = bool(comma) if listed else place < len(text)
    if listed and text[place:].rstrip() != "]":
        problem = "not JSON (',' or the end of the list was expected)"
        raise InputError(problem, path=path, line=line, remedy=remedy)


def _after_blanks(text: str, place: int) -> int:
    """Place of the next character that is no blank."""
    match = _BLANKS.match(text, place)
    assert match is not None
    return match.end()


def _value_at(text: str, place: int, path: PathLike, line: int, remedy: str) -> Tuple[Any, int]:
    """Value that begins at a place of a text, and the place of its end."""
    with located(path, line, remedy):
        try:
            return _DECODER.raw_decode(text, place)
        except json.JSONDecodeError as error:
            problem = f"not JSON ({error.msg} at column {error.colno})"
            raise InputError(problem, path=path, line=error.lineno, remedy=remedy) from error
        except RecursionError as error:
            raise BadValue("brackets are nested too deeply") from error


def _unique(pairs: List[Tuple[str, Any]]) -> Dict[str, Any]:
    """JSON object whose keys come once each."""
    content = dict(pairs)
    if len(content) != len(pairs):
        raise BadValue("a key comes twice in one object")
    return content


def _refuse(constant: str) -> None:
    """Refuse NaN and the infinities, which JSON does not have and Python reads."""
    raise BadValue(f"{constant} is not a finite number")


def _integer(digits: str) -> float:
    """Number of a JSON integer."""
    return int(digits) if len(digits) <= _MAX_DIGITS else float(digits)


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_refuse, parse_int=_integer)


def as_object(content: Any, what: str) -> Dict[str, Any]:
    """JSON object, checked; `what` names it in the error."""
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
        None if speaker is None else as_string(speaker, "speaker"),
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
