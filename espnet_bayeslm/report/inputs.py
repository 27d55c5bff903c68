"""Inputs of tools: named paths, and JSON as dataclasses."""

from __future__ import annotations

import collections.abc
import contextlib
import dataclasses
import json
import math
import typing
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple, Union

from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike, unpacked_text

# Types that a list, an object of JSON becomes
LISTS: Dict[Any, Any] = {list: list, tuple: tuple, collections.abc.Sequence: list}
OBJECTS = (dict, collections.abc.Mapping)
# Types as messages name them
NAMES: Dict[Any, str] = {**dict.fromkeys(LISTS, "a list"), **dict.fromkeys(OBJECTS, "an object")}
NAMES |= {float: "a number", int: "a whole number", str: "a text"}
# A repeatable option; one value may stand in a --config file without a list.
Repeated = Union[str, Sequence[str], None]


def labelled_paths(option: str, values: Repeated, what: str = "NAME") -> List[Tuple[str, str]]:
    """Pairs (label, path) of values LABEL=PATH; of a path alone the label is empty."""
    pairs: List[Tuple[str, str]] = []
    for value in [values] if isinstance(values, str) else list(values or []):
        label, separator, path = value.partition("=")
        # a path may hold a `=` itself
        alone = not separator or "/" in label or Path(value).exists()
        if alone:
            label, path = "", value
        if not path or not (label or alone):
            raise InputError(
                f"{option} {value}: no path, or an empty name", remedy=f"Give {option} {what}=PATH."
            )
        pairs.append((label, path))
    return pairs


def named_paths(option: str, values: Repeated, *, unique: bool = False) -> List[Tuple[str, str]]:
    """Pairs (name, path) of values NAME=PATH; a path alone has its last part as the name."""
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


@contextlib.contextmanager
def json_content(path: PathLike, what: str, *, remedy: str) -> Iterator[Any]:
    """Content of a JSON file, for a block that turns it into `what`."""
    with expecting(what, path=path, remedy=remedy):
        yield json.loads(unpacked_text(path))


@contextlib.contextmanager
def expecting(
    what: str, *, path: PathLike, remedy: str, line: Optional[int] = None
) -> Iterator[None]:
    """Turn errors about a text that is no JSON, or a value of another form, into `InputError`."""
    try:
        yield
    except InputError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        reason = f"no {error}" if isinstance(error, KeyError) else str(error)
        problem = f"expected {what}: {reason[:120]}"
        if isinstance(error, (json.JSONDecodeError, RecursionError)):
            problem = f"not JSON ({error})"
        raise InputError(problem, path=path, line=line, remedy=remedy) from error


def typed(kind: Any, value: Any) -> Any:
    """JSON value as a type: a dataclass by its fields' names, a list, a dictionary, a number.

    The type is a dataclass, `Dict[str, T]`, `List[T]`, `Tuple[T, ...]`, `Optional[T]`, `float`,
    `int`, `str` or `Any`. Keys that a dataclass has no field for are left out. An integer of JSON
    is a float too.

    Raises:
        ValueError: The value is of another type, or is no number (nan).
        KeyError: A field without default is missing.
    """
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return value
    if origin is Union:
        return None if value is None else typed(inner[0], value)
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        content, hints = typed(Dict[str, Any], value), typing.get_type_hints(kind)
        fields = dataclasses.fields(kind)
        required = {f.name for f in fields if f.default is f.default_factory is dataclasses.MISSING}
        given = [name for name in hints if name in required or name in content]
        return kind(**{name: typed(hints[name], content[name]) for name in given})
    if origin in LISTS and isinstance(value, list):
        return LISTS[origin](typed(inner[0], item) for item in value)
    if origin in OBJECTS and isinstance(value, dict):
        return {key: typed(inner[1], item) for key, item in value.items()}
    if kind in (int, float) and type(value) in (int, kind) and not math.isnan(value):
        return kind(value)
    if kind is str and isinstance(value, str):
        return value
    name = NAMES[origin or kind]
    raise ValueError(f"{str(value)[:40]!r} is not {name}")
