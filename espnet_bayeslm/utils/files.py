"""Files that are written whole or not at all, and read line by line, compressed ones too.

Compressed files are read by their first bytes, and written by their names.
"""

from __future__ import annotations

import bz2
import codecs
import contextlib
import gzip
import hashlib
import io
import json
import lzma
import os
import re
import secrets
import shlex
import shutil
import tempfile
import zlib
from pathlib import Path
from typing import (
    IO,
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
    Union,
    cast,
)

import yaml

from espnet_bayeslm.utils.errors import InputError, reason_of

PathLike = Union[str, os.PathLike[str]]

SUFFIXES = (".gz", ".bz2", ".xz", ".zst", ".Z")
"""Endings of the names of compressed files; the last two are found, and refused in one line."""
PACKED = rf"({'|'.join(map(re.escape, SUFFIXES))})?"
"""Pattern of such an ending, or none."""
DAMAGED = (OSError, EOFError, zlib.error, lzma.LZMAError)
"""Errors of files that cannot be unpacked, or cannot be read at all."""

_Open = Callable[..., Any]
# Suffix -> first bytes, more of them that no text has, what opens such a file, and a command
_READ: Dict[str, Tuple[bytes, bytes, _Open, str]] = {
    ".gz": (b"\x1f\x8b", b"", gzip.open, "gzip"),
    ".bz2": (b"BZh", rb"[1-9](1AY&SY|\x17rE8P\x90)", bz2.open, "bzip2"),
    ".xz": (b"\xfd7zXZ\x00", b"", lzma.open, "xz"),
}
# First bytes -> name, and the command that unpacks such a file of any name
_REFUSED = {
    b"\x28\xb5\x2f\xfd": ("zstd", "zstd -dc <"),
    b"\x1f\x9d": ("compress", "gzip -dc <"),
    b"PK\x03\x04": ("zip", "unzip -p"),
    b"7z\xbc\xaf": ("7-zip", "7z x -so"),
    b"\x04\x22\x4d\x18": ("lz4", "lz4 -dc <"),
    b"\x5d\x00\x00": ("lzma", "xz -dc <"),
}
_LONGEST = 16
# Marks of a sentence, as n-grams have them
START, END = "<s>", "</s>"
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
    if options.get("allow_nan", True):
        # what Python writes of numbers that JSON lacks is read as null
        content = json.loads(json.dumps(content), parse_constant=lambda name: None)
    write_text(path, json.dumps(content, **{"indent": 1, **options}) + "\n")


def write_yaml(path: PathLike, content: Mapping[str, Any]) -> None:
    """Write a yaml file whole or not at all, in the order of the keys."""
    write_text(path, yaml.safe_dump(content, sort_keys=False, allow_unicode=True))


def unpacked_name(name: str) -> str:
    """Name of a file without the ending of a compressed file."""
    return re.sub(rf"{PACKED}\Z", "", name)


@contextlib.contextmanager
def open_unpacked(path: PathLike) -> Iterator[IO[bytes]]:
    """Open a file for reading; gzip, bzip2 and xz are unpacked, whatever the file's name is.

    Raises:
        InputError: The file is compressed in another way.
        OSError, EOFError, zlib.error, lzma.LZMAError: One of `DAMAGED`, while it is read, too.
    """
    with open(path, "rb") as raw:
        begin = raw.peek(_LONGEST)[:_LONGEST]
        suffix = _packed_by(begin, path)
        if suffix is None:
            yield raw
            return
        if not begin:  # they are taken for an empty text
            raise EOFError("a compressed file without a byte: cut short?")
        with _READ[suffix][2](raw, "rb") as f:
            # GzipFile's own iteration over lines is several times slower
            yield cast(IO[bytes], io.BufferedReader(f))


def _packed_by(begin: bytes, path: PathLike) -> Optional[str]:
    """Suffix that says how a file is compressed, by its first bytes; None for a plain file.

    Files of such a name that are cut short within these bytes are compressed files too.
    """
    for magic, (name, command) in _REFUSED.items():
        if begin.startswith(magic):
            raise InputError(
                f"compressed by {name}, which is not read",
                path=path,
                remedy=f"Decompress it first: `{command} {_quoted(path)} > NEW_FILE`.",
            )
    for suffix, (first, more, *_) in _READ.items():
        if re.match(re.escape(first) + more, begin, re.DOTALL):
            return suffix
    suffix = Path(path).suffix
    first = _READ[suffix][0] if suffix in _READ else b""
    return suffix if suffix in _READ and first.startswith(begin[: len(first)]) else None


def _suffix_of(path: PathLike) -> Optional[str]:
    """Suffix that says how a file is compressed; None for a plain file, and for a pipe."""
    if not Path(path).is_file():
        return None
    with open(path, "rb") as f:
        return _packed_by(f.read(_LONGEST), path)


def converted_by(command: str, path: PathLike) -> str:
    """Advice for a text file, perhaps a compressed one, that a command converts."""
    suffix = _suffix_of(path)
    line = f"{command} < {_quoted(path)}"
    if suffix is not None:
        line = f"{_READ[suffix][3]} -dc < {_quoted(path)} | {command}"
    return f"Convert it: `{line} > NEW_FILE`."


def _quoted(path: PathLike) -> str:
    """Path as a shell takes it."""
    return shlex.quote(os.fspath(path))


@contextlib.contextmanager
def unpacked_file(path: PathLike) -> Iterator[PathLike]:
    """Path of a file without compression: `path`, or a temporary file within the block."""
    if _suffix_of(path) is None:
        yield path
        return
    with tempfile.NamedTemporaryFile() as unpacked:
        try:
            with open_unpacked(path) as f:
                shutil.copyfileobj(f, unpacked)
        except DAMAGED as error:
            raise InputError(f"cannot be read ({error})", path=path) from error
        unpacked.flush()
        yield unpacked.name


@contextlib.contextmanager
def compressed_to(f: IO[bytes], path: PathLike) -> Iterator[IO[bytes]]:
    """Binary stream into the open file `f`, compressed as the name `path` ends."""
    suffix = Path(path).suffix
    if suffix == ".gz":
        # no name and no time: the same content gives the same bytes
        opened: Any = gzip.GzipFile(filename="", fileobj=f, mode="wb", compresslevel=6, mtime=0)
    elif suffix in _READ:
        opened = _READ[suffix][2](f, "wb")
    elif suffix in SUFFIXES:
        raise InputError(f"{suffix} is not written", path=path, remedy="Give a name in .gz.")
    else:
        yield f
        return
    with opened, io.BufferedWriter(opened) as packed:
        yield packed


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
    """Object that `make` builds from the mapping in a yaml file."""
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


def without_marks(
    words: Sequence[str], *, path: Optional[PathLike] = None, line: Optional[int] = None
) -> Tuple[str, ...]:
    """Words without the `<s>` and `</s>` around them: every reader of text and lists calls it."""
    kept = tuple(words)
    if len(kept) > 1 and (kept[0], kept[-1]) == (START, END):
        kept = kept[1:-1]
    for mark in (START, END):
        if mark in kept:
            raise InputError(
                f"{mark} stands in the text, where only ordinary words are expected",
                path=path,
                line=line,
                remedy=f"Remove it, or put {START} and {END} around each sentence.",
            )
    return kept


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
