"""Options of a tool, or of a kind of uncertainty, as the fields of one dataclass.

The dataclass of a tool makes the parser, the object, and the Python signature, and checks values.

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class SearchOptions(ToolOptions):
        exp: Path = option("The search's folder")
        top: int = option("How many architectures to write", 3, least=1)

Options that go together are a dataclass of their own, `nested` in that of each tool which has them.
The parser and the signature have its fields in its place, and `SearchOptions.of(..)` takes them.

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
    TYPE_CHECKING,
    Any,
    Callable,
    Dict,
    Iterator,
    Mapping,
    Optional,
    Sequence,
    Tuple,
    Type,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)

from espnet_bayeslm.utils.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike

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
    check: Optional[Callable[[str], object]] = None,
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
        check: Function that raises an InputError where a value is not allowed; the default is.
        metavar: Name of the value in the parser's help.
        positional: True for an argument without `--`.
        names: Object whose text takes the place of `%(names)s` when the help is shown.
    """
    metadata = {"help": help, "name": name, "group": group, "positional": positional}
    limits = {"choices": choices, "least": least, "most": most, "check": check}
    shown = {"metavar": metavar, "names": names}
    return dataclasses.field(default=default, metadata={**metadata, **limits, **shown})


def nested(cls: Type) -> Any:
    """Field of a dataclass of options that holds other ones, an object of their dataclass."""
    return dataclasses.field(default_factory=cls, metadata={"nested": cls})


def _fields(cls: Type) -> Iterator[Tuple[Type, dataclasses.Field]]:
    """Yield the fields of a dataclass, nested ones in their place, each with its class."""
    for field in dataclasses.fields(cls):
        inner = field.metadata.get("nested")
        yield from [(cls, field)] if inner is None else _fields(inner)


def described_fields(cls: Type) -> Dict[str, dataclasses.Field]:
    """{name on the command line: field} of a dataclass's options, required ones first."""
    described = [field for _, field in _fields(cls) if "help" in field.metadata]
    described.sort(key=lambda field: field.default is not dataclasses.MISSING)
    return {field.metadata["name"] or field.name: field for field in described}


def add_options(parser: argparse.ArgumentParser, cls: Type) -> argparse.ArgumentParser:
    """Add an option for each field of a dataclass, and return the parser."""
    from espnet2.utils.types import float_or_none, int_or_none, str2bool

    # type in an annotation -> function that reads a word, and one that also reads `none`
    readers = {bool: (str2bool, str2bool), int: (int, int_or_none), float: (float, float_or_none)}
    readers[Path] = (Path, Path)
    hints: Dict[str, Any] = {}
    for owner in {owner for owner, _ in _fields(cls)}:
        hints.update(get_type_hints(owner))
    groups: Dict[str, Any] = {"": parser}
    for name, field in described_fields(cls).items():
        hint, described = hints[field.name], field.metadata
        kinds, required = get_args(hint) or (hint,), field.default is dataclasses.MISSING
        known = (both for kind, both in readers.items() if kind in kinds)
        read, read_or_none = next(known, (str, str))
        keywords = {
            key: described[key]
            for key in ("help", "choices", "metavar")
            if described[key] is not None
        }
        keywords["type"] = read_or_none if type(None) in kinds else read
        if get_origin(hint) is collections.abc.Sequence:
            keywords.update(action="append", default=[])
        else:
            keywords["default"] = None if required else field.default
        if described["positional"]:
            keywords["nargs"] = None if required else "?"
            flag = field.name
        else:
            keywords.update(dest=name, required=required)
            flag = f"--{name}"
        if (title := described["group"]) not in groups:
            groups[title] = parser.add_argument_group(title)
        groups[title].add_argument(flag, **keywords).names = described["names"]
    return parser


def with_options(cls: Type) -> Callable[[F], F]:
    """Decorate a function of `**options`: signature and Args get a `kw_only` dataclass's fields."""

    def decorate(function: F) -> F:
        own = inspect.signature(function)
        parameters = [p for p in own.parameters.values() if p.kind is not p.VAR_KEYWORD]
        parameters += [inspect.signature(o).parameters[field.name] for o, field in _fields(cls)]
        function.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
        fields = described_fields(cls).values()
        lines = [f"{field.name}: {field.metadata['help']}" for field in fields]
        function.__doc__ = re.sub(
            r"^( *)\*\*options:.*$",
            lambda found: "\n".join(found[1] + line for line in lines),
            function.__doc__ or "",
            flags=re.MULTILINE,
        )
        return function

    return decorate


