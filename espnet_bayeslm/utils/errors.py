"""The one exception for input that a person has to mend."""

from __future__ import annotations

import os
from typing import Optional, Union


class InputError(ValueError):
    """Input that cannot be used: says where, what came, what was expected, what to do.

    Args:
        problem: What came, and what was expected.
        path: The file concerned.
        line: Its line, counted from 1.
        remedy: What the user can do about it.
    """

    def __init__(
        self,
        problem: str,
        *,
        path: Optional[Union[str, "os.PathLike[str]"]] = None,
        line: Optional[int] = None,
        remedy: str = "",
    ):
        where = "" if path is None else os.fspath(path)
        if path is not None and line is not None:
            where += f":{line}"
        message = f"{where}: {problem}" if where else problem
        super().__init__(f"{message}. {remedy}".rstrip() if remedy else message)
