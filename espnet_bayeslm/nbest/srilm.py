"""SRILM's N-best lists: a file per utterance, lines `ascore lscore nwords w1 w2 ...`, log10.

nbest-format(5) describes them. The utterance id is the file's name without .gz or such and .score
(or .nbest). As SRILM's tools do, where a folder has files *.score(.gz), only these are read. `<s>`
and `</s>` at the ends of a hypothesis and pauses (-pau-) are no words, so that nwords may count
them or not. The older formats with a header `NBestList1.0` or `NBestList2.0` are not read.
"""

from __future__ import annotations

import functools
import math
import re
from pathlib import Path
from typing import Iterator, List

from espnet_bayeslm.nbest.fields import (
    UniqueUtterances,
    files_matching,
    parse_number,
    utterance_of,
)
from espnet_bayeslm.nbest.types import Hypothesis, NBest
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import END, PACKED, START, PathLike, read_lines
from espnet_bayeslm.utils.log import LOG

PATTERN = rf".*\.score{PACKED}"
"""Names of score files."""

PAUSE = "-pau-"
SUFFIXES = (".score", ".nbest")
REMEDY = "Each hypothesis is a line `ascore lscore nwords word word ...`, scores log10."
_COUNT = re.compile(r"[0-9]{1,9}", re.ASCII)


def read_srilm(path: PathLike) -> Iterator[NBest]:
    """Yield the N-best lists of a folder, by the natural order of their files' names.

    Raises:
        InputError: A line, a key or a score that cannot be used (file, line, remedy).
    """
    utterances = UniqueUtterances(path, remedy="Delete one of the two.")
    for file in _list_files(Path(path)):
        utt = utterance_of(file, SUFFIXES)
        utterances.add(utt, file)
        hypotheses = tuple(_hypothesis(line, file, number) for number, line in read_lines(file))
        if not hypotheses:
            raise InputError("no hypotheses", path=file)
        yield NBest(utt, hypotheses)


def _list_files(path: Path) -> List[Path]:
    """Score files, else all files."""
    files = files_matching(path, ".*", problem="no N-best lists")
    scores = [file for file in files if re.fullmatch(PATTERN, file.name, re.DOTALL)]
    if scores and len(scores) < len(files):
        LOG.info("%s: *.score are read, %d others are not", path, len(files) - len(scores))
    return scores or files


def _hypothesis(text: str, path: Path, line: int) -> Hypothesis:
    error = functools.partial(InputError, path=path, line=line, remedy=REMEDY)
    fields = text.split()
    if fields and fields[0].startswith(("NBestList", "(")):
        remedy = "SRILM's `nbest-lattice -write-nbest` writes lists that are read."
        raise error(f"{text[:80]!r} is a Decipher list, which is not supported", remedy=remedy)
    if len(fields) < 3 or not _COUNT.fullmatch(fields[2]):
        raise error(f"{text[:80]!r} is not `ascore lscore nwords word word ...`")
    words, num_words = fields[3:], int(fields[2])
    num_marks = sum(words.count(mark) for mark in (START, END, PAUSE))
    if not len(words) - num_marks <= num_words <= len(words):
        remedy = "Was the line cut? Multiwords must have been split."
        problem = f"nwords is {num_words}, and there are {len(words)} words"
        raise error(problem, remedy=remedy)
    scores = []
    for field in fields[:2]:
        log10 = parse_number(field, path=path, line=line, remedy=REMEDY)
        scores.append(log10 * math.log(10))
        if not math.isfinite(scores[-1]):
            raise error(f"{field[:80]!r} is too large a number")
    # pauses, and the marks of the sentence's ends, are no words
    words = [word for word in words if word != PAUSE]
    words = words[words[:1] == [START] :]
    words = words[: len(words) - (words[-1:] == [END])]
    am_score, lm_score = scores
    return Hypothesis(tuple(words), am_score, lm_score)
