"""The one exception for input that a person has to mend, and how it is shown."""

from __future__ import annotations

import contextlib
import os
from typing import Iterator, Optional, Union

from typeguard import TypeCheckError


class InputError(ValueError):
    """Input that cannot be used: the place, the fault, the expected input, and a remedy.

    Args:
        problem: Description of the fault, and of the input that was expected.
        path: The file concerned.
        line: Line number, from 1.
        remedy: Advice for the user.
    """

    def __init__(
        self,
        problem: str,
        *,
        path: Optional[Union[str, "os.PathLike[str]"]] = None,
        line: Optional[int] = None,
        remedy: str = "",
    ):
        self.path = path
        where = "" if path is None else os.fspath(path)
        if path is not None and line is not None:
            where += f":{line}"
        message = f"{where}: {problem}" if where else problem
        # the message of a library may end in its own full stop
        whole = f"{message.removesuffix('.')}. {remedy}".rstrip() if remedy else message
        super().__init__(one_line(whole))


def one_line(text: str) -> str:
    """Message, perhaps of a library and of several lines, in one line."""
    return " ".join(filter(None, map(str.strip, text.splitlines())))


def reason_of(error: Exception) -> str:
    """Reason why the content of a file cannot be used: the key that it lacks, or the message."""
    return f"no key {error.args[0]!r}" if isinstance(error, KeyError) else str(error)


@contextlib.contextmanager
def one_line_errors(program: str) -> Iterator[None]:
    """Turn bad input within the block into a line that begins with `program`, and exit status 1."""
    try:
        yield
    except (InputError, TypeCheckError) as error:
        raise SystemExit(f"{program}: error: {error}") from error
