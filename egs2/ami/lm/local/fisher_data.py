"""Utterances of the Fisher transcripts (LDC2004T19, LDC2005T19)."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Container, Dict, List, Optional, Tuple

from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import read_lines

Sentences = List[Tuple[str, List[str]]]

TRANSCRIPTS = "data/trans/*/*.txt"
REMEDY = (
    "Give the folder that holds fe_03_p1_tran and fe_03_p2_tran (LDC2004T19, LDC2005T19), or one of"
    " the two; FISHER may also be left empty."
)
LINE = re.compile(r"[0-9.]+\s+[0-9.]+\s+([AB])\s*:(.*)", re.ASCII)
# [laughter], [[skip]], <german (( ja wohl )) >: noises, and speech in other languages
MARK = re.compile(r"\[[^\[\]]*\]|<[^<>]*>")
WORD = re.compile(r"[a-z0-9']+(?:-[a-z0-9']+)*")


def find_transcripts(path: Path) -> Dict[str, Path]:
    """Return {conversation: its file}: of the folder itself, or of those in it."""
    if not path.is_dir():
        raise InputError("no such folder", path=path, remedy=REMEDY)
    found: Dict[str, Path] = {}
    for depth in ("", "*/", "*/*/"):
        for file in sorted(path.glob(depth + TRANSCRIPTS)):
            other = found.setdefault(file.stem, file)
            if other is not file and not other.samefile(file):
                raise InputError(f"{other} is of the same conversation", path=file)
    if not found:
        raise InputError(f"no {TRANSCRIPTS} there or in its folders", path=path, remedy=REMEDY)
    return dict(sorted(found.items()))


def normalise(text: str, known: Container[str]) -> List[str]:
    """Return the words of an utterance: lower case, no marks of noises, no punctuation.

    Unclear words, in (( )), are kept; abbreviations (t._v.) become single letters, fragments
    (wor-) lose their hyphen.

    Args:
        text: What the transcript has after `A:`.
        known: Words of the meetings. One with a hyphen stays whole if it is among them.
    """
    plain = MARK.sub(" ", MARK.sub(" ", text.lower()))  # twice: [[skip]]
    words: List[str] = []
    for word in WORD.findall(plain):
        words += [word] if word in known else word.split("-")
    return [word for word in words if word.strip("'")]


def read_conversation(name: str, path: Path, known: Container[str]) -> Tuple[Sentences, List[int]]:
    """Return the utterances of one conversation, and the lines that are none.

    The ids are fisher-CONVERSATION-NUMBER-CHANNEL, numbers from 0 in the order of the lines.
    """
    utterances: Sentences = []
    bad = []
    for number, line in read_lines(path):
        match = LINE.fullmatch(line.strip())
        if match:
            words = normalise(match[2], known)
            if words:
                utterances.append((f"fisher-{name}-{len(utterances):04d}-{match[1]}", words))
        elif line.strip() and not line.startswith("#"):
            bad.append(number)
    return utterances, bad


def read_fisher(path: Path, known: Container[str]) -> Sentences:
    """Return the utterances of all conversations; `known`: see `normalise`."""
    sentences: Sentences = []
    num_bad, first_bad = 0, ""
    first_file: Optional[Path] = None
    for name, file in find_transcripts(path).items():
        first_file = first_file or file
        utterances, bad = read_conversation(name, file, known)
        sentences += utterances
        num_bad += len(bad)
        first_bad = first_bad or (f"{file}:{bad[0]}" if bad else "")
    if num_bad:
        logging.warning(f"{num_bad} lines not of the form `START END A: words`: {first_bad}, ...")
    if not sentences:
        raise InputError("no line `START END A: words`", path=first_file, remedy=REMEDY)
    return sentences
