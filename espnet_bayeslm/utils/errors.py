"""The one exception for input that a person has to mend, and how it is shown."""

from __future__ import annotations

import contextlib
import os
from typing import Iterator, Optional, Union

from typeguard import TypeCheckError


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
        # what a library says may end in its own full stop
        super().__init__(f"{message.removesuffix('.')}. {remedy}".rstrip() if remedy else message)


@contextlib.contextmanager
def one_line_errors(program: str) -> Iterator[None]:
    """Turn bad input within the block into one line and exit status 1.

    Args:
        program: What the line begins with.

    Raises:
        SystemExit: In place of an InputError, or of an option of the wrong type.
    """
    try:
        yield
    except (InputError, TypeCheckError) as error:
        raise SystemExit(f"{program}: error: {error}") from error
