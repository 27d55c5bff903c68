"""ARPA files as text: read in any spelling, and written as KenLM wants them."""

from __future__ import annotations

import bz2
import gzip
import lzma
import re
import zlib
from typing import IO, Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Set, Tuple

from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike

_OPENERS: Dict[bytes, Callable[..., Any]] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ": lzma.open,
}
_DAMAGED = (OSError, EOFError, zlib.error, lzma.LZMAError)
_MAX_HEADER = 1000
_COUNT = re.compile(rb"\s*ngram\s+(\d+)\s*=\s*(\d+)\s*$")
_SECTION = re.compile(rb"\\(\d+)-grams:$")
# KenLM reads no unigram model: an empty section of bigrams gives the same probabilities
_MIN_ORDER = 2


class ArpaLine(NamedTuple):
    r"""One n-gram of an ARPA file.

    Attributes:
        number: Line of the file, counted from 1.
        order: Number of words of the n-gram.
        fields: log10 probability, words and, where the line has one, log10 back-off weight.
    """

    number: int
    order: int
    fields: List[bytes]


def _open(path: PathLike) -> IO[bytes]:
    """Open a file for reading, unpacked."""
    with open(path, "rb") as f:
        magic = f.read(8)
    openers = (opener for begin, opener in _OPENERS.items() if magic.startswith(begin))
    return next(openers, open)(path, "rb")


def not_an_ngram(reason: str, path: PathLike, line: Optional[int] = None) -> InputError:
    """Error of a file that is no n-gram."""
    return InputError(
        f"not an n-gram that KenLM can read ({reason})",
        path=path,
        line=line,
        remedy="Give an ARPA file or a KenLM binary.",
    )


def arpa_counts(path: PathLike) -> List[int]:
    """Numbers of n-grams by order that an ARPA file's header states; empty if it is no ARPA file.

    Only the header is read.
    """
    counts: Dict[int, int] = {}
    try:
        with _open(path) as lines:
            for _, line in zip(range(_MAX_HEADER), lines, strict=False):
                if _SECTION.match(line.strip()):
                    return [counts[k] for k in sorted(counts)]
                if count := _COUNT.match(line):
                    counts[int(count[1])] = int(count[2])
    except _DAMAGED:
        pass
    return []


def arpa_order(path: PathLike) -> int:
    """Highest order that an ARPA file's header states; 0 if it is no ARPA file."""
    return len(arpa_counts(path))


def arpa_ngrams(path: PathLike) -> Iterator[ArpaLine]:
    r"""Yield the n-grams of an ARPA file by order.

    Tabs and blanks count alike, and text before `\data\`, a byte order mark, other line ends and
    missing empty lines change nothing.

    Args:
        path: The file, perhaps compressed.
    """
    order = 0
    try:
        with _open(path) as lines:
            for number, line in enumerate(lines, 1):
                fields = line.split()
                if not fields:
                    continue
                section = _SECTION.match(fields[0])
                if order and fields[0] == b"\\end\\":
                    return
                if section and int(section[1]) == order + 1:
                    order += 1
                elif section or (order and not order < len(fields) <= order + 2):
                    found = line.decode("utf-8", "replace").strip()[:80]
                    expected = f"a log10 probability and {order} words, or \\{order + 1}-grams:"
                    raise not_an_ngram(f"expected {expected}, found {found!r}", path, number)
                elif order:
                    yield ArpaLine(number, order, fields)
    except _DAMAGED as error:
        raise not_an_ngram(str(error), path) from error
    raise not_an_ngram(r"the file ends before \end\ ", path)


def log10_of(field: bytes, path: PathLike, number: int) -> float:
    """Number of an ARPA line."""
    try:
        return float(field)
    except ValueError:
        word = field.decode("utf-8", "replace")
        raise not_an_ngram(f"expected a number, found {word!r}", path, number) from None


def write_normalized(path: PathLike, output: IO[bytes]) -> None:
    r"""Write an ARPA file as KenLM wants it: tabs, empty lines and at least two orders.

    Args:
        path: The file, perhaps compressed.
        output: Open binary stream.
    """
    stated = arpa_counts(path)
    found = [0] * len(stated)
    words: Set[bytes] = set()
    missing = [0] * (_MIN_ORDER - len(stated))
    output.write(b"\\data\\\n")
    output.writelines(b"ngram %d=%d\n" % item for item in enumerate(stated + missing, 1))
    order = 0
    for line in arpa_ngrams(path):
        if line.order > len(stated):
            raise not_an_ngram(f"the header states no {line.order}-grams", path, line.number)
        while order < line.order:
            order += 1
            output.write(b"\n\\%d-grams:\n" % order)
        found[order - 1] += 1
        output.write(_normalized(line, path, words, is_last=order == len(stated)))
    for k in range(order + 1, max(len(stated), _MIN_ORDER) + 1):
        output.write(b"\n\\%d-grams:\n" % k)
    output.write(b"\n\\end\\\n")
    for k, (expected, count) in enumerate(zip(stated, found, strict=True), 1):
        if expected != count:
            raise not_an_ngram(f"the header states {expected} {k}-grams, it has {count}", path)
    for mark in (b"<s>", b"</s>"):
        if mark not in words:
            raise not_an_ngram(f"{mark.decode()} is not among its unigrams", path)


def _normalized(line: ArpaLine, path: PathLike, words: Set[bytes], *, is_last: bool) -> bytes:
    """Line of an n-gram as KenLM wants it; a unigram's word joins `words`."""
    prob, *ngram = line.fields[: line.order + 1]
    backoff = line.fields[line.order + 1 :]
    if log10_of(prob, path, line.number) > 0:
        raise not_an_ngram(f"a probability above one: 10^{prob.decode()}", path, line.number)
    if backoff and log10_of(backoff[0], path, line.number) and is_last:
        raise not_an_ngram("a back-off weight in the highest order", path, line.number)
    if line.order == 1:
        if ngram[0] in words:
            raise not_an_ngram(f"{ngram[0].decode('utf-8', 'replace')!r} twice", path, line.number)
        words.add(ngram[0])
    elif unknown := set(ngram) - words - {b"<unk>", b"<UNK>"}:
        word = min(unknown).decode("utf-8", "replace")
        raise not_an_ngram(f"{word!r} is not among its unigrams", path, line.number)
    return b"\t".join((prob, b" ".join(ngram), *backoff)) + b"\n"


def unigram_sum(path: PathLike) -> Tuple[float, bool]:
    """Sum of the unigram probabilities of an ARPA file, and True if `<unk>` is one of them.

    Only the unigrams are read; `<s>`, which is never predicted, is left out.
    """
    total, has_unknown = 0.0, False
    for line in arpa_ngrams(path):
        if line.order > 1:
            break
        word = line.fields[1]
        has_unknown |= word in (b"<unk>", b"<UNK>")
        if word != b"<s>":
            total += 10.0 ** log10_of(line.fields[0], path, line.number)
    return total, has_unknown
