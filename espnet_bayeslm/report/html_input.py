"""What the parts of the HTML report read: named paths, JSON with numbers in it."""

from __future__ import annotations

import contextlib
import json
import math
from pathlib import Path
from typing import Any, Iterator, List, Mapping, Optional, Sequence, Tuple, Union

from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike, read_lines, read_text

# A repeatable option; one value may stand in a --config file without a list.
Repeated = Union[str, Sequence[str], None]


def labelled_paths(option: str, values: Repeated, what: str = "NAME") -> List[Tuple[str, str]]:
    """Pairs (label, path) of values LABEL=PATH; of a path alone the label is empty.

    Args:
        option: The option, for messages.
        values: Its values.
        what: What a label is, for messages.

    Raises:
        InputError: A value has no path, or an empty label.
    """
    pairs: List[Tuple[str, str]] = []
    for value in [values] if isinstance(values, str) else list(values or []):
        label, separator, path = value.partition("=")
        # a path may hold a `=` itself
        alone = not separator or "/" in label or Path(value).exists()
        if alone:
            label, path = "", value
        if not path or not (label or alone):
            raise InputError(f"{option} {value}", remedy=f"Give {option} {what}=PATH.")
        pairs.append((label, path))
    return pairs


def named_paths(option: str, values: Repeated, *, unique: bool = False) -> List[Tuple[str, str]]:
    """Pairs (name, path) of values NAME=PATH; a path alone has its last part as the name.

    Args:
        option: The option, for messages.
        values: Its values.
        unique: Whether each needs a name of its own.

    Raises:
        InputError: A value has no path, or a name comes twice.
    """
    pairs: List[Tuple[str, str]] = []
    for label, path in labelled_paths(option, values):
        name = label or Path(path).resolve().name
        if unique and name in dict(pairs):
            raise InputError(
                f"{option}: {dict(pairs)[name]} and {path} are both called {name}",
                remedy=f"Give {option} NAME=PATH, each with its own NAME.",
            )
        pairs.append((name, path))
    return pairs


def read_json(path: PathLike, *, remedy: str) -> Any:
    """Content of a JSON file; `remedy` is what the user can do where it is none.

    Raises:
        InputError: It cannot be read, or is not JSON.
    """
    return _parsed(read_text(path), path, None, remedy)


def read_json_lines(path: PathLike, *, remedy: str) -> Iterator[Tuple[int, Any]]:
    """Yield (line number, content) of a file of JSON lines.

    Raises:
        InputError: A line is not JSON.
    """
    for number, line in read_lines(path):
        yield number, _parsed(line, path, number, remedy)


def _parsed(text: str, path: PathLike, line: Optional[int], remedy: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"not JSON ({error})", path=path, line=line, remedy=remedy) from error


@contextlib.contextmanager
def expecting(
    what: str, *, path: PathLike, remedy: str, line: Optional[int] = None
) -> Iterator[None]:
    """Turn what goes wrong with a value of another form into an `InputError`.

    Args:
        what: What is expected.
        path: The file concerned.
        remedy: What the user can do.
        line: Its line.
    """
    try:
        yield
    except InputError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        reason = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise InputError(
            f"expected {what}: {reason[:120]}", path=path, line=line, remedy=remedy
        ) from error


def number(value: Any, *, infinite: bool = False) -> float:
    """JSON number.

    Args:
        value: The value.
        infinite: Whether it may be infinite.

    Raises:
        ValueError: It is something else.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{str(value)[:40]!r} is not a number")
    if math.isnan(value) or (math.isinf(value) and not infinite):
        raise ValueError(f"{value} is not a finite number")
    return float(value)


def numbers(values: Any) -> List[float]:
    """JSON list of numbers.

    Raises:
        ValueError: It is something else.
    """
    if not isinstance(values, list):
        raise ValueError(f"{str(values)[:40]!r} is not a list of numbers")
    return [number(value) for value in values]


def mapping(value: Any) -> Mapping[str, Any]:
    """JSON object.

    Raises:
        ValueError: It is something else.
    """
    if not isinstance(value, dict):
        raise ValueError(f"{str(value)[:40]!r} is not an object")
    return value
