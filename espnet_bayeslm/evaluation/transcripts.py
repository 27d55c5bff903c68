"""Transcripts: Kaldi's `text` and NIST's trn, told apart by their content."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Dict, Iterable, Sequence, Tuple

from espnet_bayeslm.evaluation.markup import Words, parse_markup
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import (
    PathLike,
    entries_of,
    read_lines,
    table_of,
    unpacked_name,
    without_marks,
)

Line = Tuple[int, str]

COMMENT = ";;"
# An id of a trn has a digit; a remark at the end of a line, `(laughs)` or `(uh-huh)`, has none
_ID = re.compile(r"\(\S*\d\S*\)$")
_NUMBER = re.compile(r"\d+(\.\d+)?")
# Format -> where its two times stand, and its fields
_TIMED = {
    "ctm": (2, "recording channel begin duration word"),
    "stm": (3, "recording channel speaker begin end <label> words"),
}


def read_transcripts(path: PathLike) -> Dict[str, Words]:
    """{utterance id: words} of a Kaldi `text` or a trn, either perhaps compressed.

    A trn has a name that ends in `trn`, or lines that all end in `(utterance-1)`. Alternations
    `{ a / b }`, null words `@`, deletable words `(uh)`, fragments and tags are read as sclite reads
    them (`evaluation.markup`). Comments `;;` are left out.
    """
    # read once: it may be a pipe
    spoken = [line for line in read_lines(path) if not line[1].startswith(COMMENT)]
    if unpacked_name(Path(path).name).endswith("trn"):
        transcripts = _of_trn(spoken, path)
    else:
        _check_untimed(spoken, path)
        # all lines end in an id in parentheses, each another
        ids = [found[0] for _, line in spoken if (found := _ID.search(line.rstrip()))]
        if ids and len(set(ids)) == len(spoken):
            transcripts = _of_trn(spoken, path)
        else:
            transcripts = {
                utt: without_marks(words.split(), path=path, line=line)
                for utt, (_, line, words) in table_of(entries_of(spoken, path)).items()
            }
    if not transcripts:
        raise InputError("no utterances", path=path, remedy="Write one line for each.")
    return transcripts


def has_words(refs: Iterable[Sequence[str]]) -> bool:
    """True if some reference has a letter or digit, and is no placeholder such as `-`."""
    return any(sign.isalnum() for ref in refs for word in ref for sign in word)


def _check_untimed(lines: Sequence[Line], path: PathLike) -> None:
    """Raise an InputError where all lines have the times of an stm or a ctm."""
    for name, (place, fields) in _TIMED.items():
        times = [line.split()[place : place + 2] for _, line in lines]
        is_timed = all(len(row) == 2 and all(map(_NUMBER.fullmatch, row)) for row in times)
        if lines and is_timed and all("." in "".join(row) for row in times):
            raise InputError(
                f"a NIST {name} (`{fields}`), where a Kaldi `text` or a trn was expected",
                path=path,
                line=lines[0][0],
                remedy="Write one line `utterance-id word word ...` for each segment of the other"
                " files, with the same ids.",
            )


def _of_trn(lines: Sequence[Line], path: PathLike) -> Dict[str, Words]:
    """Words of lines `word word (id)`."""
    transcripts: Dict[str, Words] = {}
    for number, line in lines:
        error = functools.partial(InputError, path=path, line=number)
        words = line.split()
        utt = words.pop()[1:-1] if words and words[-1][0] + words[-1][-1] == "()" else ""
        if not utt:
            problem = f"got {line[:80]!r} where `word word (utterance-id)` was expected"
            raise error(problem, remedy="A Kaldi `text` must not have a name that ends in trn.")
        if utt in transcripts:
            remedy = "Utterance ids must be unique."
            raise error(f"the utterance {utt!r} comes twice", remedy=remedy)
        text = " ".join(without_marks(words, path=path, line=number))
        try:
            transcripts[utt] = parse_markup(text)
        except ValueError as fault:
            expected = "where `{ word / other words / @ }` was expected"
            remedy = "Add the missing brace, or take it out."
            raise error(f"{fault} in {text[:80]!r}, {expected}", remedy=remedy) from fault
    return transcripts
