"""N-gram files: ARPA files of any spelling are read, and rewritten in the one that KenLM reads."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import tempfile
from pathlib import Path
from typing import IO, Dict, Iterator, List, NamedTuple, Optional, Set

import kenlm

from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import (
    DAMAGED,
    SUFFIXES,
    PathLike,
    lone_return,
    open_unpacked,
    sha256,
    unpacked_file,
)
from espnet_bayeslm.utils.log import LOG

NGRAM_SUFFIXES = {*SUFFIXES, ".arpa", ".bin", ".binary", ".klm", ".lm"}
_REFUSED = (OSError, RuntimeError, UnicodeDecodeError)
# Sums of rounded probabilities may exceed 1 by less
_MAX_EXCESS = 1e-3
_MAX_HEADER = 1000
_COUNT = re.compile(rb"\s*ngram\s+(\d+)\s*=\s*(\d+)\s*$")
_SECTION = re.compile(rb"\\(\d+)-grams:$")
_TOO_HIGH = re.compile(r"has order (\d+) but KenLM was compiled to support up to (\d+)")
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


def not_an_ngram(reason: str, path: PathLike, line: Optional[int] = None) -> InputError:
    """Error of a file that is no n-gram."""
    return InputError(
        f"not an n-gram that KenLM can read ({reason})",
        path=path,
        line=line,
        remedy="Give an ARPA file or a KenLM binary.",
    )


def _stated_counts(path: PathLike) -> List[int]:
    """Numbers of n-grams by order in an ARPA file's header; empty if it is no ARPA file."""
    counts: Dict[int, int] = {}
    with contextlib.suppress(*DAMAGED), open_unpacked(path) as lines:
        for number, line in enumerate(itertools.islice(lines, _MAX_HEADER), 1):
            if b"\\data\\\r" in line.rstrip(b"\r\n"):
                raise lone_return(path, number)
            if _SECTION.match(line.strip()):
                return [counts[k] for k in sorted(counts)]
            if count := _COUNT.match(line):
                counts[int(count[1])] = int(count[2])
    return []


def arpa_order(path: PathLike) -> int:
    """Highest order that an ARPA file's header states; 0 if it is no ARPA file."""
    return len(_stated_counts(path))


def arpa_ngrams(path: PathLike) -> Iterator[ArpaLine]:
    r"""Yield the n-grams of an ARPA file by order.

    Tabs and blanks count alike, and text before `\data\`, a byte order mark, other line ends and
    missing empty lines change nothing. The file may be compressed.
    """
    order = 0
    try:
        with open_unpacked(path) as lines:
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
    except DAMAGED as error:
        raise not_an_ngram(str(error), path) from error
    raise not_an_ngram(r"the file ends before \end\ ", path)


def arpa_words(path: PathLike) -> List[str]:
    """Words of an ARPA file's unigrams, without `<s>`, `</s>` and `<unk>`."""
    unigrams = itertools.takewhile(lambda line: line.order == 1, arpa_ngrams(path))
    words = [line.fields[1].decode() for line in unigrams]
    return [word for word in words if not word.startswith("<")]


def log10_of(field: bytes, path: PathLike, number: int) -> float:
    """Number of an ARPA line."""
    try:
        return float(field)
    except ValueError:
        word = field.decode("utf-8", "replace")
        raise not_an_ngram(f"expected a number, found {word!r}", path, number) from None


def write_normalized(path: PathLike, output: IO[bytes]) -> None:
    """Write an ARPA file as KenLM wants it: tabs, empty lines and at least two orders."""
    stated = _stated_counts(path)
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


def load_kenlm(path: PathLike) -> kenlm.Model:
    """Model of an ARPA file or a KenLM binary; a unigram model has the order 2 there.

    An ARPA file that KenLM refuses is rewritten in KenLM's spelling to a temporary file.
    """
    _check_file(path)
    order = arpa_order(path)
    if order:
        _check_unigrams(path)
    if order != 1:
        # KenLM's wheels are built without zlib, and with it a file that is cut short is endless
        with unpacked_file(path) as plain, contextlib.suppress(*_REFUSED):
            return _read(plain)
    if not order:
        raise not_an_ngram("neither an ARPA file nor a KenLM binary of its version", path)
    with tempfile.NamedTemporaryFile(suffix=".arpa") as rewritten:
        write_normalized(path, rewritten)
        rewritten.flush()
        try:
            return _read(rewritten.name)
        except _REFUSED as error:
            too_high = _TOO_HIGH.search(str(error))
            reason = (
                "its order is {}, and {} or less was expected".format(*too_high.groups())
                if too_high
                else "an n-gram in it contradicts the others"
            )
            raise not_an_ngram(reason, path) from error


def _read(path: PathLike) -> kenlm.Model:
    """Model that KenLM reads, while its C++ code prints nothing."""
    config = kenlm.Config()
    config.show_progress = False
    config.arpa_complain = kenlm.ARPALoadComplain.NONE  # on where a binary would load faster
    with open(os.devnull, "wb") as nothing:
        stderr = os.dup(2)
        os.dup2(nothing.fileno(), 2)
        try:
            return kenlm.Model(os.fspath(path), config)
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)


def _check_unigrams(path: PathLike) -> None:
    """Warn where an ARPA file's unigrams sum to more than one, or lack `<unk>`."""
    total, has_unknown = 0.0, False
    for line in itertools.takewhile(lambda line: line.order == 1, arpa_ngrams(path)):
        word = line.fields[1]
        try:
            word.decode("utf-8")
        except UnicodeDecodeError:
            found = word.decode("utf-8", "replace")
            reason = f"its words are no UTF-8 text: {found!r}"
            raise not_an_ngram(reason, path, line.number) from None
        has_unknown |= word in (b"<unk>", b"<UNK>")
        if word != b"<s>":  # which is never predicted
            total += 10.0 ** log10_of(line.fields[0], path, line.number)
    if total > 1 + _MAX_EXCESS:
        LOG.warning(
            f"{path}: its unigram probabilities sum to {total:.4g}, and at most 1 was expected:"
            " perplexities come out too low. Estimate it again, or normalise it."
        )
    if not has_unknown:
        LOG.info("%s: has no <unk>; unknown words get the log10 probability -100", path)


def ngram_fingerprint(path: PathLike) -> str:
    """Digest of an n-gram's file, by which weights find it under any name."""
    _check_file(path)
    return sha256(path)


def _check_file(path: PathLike) -> None:
    """Raise an InputError where there is no such file."""
    if os.path.isdir(path):
        raise InputError(
            "a folder, where an n-gram file was expected",
            path=path,
            remedy="An LM's experiment folder is given by --lm; `bayeslm ngram` makes an n-gram.",
        )
    if not os.path.isfile(path):
        raise InputError("no such n-gram file", path=path, remedy="Make one with `bayeslm ngram`.")


def ngram_name(path: PathLike) -> str:
    """Name of a file without its format: `3gram` for `3gram.arpa.gz`."""
    name = Path(path)
    while name.suffix in NGRAM_SUFFIXES and name.stem:
        name = name.with_suffix("")
    return name.name
