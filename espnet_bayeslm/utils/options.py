"""Options of a tool, or of a kind of uncertainty, as the fields of one dataclass.

The dataclass of a tool makes the parser, the object, and the Python signature, and checks values.

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class SearchOptions(ToolOptions):
        exp: Path = option("The search's folder")
        top: int = option("How many architectures to write", 3, least=1)

The annotation says how a word of the command line is read: `bool` as true|false, `Optional[int]`
and `Optional[float]` also as `none`, a sequence as an option that may be repeated. Numbers and
paths are read as such, and any other type as a string.
"""

from __future__ import annotations

import argparse
import collections.abc
import dataclasses
import inspect
import math
import re
import sys
from pathlib import Path
from typing import (
    Any,
    Callable,
    Dict,
    List,
    Mapping,
    Optional,
    Sequence,
    Type,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)

from espnet_bayeslm.utils.errors import InputError

T = TypeVar("T")
F = TypeVar("F", bound=Callable)
# A number of YAML 1.2 that PyYAML, which reads YAML 1.1, takes for a word: `1e-3`
NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+|[-+]\.\d+")


def option(
    help: str,
    default: Any = dataclasses.MISSING,
    *,
    name: str = "",
    group: str = "",
    choices: Optional[Sequence[str]] = None,
    least: Optional[float] = None,
    most: Optional[float] = None,
    metavar: Optional[str] = None,
    positional: bool = False,
    names: object = None,
) -> Any:
    """Field of a dataclass of options.

    Args:
        help: Help text of the parser, the docstring and the reference page; `argparse.SUPPRESS`
            hides the option.
        default: Value of an option that is not given; an option without one is required.
        name: Name on the command line, if it is not the field's.
        group: Title of a group of options in the parser's help.
        choices: Values that are allowed.
        least: Lowest number that is allowed.
        most: Highest number that is allowed beside `least`; None: any finite one.
        metavar: Name of the value in the parser's help.
        positional: True for an argument without `--`.
        names: Object whose text takes the place of `%(names)s` when the help is shown.
    """
    metadata = {"help": help, "name": name, "group": group, "positional": positional}
    limits = {"choices": choices, "least": least, "most": most}
    shown = {"metavar": metavar, "names": names}
    return dataclasses.field(default=default, metadata={**metadata, **limits, **shown})


def described_fields(cls: Type) -> List[dataclasses.Field]:
    """Fields of a dataclass that `option` has made, required ones first."""
    found = [field for field in dataclasses.fields(cls) if "help" in field.metadata]
    return sorted(found, key=lambda field: field.default is not dataclasses.MISSING)


def option_name(field: dataclasses.Field) -> str:
    """Name of an option on the command line, without `--`."""
    return field.metadata["name"] or field.name


def add_options(parser: argparse.ArgumentParser, cls: Type) -> argparse.ArgumentParser:
    """Add an option for each field of a dataclass, and return the parser."""
    hints = get_type_hints(cls)
    groups: Dict[str, Any] = {"": parser}
    for field in described_fields(cls):
        title, hint = field.metadata["group"], hints[field.name]
        if title not in groups:
            groups[title] = parser.add_argument_group(title)
        known = ("help", "choices", "metavar")
        keywords = {
            name: field.metadata[name] for name in known if field.metadata[name] is not None
        }
        required = field.default is dataclasses.MISSING
        if get_origin(hint) is collections.abc.Sequence:
            keywords.update(action="append", default=[], type=_reader(get_args(hint)[0]))
        else:
            keywords.update(default=None if required else field.default, type=_reader(hint))
        if field.metadata["positional"]:
            name = field.name
            keywords.update(nargs=None if required else "?")
        else:
            name = f"--{option_name(field)}"
            keywords.update(dest=option_name(field), required=required)
        groups[title].add_argument(name, **keywords).names = field.metadata["names"]
    return parser


def _reader(hint: Any) -> Callable[[str], Any]:
    """Function that reads a word of the command line as a type."""
    from espnet2.utils.types import float_or_none, int_or_none, str2bool

    kinds = get_args(hint) or (hint,)
    optional = type(None) in kinds
    readers = {bool: str2bool, int: int, float: float, Path: Path}
    if optional:
        readers.update({int: int_or_none, float: float_or_none})
    return next((reader for kind, reader in readers.items() if kind in kinds), str)