def as_numbers(value: Any, cls: Optional[Callable] = None) -> Any:
    """Value of a yaml file with its numbers as numbers, in mappings and lists too.

    Every word in the form of a number is taken for one. The annotations of `cls`, whose
    configuration a mapping is, as `lm_conf` or `optim_conf`, say which arguments are words, which
    stay, and which are whole numbers.
    """
    if isinstance(value, str):
        return float(value) if NUMBER.fullmatch(value.strip()) else value
    if isinstance(value, list):
        return [as_numbers(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    parameters = {} if cls is None else inspect.signature(cls).parameters
    numbers = {}
    for key, item in value.items():
        number = numbers[key] = as_numbers(item)
        if not isinstance(item, str) or not isinstance(number, float) or key not in parameters:
            continue
        types = set(re.findall(r"\w+", inspect.formatannotation(parameters[key].annotation)))
        if types & {"str", "int"} and "float" not in types:
            numbers[key] = int(number) if "int" in types and number.is_integer() else item
    return numbers


@dataclasses.dataclass(frozen=True, kw_only=True)
class ToolOptions:
    """Base of a tool's options: values outside of their choices or ranges raise an InputError.

    The values may come from a parser or from Python.
    """

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value, limits = getattr(self, field.name), field.metadata
            if "help" not in limits:
                continue
            name, known, least = limits["name"] or field.name, limits["choices"], limits["least"]
            if known is not None and value is not None and value not in known:
                raise InputError(f"--{name} {value}: expected one of {', '.join(known)}")
            if least is not None:
                check_least(least, limits["most"], **{f"--{name}": value})
            if limits["check"] is not None and value != field.default:
                limits["check"](value)

    @classmethod
    def of(cls: Type[T], **values: Any) -> T:
        """Options with these values of their fields, nested ones among them."""
        inner_options: Dict[str, Any] = {}
        for field in dataclasses.fields(cls):  # type: ignore[arg-type]
            if inner := field.metadata.get("nested"):
                own = {f.name for _, f in _fields(inner)} & values.keys()
                inner_options[field.name] = inner.of(**{name: values.pop(name) for name in own})
        return cls(**values, **inner_options)

    def values(self) -> Dict[str, Any]:
        """Value of each field, nested ones in their place."""
        found: Dict[str, Any] = {}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            found.update(value.values() if "nested" in field.metadata else {field.name: value})
        return found


def check_least(
    least: float,
    most: Optional[float] = None,
    /,
    *,
    below: Optional[float] = None,
    **numbers: Optional[float],
) -> None:
    """Raise an InputError where a number, if it is given, is outside of a range.

    The range ends at `most`, or before `below`. Without both a number must be finite.
    """
    highest = sys.float_info.max if most is None else most
    for name, value in numbers.items():
        if value is None or (least <= value <= highest and (below is None or value < below)):
            continue
        limit = f"{least} or more" if most in (None, math.inf) else f"{least} to {most}"
        if below is not None:
            limit = f"a number from {least} to below {below}"
        raise InputError(f"{name} {value}: expected {limit}")


def check_weights(weights: ArrayLike, num_components: int) -> np.ndarray:
    """Weights of a mixture's components, (K,), checked and scaled to the sum 1."""
    import numpy as np  # the help of a tool needs it not

    values = np.asarray(weights, dtype=np.float64)
    problem = ""
    if values.shape != (num_components,):
        problem = f"{values.size} weights for {num_components} components"
    elif not np.isfinite(values).all() or (values < 0).any():
        problem = f"weights {values.tolist()} where numbers from 0 to 1 were expected"
    elif abs(values.sum() - 1) > 1e-3:
        problem = f"weights {values.tolist()} with the sum {values.sum():.4f}, not 1"
    if problem:
        raise InputError(problem, remedy="Estimate them with `bayeslm interpolate`.")
    return values / values.sum()
