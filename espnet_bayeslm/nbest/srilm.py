"""SRILM's N-best lists: a file per utterance, lines `ascore lscore nwords w1 w2 ...`, log10.

See nbest-format(5). The utterance id is the file's name without .gz and .score (or .nbest). As
SRILM's tools do, where a folder has files *.score (*.score.gz), only these are read; and `<s>`
and `</s>` at the ends of a hypothesis and pauses (-pau-) are no words, so that nwords may count
them or not. The older formats with a header `NBestList1.0` or `NBestList2.0` are not read.
"""

from __future__ import annotations

import contextlib
import decimal
import logging
import math
import os
import re
from decimal import Decimal
from pathlib import Path
from typing import Iterator, List, Sequence, Tuple

from espnet_bayeslm.evaluation.transcripts import END, START
from espnet_bayeslm.nbest.fields import (
    AddList,
    UniqueUtterances,
    Writable,
    check_file_name,
    natural_order,
    parse_number,
    utterance_of,
    words_line,
)
from espnet_bayeslm.nbest.types import Hypothesis, NBest
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike, read_lines

PATTERN = r".*\.score(\.gz|\.Z)?"
"""Names of score files."""

PAUSE = "-pau-"
SUFFIXES = (".score", ".nbest")
LN10 = Decimal("2.302585092994045684017991454684364207601101488628772976")
# More digits than a float64 has, so that a score that is written comes back exactly
_PRECISE = decimal.Context(prec=40)
_COUNT = re.compile(r"[0-9]{1,9}", re.ASCII)


def read_srilm(path: PathLike) -> Iterator[NBest]:
    """Yield the N-best lists of a folder, by the natural order of their files' names.

    Args:
        path: The folder, or one list.

    Raises:
        InputError: A line, a name or a score that cannot be used (file, line, remedy).
    """
    utterances = UniqueUtterances(path, remedy="Delete one of the two.")
    for file in _list_files(Path(path)):
        if file.name.removesuffix(".gz").endswith(".Z"):
            raise InputError("files of `compress` are not read", path=file, remedy="Use gzip.")
        utt = utterance_of(file, SUFFIXES)
        utterances.add(utt, file, 1)
        hypotheses = tuple(_hypothesis(line, file, number) for number, line in read_lines(file))
        if not hypotheses:
            raise InputError("no hypotheses", path=file)
        yield NBest(utt, hypotheses)


def _list_files(path: Path) -> List[Path]:
    """Files of lists."""
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise InputError("not a folder of SRILM N-best lists", path=path)
    names = sorted(os.listdir(path), key=natural_order)
    scores = [name for name in names if re.fullmatch(PATTERN, name, re.DOTALL)]
    if scores and len(scores) < len(names):
        logging.info("%s: *.score are read, %d others are not", path, len(names) - len(scores))
    if not names:
        raise InputError("no N-best lists", path=path)
    return [path / name for name in scores or names]


def _hypothesis(text: str, path: Path, line: int) -> Hypothesis:
    """Hypothesis of one line."""
    fields = text.split()
    if len(fields) < 3 or not _COUNT.fullmatch(fields[2]):
        old = fields[:1] and fields[0].startswith(("NBestList", "("))
        raise InputError(
            f"{text[:80]!r} is {'a Decipher list, which is not supported;' if old else 'not'}"
            " `ascore lscore nwords word word ...`",
            path=path,
            line=line,
            remedy="SRILM's `nbest-lattice -write-nbest` writes such lines."
            if old
            else "Each hypothesis is one such line.",
        )
    words, num_words = fields[3:], int(fields[2])
    num_marks = sum(words.count(mark) for mark in (START, END, PAUSE))
    if not len(words) - num_marks <= num_words <= len(words):
        raise InputError(
            f"nwords is {num_words}, and there are {len(words)} words",
            path=path,
            line=line,
            remedy="Was the line cut? Multiwords must have been split.",
        )
    am_score, lm_score = (_from_log10(field, path, line) for field in fields[:2])
    return Hypothesis(spoken(words), am_score, lm_score)


def spoken(words: Sequence[str]) -> Tuple[str, ...]:
    """Words without pauses and the marks of the sentence's ends."""
    kept = [word for word in words if word != PAUSE]
    if kept[:1] == [START]:
        kept = kept[1:]
    if kept[-1:] == [END]:
        kept = kept[:-1]
    return tuple(kept)


def _from_log10(text: str, path: Path, line: int) -> float:
    """Natural log of a field's log10."""
    remedy = "Lines are `ascore lscore nwords word word ...`, scores log10."
    parse_number(text, path=path, line=line, remedy=remedy)
    natural = to_natural(text)
    if not math.isfinite(natural):
        raise InputError(
            f"{text[:80]!r} is too large a number", path=path, line=line, remedy=remedy
        )
    return natural


def to_natural(log10: str) -> float:
    """Natural log of a finite log10, in nats, rounded once."""
    try:
        return float(_PRECISE.multiply(Decimal(log10), LN10))
    except decimal.DecimalException:  # an exponent beyond decimal's own limits
        return float(log10) * float(LN10)


def to_log10(natural: float) -> str:
    """Log10 in as few digits as `to_natural` takes to give `natural` back."""
    log10 = _PRECISE.divide(Decimal(natural), LN10)
    texts = (f"{float(log10):.12g}", repr(float(log10)), f"{log10:.20g}")
    return next((text for text in texts if to_natural(text) == natural), str(log10))


@contextlib.contextmanager
def srilm_writer(folder: Path) -> Iterator[AddList]:
    """Write UTT.score, list by list; reading them gives the same lists, by natural order.

    Raises:
        ValueError: A list without an LM score or with a graph score, an id that cannot be a
            file's name, or other score files stand there. Nothing is written then.
    """
    known = Writable("srilm", needs=("am_score", "lm_score"))
    with known.staged(folder, PATTERN) as temporary:

        def add(nbest: NBest) -> None:
            known.check(nbest)
            name = f"{nbest.utt}.score"
            check_file_name(nbest.utt, name)
            lines = [_line(hyp) for hyp in nbest.hypotheses]
            (temporary / name).write_text("".join(lines), encoding="utf-8")

        yield add


def _line(hyp: Hypothesis) -> str:
    """Line of one hypothesis."""
    words = words_line(hyp.words)
    if spoken(hyp.words) != hyp.words:
        raise InputError(
            f"{words[:80]!r} holds {PAUSE}, or ends in {START} or {END}",
            remedy="SRILM's lists do not count them as words: take them out.",
        )
    assert hyp.am_score is not None and hyp.lm_score is not None  # `Writable` has seen to it
    scores = f"{to_log10(hyp.am_score)} {to_log10(hyp.lm_score)}"
    return f"{scores} {len(hyp.words)} {words}".rstrip() + "\n"
