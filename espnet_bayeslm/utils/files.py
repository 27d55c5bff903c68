"""Outputs that appear whole or not at all, and inputs read line by line."""

from __future__ import annotations

import codecs
import contextlib
import hashlib
import json
import math
import os
import re
import secrets
import shutil
from pathlib import Path
from typing import (
    IO,
    AbstractSet,
    Any,
    Callable,
    Dict,
    Iterable,
    Iterator,
    List,
    Mapping,
    Optional,
    Sequence,
    Tuple,
    TypeVar,
)

import yaml

from espnet_bayeslm.utils.errors import InputError, reason_of
from espnet_bayeslm.utils.packed_files import DAMAGED, PathLike, converted_by, open_unpacked

BYTE_ORDER_MARK = "\ufeff"
# A reader of Kaldi's archives says what to do
_KALDI_BINARY = re.compile(r"[^\s\0]+ \0B")
_UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
# A token list of 50,000 words takes the loader that is written in Python ten seconds.
YAML_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

T = TypeVar("T")

Entry = Tuple[Path, int, str]
"""File, line, and what stands after the key."""

Table = Dict[str, Entry]


@contextlib.contextmanager
def atomic_write(path: PathLike, mode: str = "w") -> Iterator[IO]:
    """Open a file, in mode "w" (UTF-8 text) or "wb", that replaces `path` when the block ends well.

    The folder is made where it is missing. A device or a pipe, as /dev/null, stays and is written.
    """
    target, encoding = Path(path), None if "b" in mode else "utf-8"
    if target.exists() and not (target.is_file() or target.is_dir()):
        with target.open(mode, encoding=encoding) as f:
            yield f
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.parent.absolute() / f".{target.name}.{secrets.token_hex(4)}"
    try:
        with temporary.open(mode, encoding=encoding) as f:
            yield f
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_text(path: PathLike, text: str) -> None:
    """Write a text file whole or not at all."""
    with atomic_write(path) as f:
        f.write(text)


def write_json(path: PathLike, content: Any, **options: Any) -> None:
    """Write a JSON file whole or not at all; options of `json.dumps`.

    NaN and infinity, which JSON does not have, become null, or with `allow_nan=False` an error.
    """
    content = _as_json(content) if options.get("allow_nan", True) else content
    write_text(path, json.dumps(content, **{"indent": 1, **options}) + "\n")


