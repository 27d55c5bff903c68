"""A dataclass of options becomes a parser, an object, and the signature of a function."""

import argparse
import dataclasses
import inspect
from pathlib import Path
from typing import Mapping, Optional, Sequence, Union

import pytest

from espnet_bayeslm.utils.files import PathLike
from espnet_bayeslm.utils.options import add_options, option, options_from, with_options


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    number: int = option("A number", 3)
    rate: Optional[float] = option("A rate", None)
    flag: bool = option("Yes or no", False)
    names: Sequence[str] = option("A name (repeatable)", (), name="name", group="names")
    source: Union[PathLike, Mapping[str, int], None] = option("A file", None, name="from")
    kind: str = option("A kind", "a", choices=("a", "b"))
    output: Path = option("The file to write")
    rest: Sequence[str] = ()


def parsed(*words):
    parser = add_options(argparse.ArgumentParser(exit_on_error=False), Options)
    return options_from(Options, {**vars(parser.parse_args(words)), "rest": ["x"]})


def test_words_become_the_types_of_the_fields():
    assert parsed("--output", "o") == Options(output=Path("o"), names=[], rest=["x"])
    words = "--number 4 --rate 0.5 --flag true --name a --name b --from f --kind b --output o"
    found = Options(number=4, rate=0.5, flag=True, names=["a", "b"], source="f", kind="b",
                    output=Path("o"), rest=["x"])  # fmt: skip
    assert parsed(*words.split()) == found
    assert parsed("--output", "o", "--rate", "none").rate is None


@pytest.mark.parametrize("words", ["", "--output o --kind c", "--output o --number x"])
def test_words_that_are_refused(words):
    with pytest.raises((argparse.ArgumentError, SystemExit)):
        parsed(*words.split())


def test_help_has_required_options_first_and_groups():
    parser = add_options(argparse.ArgumentParser(), Options)
    text = parser.format_help()
    assert text.index("--output") < text.index("--number")
    assert text.index("names:") < text.rindex("--name ")


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
    doc = use.__doc__
    assert "first: A thing.\n            output: The file to write\n" in doc and "**" not in doc
    assert use(0, output="o") == Options(output="o")
