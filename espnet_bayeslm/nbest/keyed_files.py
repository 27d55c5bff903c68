"""Text files of lines `key value` that belong together, in any order and in several parts."""

from __future__ import annotations

from pathlib import Path
from typing import Dict, Iterator, Sequence, Tuple

from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import keyed_lines

Entry = Tuple[Path, int, str]
"""File, line, and what stands after the key."""

Table = Dict[str, Entry]


def packed(path: Path) -> Path:
    """Return `path`, or `path`.gz where that is there.

    Raises:
        InputError: Both are there.
    """
    zipped = path.with_name(f"{path.name}.gz")
    if not zipped.exists():
        return path
    if path.exists():
        raise InputError(f"{zipped.name} is there too", path=path, remedy="Delete one of the two.")
    return zipped


def read_entries(paths: Sequence[Path]) -> Iterator[Tuple[str, Entry]]:
    """Yield (key, entry) of files that are read as one."""
    for path in paths:
        for number, key, value in keyed_lines(path):
            yield key, (path, number, value)


def read_table(paths: Sequence[Path]) -> Table:
    """Return {key: entry} of files that are read as one.

    Raises:
        InputError: A key comes twice.
    """
    table: Table = {}
    for key, entry in read_entries(paths):
        if key in table:
            path, number, _ = entry
            first = table[key][0]
            where = "" if first == path else f" of {first}"
            raise InputError(
                f"the key {key[:80]!r} stands already in line {table[key][1]}{where}",
                path=path,
                line=number,
                remedy="Keys must be unique.",
            )
        table[key] = entry
    return table


def check_has_keys(table: Table, wanted: Table, *, path: Path) -> None:
    """Check that a file has all the keys of another.

    Args:
        table: The file.
        wanted: The other.
        path: Where the file is.

    Raises:
        InputError: It has not.
    """
    missing = [key for key in wanted if key not in table]
    if missing:
        other, line, _ = wanted[missing[0]]
        # Parts have files of the same name: the part says which is meant
        name = other.name if other.parent == path.parent else f"{other.parent.name}/{other.name}"
        raise InputError(
            f"{len(missing)} of the {len(wanted)} keys of {other.name} are missing, the first"
            f" {missing[0][:80]!r} ({name}:{line})",
            path=path,
            remedy="All files of a list must have the same keys; write them anew together.",
        )