def options_from(cls: Type[T], values: Mapping[str, Any]) -> T:
    """Options of a dataclass from the values that its parser has found."""
    fields: Sequence[dataclasses.Field] = dataclasses.fields(cls)  # type: ignore[arg-type]
    keys = {f.name: option_name(f) if "help" in f.metadata else f.name for f in fields}
    return cls(**{name: values[key] for name, key in keys.items() if key in values})


def part_of(cls: Type[T], options: Any) -> T:
    """Options of a base class, with the values of an object of its subclass."""
    fields: Sequence[dataclasses.Field] = dataclasses.fields(cls)  # type: ignore[arg-type]
    return cls(**{field.name: getattr(options, field.name) for field in fields})


def with_options(cls: Type) -> Callable[[F], F]:
    """Decorate a function of `**options`: signature and Args get a `kw_only` dataclass's fields."""

    def decorate(function: F) -> F:
        own = inspect.signature(function)
        parameters = [p for p in own.parameters.values() if p.kind is not p.VAR_KEYWORD]
        parameters += inspect.signature(cls).parameters.values()
        function.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
        lines = [f"{field.name}: {field.metadata['help']}" for field in described_fields(cls)]
        function.__doc__ = re.sub(
            r"^( *)\*\*options:.*$",
            lambda found: "\n".join(found[1] + line for line in lines),
            function.__doc__ or "",
            flags=re.MULTILINE,
        )
        return function

    return decorate


def as_numbers(value: Any) -> Any:
    """Value of a yaml file with its numbers as numbers, in mappings and lists too.

    Every word in the form of a number is taken for one.
    """
    if isinstance(value, str):
        return float(value) if NUMBER.fullmatch(value.strip()) else value
    if isinstance(value, Mapping):
        return {key: as_numbers(item) for key, item in value.items()}
    return [as_numbers(item) for item in value] if isinstance(value, list) else value


def conf_numbers(conf: Mapping[str, Any], cls: Optional[Callable] = None) -> Dict[str, Any]:
    """Configuration of a class, as `lm_conf` or `optim_conf`, with its numbers as numbers.

    The annotations of `cls` say which arguments are words, which stay, and which are whole
    numbers.
    """
    parameters = {} if cls is None else inspect.signature(cls).parameters
    found: Dict[str, Any] = {}
    for key, value in conf.items():
        number = found[key] = as_numbers(value)
        if not isinstance(value, str) or not isinstance(number, float) or key not in parameters:
            continue
        types = set(re.findall(r"\w+", inspect.formatannotation(parameters[key].annotation)))
        if types & {"str", "int"} and "float" not in types:
            found[key] = int(number) if "int" in types and number.is_integer() else value
    return found


@dataclasses.dataclass(frozen=True, kw_only=True)
class ToolOptions:
    """Base of a tool's options: values outside of their choices or ranges raise an InputError.

    The values may come from a parser or from Python.
    """

    def __post_init__(self) -> None:
        for field in described_fields(type(self)):
            name, value, limits = option_name(field), getattr(self, field.name), field.metadata
            known, least = limits["choices"], limits["least"]
            if known is not None and value is not None and value not in known:
                raise InputError(f"--{name} {value}: expected one of {', '.join(known)}")
            if least is not None:
                check_least(least, limits["most"], **{f"--{name}": value})


def check_least(least: float, most: Optional[float] = None, /, **numbers: Optional[float]) -> None:
    """Raise an InputError where a number, if it is given, is outside of a range.

    Without `most` it must be finite.
    """
    highest = sys.float_info.max if most is None else most
    for name, value in numbers.items():
        if value is not None and not least <= value <= highest:
            limit = "or more" if most in (None, math.inf) else f"to {most}"
            raise InputError(f"{name} {value}: expected {least} {limit}")


def check_rates(**rates: float) -> None:
    """Raise an InputError where a dropout rate is below 0, or 1 or above."""
    for name, rate in rates.items():
        if not 0 <= rate < 1:
            raise InputError(f"{name} {rate}: expected a number from 0 to below 1")
