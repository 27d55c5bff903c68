"""A number of a configuration is a number, however it is written."""

from typing import Any, Optional, Union

import pytest
import yaml

from espnet_bayeslm.utils.yaml_numbers import as_numbers, conf_numbers

NUMBERS = ["1e-3", "1E3", "-2e+5", "1.5e3", ".5e-2", "+1.e2", "-.5", "1.0e-3", "1", "-0.5", ".inf"]
WORDS = ["1e", "e3", "1e3x", "1 e3", "0x1e3", "1_0e3", "a1e3", "1e3/exp", "learn", "1e-3,2e-3"]


@pytest.mark.parametrize("text", NUMBERS)
def test_numbers(text):
    [found] = as_numbers(yaml.safe_load(f"[{text}]"))
    assert isinstance(found, (int, float)) and found == float(text.replace(".inf", "inf"))


@pytest.mark.parametrize("text", WORDS)
def test_words(text):
    assert as_numbers({"key": [text]}) == {"key": [text]}


def test_keys_stay():
    assert as_numbers({"1e3": {"a": ["1e1", None, True]}}) == {"1e3": {"a": [10.0, None, True]}}


class Options:
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


def test_words_of_options_that_are_words_stay():
    conf = {name: "1e3" for name in ("size", "rate", "either", "path", "untyped", "no_argument")}
    found = conf_numbers({**conf, "nested": {"path": "1e3"}}, Options)
    assert found.pop("path") == "1e3" and found.pop("nested") == {"path": 1000.0}
    assert set(found.values()) == {1000.0} and isinstance(found["size"], int)
    assert conf_numbers({"size": "1e-3"}, Options) == {"size": "1e-3"}
