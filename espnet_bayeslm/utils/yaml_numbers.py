"""Numbers that PyYAML takes for words: `1e-3` is one in YAML 1.2, and PyYAML reads YAML 1.1."""

from __future__ import annotations

import inspect
import re
from typing import Any, Callable, Dict, Mapping, Optional

NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+|[-+]\.\d+")


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
    return {key: _argument(value, parameters.get(key)) for key, value in conf.items()}


def _argument(value: Any, parameter: Optional[inspect.Parameter]) -> Any:
    """Value of an argument with its numbers as numbers."""
    number = as_numbers(value)
    if number is value or parameter is None or not isinstance(value, str):
        return number
    types = set(re.findall(r"\w+", inspect.formatannotation(parameter.annotation)))
    if "float" in types or not types & {"str", "int"}:
        return number
    return int(number) if "int" in types and number.is_integer() else value
