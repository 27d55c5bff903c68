"""Options: from a dataclass, and numbers in yaml."""

import argparse
import dataclasses
import inspect
import math
import re
from pathlib import Path
from typing import Any, Mapping, Optional, Sequence, Union

import pytest
import yaml

from espnet_bayeslm.utils.cli import Tool
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike
from espnet_bayeslm.utils.options import (
    ToolOptions,
    add_options,
    as_numbers,
    nested,
    option,
    with_options,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(ToolOptions):
    number: int = option("A number", 3)
    rate: Optional[float] = option("A rate", None)
    flag: bool = option("Yes or no", False)
    names: Sequence[str] = option("A name (repeatable)", (), name="name", group="names")
    source: Union[PathLike, Mapping[str, int], None] = option("A file", None, name="from")
    kind: str = option("A kind", "a", choices=("a", "b"))
    output: Path = option("The file to write")
    rest: Sequence[str] = ("x",)


def parsed(*words):
    options = []
    Tool("some", "Something", options.append, Options).main(words)
    return options[0]


def test_words_become_the_types_of_the_fields():
    assert parsed("--output", "o") == Options(output=Path("o"), names=[])
    words = "--number 4 --rate 0.5 --flag true --name a --name b --from f --kind b --output o"
    found = Options(number=4, rate=0.5, flag=True, names=["a", "b"], source="f", kind="b",
                    output=Path("o"))  # fmt: skip
    assert parsed(*words.split()) == found
    assert parsed("--output", "o", "--rate", "none").rate is None
    parser = add_options(argparse.ArgumentParser(), Options)
    text = parser.format_help()
    assert text.index("--output") < text.index("--number")
    assert text.index("names:") < text.rindex("--name ")


@pytest.mark.parametrize("words", ["", "--output o --kind c", "--output o --number x"])
def test_words_that_are_refused(words):
    with pytest.raises(SystemExit):
        parsed(*words.split())


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limited(ToolOptions):
    number: Optional[int] = option("A number", None, least=1, name="count")
    share: float = option("A share", 0.5, least=0, most=1)
    beam: float = option("A beam", 1.0, least=0, most=math.inf)
    kind: Optional[str] = option("A kind", None, choices=("a", "b"))


@pytest.mark.parametrize(
    "values, problem",
    [
        ({"number": 0}, "--count 0: expected 1 or more"),
        ({"number": math.inf}, "--count inf: expected 1 or more"),
        ({"share": 1.5}, "--share 1.5: expected 0 to 1"),
        ({"beam": math.nan}, "--beam nan: expected 0 or more"),
        ({"kind": "c"}, "--kind c: expected one of a, b"),
    ],
)
def test_values_of_python_are_checked(values, problem):
    with pytest.raises(InputError, match=f"^{re.escape(problem)}$"):
        Limited(**values)


def test_ends_of_a_range_belong_to_it():
    assert Limited(number=1, share=1, beam=math.inf, kind="b").share == 1
    assert Limited(share=0, beam=0).number is None


def test_a_function_has_the_fields_in_signature_and_docstring():
    @with_options(Options)
    def use(first, *, own=1, **options):
        """Use options.

        Args:
            first: A thing.
            **options: Fields of `Options`.

        Returns:
            The options.
        """
        return Options(**options)

    parameters = inspect.signature(use).parameters
    names = [field.name for field in dataclasses.fields(Options)]
    assert list(parameters) == ["first", "own", *names]
    assert parameters["number"].default == 3 and parameters["number"].annotation is int
    assert parameters["output"].default is inspect.Parameter.empty
    doc = inspect.getdoc(use)
    assert "first: A thing.\n    output: The file to write\n" in doc and "**" not in doc
    assert use(0, output="o") == Options(output="o")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Middle(ToolOptions):
    limited: Limited = nested(Limited)
    needed: str = option("What is needed")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Nested(ToolOptions):
    top: int = option("The first", 1, least=0)
    middle: Middle = nested(Middle)
    last: bool = option("The last", False)


def test_nested_options_stand_in_their_place():
    """Parser and signature are those of one dataclass with all fields, in their order."""
    rows = [(f.name, f.type, f) for f in dataclasses.fields(Limited)]
    rows += [("needed", str, option("What is needed")), ("last", bool, option("The last", False))]
    rows = [("top", int, option("The first", 1, least=0)), *rows]
    flat = dataclasses.make_dataclass("Flat", rows, bases=(ToolOptions,), frozen=True, kw_only=True)
    texts = {add_options(argparse.ArgumentParser(), cls).format_help() for cls in (flat, Nested)}
    assert len(texts) == 1
    signatures = [inspect.signature(with_options(cls)(lambda **o: o)) for cls in (flat, Nested)]
    assert signatures[0] == signatures[1]


def test_values_go_where_they_are_nested():
    values = {"top": 2, "number": 3, "share": 0.1, "beam": 2.0, "kind": "a", "needed": "x"}
    made = Nested.of(**values, last=True)
    middle = Middle(limited=Limited(number=3, share=0.1, beam=2.0, kind="a"), needed="x")
    assert made == Nested(top=2, middle=middle, last=True)
    assert made.values() == {**values, "last": True} and Nested.of(**made.values()) == made
    assert Nested.of(needed="x").middle.limited == Limited()
    with pytest.raises(InputError, match=r"^--count 0: expected 1 or more$"):
        Nested.of(needed="x", number=0)
    with pytest.raises(TypeError, match="'other'"):
        Nested.of(needed="x", other=1)
    with pytest.raises(TypeError, match="'needed'"):
        Nested.of()


NUMBERS = ["1e-3", "1E3", "-2e+5", "1.5e3", ".5e-2", "+1.e2", "-.5", "1.0e-3", "1", "-0.5", ".inf"]
WORDS = ["1e", "e3", "1e3x", "1 e3", "0x1e3", "1_0e3", "a1e3", "1e3/exp", "learn", "1e-3,2e-3"]


@pytest.mark.parametrize("text", NUMBERS)
def test_numbers(text):
    [found] = as_numbers(yaml.safe_load(f"[{text}]"))
    assert isinstance(found, (int, float)) and found == float(text.replace(".inf", "inf"))


@pytest.mark.parametrize("text", WORDS)
def test_words(text):
    assert as_numbers({"key": [text]}) == {"key": [text]}


def test_keys_and_words_of_options_stay():
    assert as_numbers({"1e3": {"a": ["1e1", None, True]}}) == {"1e3": {"a": [10.0, None, True]}}
    conf = {name: "1e3" for name in ("size", "rate", "either", "path", "untyped", "no_argument")}
    found = as_numbers({**conf, "nested": {"path": "1e3"}}, Typed)
    assert found.pop("path") == "1e3" and found.pop("nested") == {"path": 1000.0}
    assert set(found.values()) == {1000.0} and isinstance(found["size"], int)
    assert as_numbers({"size": "1e-3"}, Typed) == {"size": "1e-3"}


class Typed:
    def __init__(
        self,
        size: int,
        rate: float,
        either: Union[float, str],
        path: Optional[str],
        nested: Any = None,
        untyped=None,
    ):
        pass