def _as_json(content: Any) -> Any:
    if isinstance(content, Mapping):
        return {key: _as_json(value) for key, value in content.items()}
    if isinstance(content, (list, tuple)):
        return [_as_json(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content


def write_yaml(path: PathLike, content: Mapping[str, Any]) -> None:
    """Write a yaml file whole or not at all, in the order of the keys."""
    write_text(path, yaml.safe_dump(content, sort_keys=False, allow_unicode=True))


@contextlib.contextmanager
def staged(
    path: PathLike, *, replaces: Iterable[str] = (), last: Sequence[str] = ()
) -> Iterator[Path]:
    """Make a folder whose files move into the folder `path` when the block ends well.

    Anything else in `path`, or in the folder that it leads to, stays. After an error nothing has
    been written.

    Args:
        path: The folder.
        replaces: Files that an earlier run has written there, as paths from it: they go.
        last: Files by which others know that all are there: they go first and come last.

    Yields:
        A temporary folder, to be filled.
    """
    target, place = _destination(path)
    # where this process is killed it stays
    temporary = place / f"{leftover_prefix(target)}{secrets.token_hex(4)}"
    temporary.mkdir()
    try:
        yield temporary
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            os.rename(temporary, target)
            return
        names = files_in(temporary)
        _check_way(target, names)
        for name in last:
            (target / name).unlink(missing_ok=True)
        for name in sorted(names, key=lambda name: last.index(name) if name in last else -1):
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            os.replace(temporary / name, target / name)
        for name in set(replaces) - set(names):
            _remove(target, name)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def check_folder(path: PathLike, *, written: Optional[AbstractSet[str]] = None) -> None:
    """Check that `staged` can write to a folder, before the work for it.

    If `written` is given, it has the names of all that may be in the folder already.
    """
    others = set(entries(path)) - written if written is not None and Path(path).is_dir() else None
    if others:
        raise InputError(
            f"holds {min(others)}, which is nothing that was exported",
            path=path,
            remedy="Give a new folder.",
        )
    _destination(path)


def check_output(
    output: PathLike, marker: str, *, tool: str, inputs: Mapping[str, Optional[PathLike]]
) -> List[str]:
    """Check that a tool can write its output folder, and find the files of an earlier run.

    The file `marker`, yaml or JSON, names the `files` of a run. Without it the folder must be new
    or empty. No input, {option: path}, may lie in the folder.
    """
    folder = Path(output)
    there = entries(folder) if folder.is_dir() else []
    # a run that was killed while its files came into place has left a folder within
    ours = marker in there or (folder.is_dir() and len(os.listdir(folder)) > len(there))
    within = [
        f"{option} {path} is in it"
        for option, path in inputs.items()
        if ours and path is not None and Path(path).resolve().is_relative_to(folder.resolve())
    ]
    if (folder.exists() and not folder.is_dir()) or (there and not ours):
        within.append(f"is there, and is not the output of an earlier `bayeslm {tool}`")
    if within:
        raise InputError(within[0], path=output, remedy="Give --output a new folder.")
    _destination(folder)
    try:
        content = yaml.safe_load((folder / marker).read_text(encoding="utf-8"))
        return [str(name) for name in content["files"]]
    except (OSError, ValueError, yaml.YAMLError, TypeError, KeyError):
        return []


def entries(folder: PathLike) -> List[str]:
    """Names in a folder, without the leftovers of killed `staged` runs."""
    prefix = leftover_prefix(folder)
    return sorted(name for name in os.listdir(folder) if not name.startswith(prefix))


def leftover_prefix(folder: PathLike) -> str:
    """Beginning of the names of temporary folders that `staged` makes for a folder."""
    return f".{Path(folder).resolve().name}."


def _destination(path: PathLike) -> Tuple[Path, Path]:
    """Folder that `path` is, leads to or will be, and the nearest one to it that is there.

    Raises:
        InputError: No folder can be written there.
    """
    target = Path(path)
    if target.is_symlink() and not target.exists():
        raise InputError(
            f"a link to {os.readlink(target)}, which does not exist",
            path=target,
            remedy="Remove the link, or make its target.",
        )
    if target.exists() and not target.is_dir():
        raise InputError("a file, where a folder is to be written", path=target)
    target = target.resolve()
    place = next(folder for folder in (target, *target.parents) if folder.exists())
    if not (place.is_dir() and os.access(place, os.W_OK)):
        raise InputError(f"cannot be written ({place} is no folder, or read-only)", path=path)
    return target, place


def files_in(folder: PathLike) -> List[str]:
    """Files of a folder and its subfolders, as paths from it."""
    paths = (path for path in Path(folder).rglob("*") if not path.is_dir())
    return sorted(str(path.relative_to(folder)) for path in paths)


def _check_way(folder: Path, names: Iterable[str]) -> None:
    """Raise an InputError where a folder stands in place of a file, or a file of a folder."""
    for name in names:
        above = [folder / part for part in list(Path(name).parents)[:-1]]
        if (folder / name).is_dir() or any(p.exists() and not p.is_dir() for p in above):
            raise InputError(
                "is in the way of a file to be written",
                path=folder / name,
                remedy="Move it, or give another folder.",
            )


def _remove(folder: Path, name: str) -> None:
    """Remove a file from a folder, and the folders in it that this leaves empty."""
    if Path(name).is_absolute() or ".." in Path(name).parts:
        return
    with contextlib.suppress(OSError):  # another's folder has its name now
        (folder / name).unlink()
    for above in list((folder / name).parents)[: len(Path(name).parents) - 1]:
        with contextlib.suppress(OSError):  # not empty
            above.rmdir()


def sha256(path: PathLike) -> str:
    """SHA-256 of a file's bytes, in hexadecimal digits."""
    digest = hashlib.sha256()
    with open(path, "rb") as f:
        while piece := f.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def check_seekable(path: PathLike) -> None:
    """Raise an InputError for a pipe, which cannot be read twice."""
    if Path(path).exists() and not (Path(path).is_file() or Path(path).is_dir()):
        raise InputError(
            "a pipe, and it is read twice: a file or folder was expected",
            path=path,
            remedy="Write it to a file first.",
        )


def read_lines(path: PathLike) -> Iterator[Tuple[int, str]]:
    """Yield (line number from 1, line without its end) of a UTF-8 text file.

    A compressed file is unpacked. Lines may end as on Windows, and a byte order mark before the
    first line is left out.
    """
    number = 0
    try:
        with open_unpacked(path) as f:
            for number, line in enumerate(f, 1):
                text = line.decode("utf-8").rstrip("\r\n")
                if number == 1:
                    text = text.removeprefix(BYTE_ORDER_MARK)
                if "\r" in text:
                    raise lone_return(path, number)
                if "\0" in text and not _KALDI_BINARY.match(text):
                    problem = "a zero byte, as of UTF-16 or of a file that is no text"
                    raise _utf16(problem, path, number)
                yield number, text
    except UnicodeDecodeError as error:
        if number == 1 and error.object.startswith(_UTF16_MARKS):
            raise _utf16("UTF-16", path, number) from error
        raise InputError(
            f"not UTF-8 text ({error.reason} at byte {error.start} of the line)",
            path=path,
            line=number,
            remedy="Convert the file to UTF-8.",
        ) from error
    except DAMAGED as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"cannot be read ({reason})", path=path) from error


def lone_return(path: PathLike, line: int) -> InputError:
    """Error of a carriage return that ends a line, as on old Macs."""
    return InputError(
        "a carriage return alone, as where lines end as on old Macs; lines end in a line feed, or"
        " in both",
        path=path,
        line=line,
        remedy=converted_by(r"tr '\r' '\n'", path),
    )


def _utf16(problem: str, path: PathLike, line: int) -> InputError:
    """Error of text in two bytes a character."""
    remedy = converted_by("iconv -f UTF-16 -t UTF-8", path)
    return InputError(f"{problem}; UTF-8 text was expected", path=path, line=line, remedy=remedy)


def unpacked_text(path: PathLike) -> str:
    """Text of a UTF-8 file, which may be compressed; its lines end in a line feed."""
    return "\n".join(line for _, line in read_lines(path))


def read_yaml_mapping(path: PathLike, *, remedy: str = "") -> Dict[str, Any]:
    """Content of a yaml file."""
    try:
        content = yaml.load(unpacked_text(path), Loader=YAML_LOADER)
    except yaml.YAMLError as error:
        raise InputError(f"not a yaml file ({error})", path=path, remedy=remedy) from error
    if not isinstance(content, dict):
        problem = f"expected a yaml mapping, got {str(content)[:80]!r}"
        raise InputError(problem, path=path, remedy=remedy)
    return content


def read_yaml_as(
    path: PathLike, make: Callable[[Dict[str, Any]], T], *, problem: str, remedy: str
) -> T:
    """Object that `make` builds from the mapping in a yaml file.

    Raises:
        InputError: The file holds no mapping, or `make` cannot use it: its own message if it is an
            InputError, else `problem` with the reason.
    """
    content = read_yaml_mapping(path, remedy=remedy)
    try:
        return make(content)
    except InputError as error:
        raise InputError(str(error), path=path) from None
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{problem} ({reason_of(error)})", path=path, remedy=remedy) from error


def split_files(path: PathLike) -> List[str]:
    """A file, or its parts by ESPnet's `split_scps` (`--num_splits_lm` of asr.sh)."""
    if not Path(path).is_dir():
        return [str(path)]
    number = (Path(path) / "num_splits").read_text(encoding="utf-8")
    return [str(Path(path) / f"split.{n}") for n in range(int(number))]


def read_entries(paths: Iterable[PathLike]) -> Iterator[Tuple[str, Entry]]:
    """Yield (key, entry) of Kaldi text files that are read as one."""
    for path in paths:
        yield from entries_of(read_lines(path), path)


def entries_of(lines: Iterable[Tuple[int, str]], path: PathLike) -> Iterator[Tuple[str, Entry]]:
    """Yield (key, entry) of the lines of a Kaldi text file."""
    path = Path(path)
    for number, line in lines:
        fields = line.split(maxsplit=1)
        problem = remedy = ""
        if not fields:
            problem = "an empty line where `key value ...` was expected"
            remedy = "Delete the line."
        elif fields[0].startswith(BYTE_ORDER_MARK):
            problem = "a byte order mark within the file"
            remedy = "Delete it; it comes from joining files that begin with one."
        if problem:
            raise InputError(problem, path=path, line=number, remedy=remedy)
        yield fields[0], (path, number, fields[1].strip() if len(fields) > 1 else "")


def read_table(paths: Iterable[PathLike]) -> Table:
    """{key: entry} of Kaldi text files that are read as one."""
    return table_of(read_entries(paths))


def table_of(entries: Iterable[Tuple[str, Entry]]) -> Table:
    """{key: entry}, each key of one entry."""
    table: Table = {}
    for key, entry in entries:
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


def read_keyed_lines(path: PathLike) -> Dict[str, Tuple[int, str]]:
    """{key: (line number, rest of the line)} of a Kaldi text file, as `read_table` reads it."""
    return {key: (line, value) for key, (_, line, value) in read_table([path]).items()}
