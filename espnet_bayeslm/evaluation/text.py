"""Sentences to score: plain text, or text with keys."""

from __future__ import annotations

from typing import Collection, Dict, Iterable, Optional, Sequence, Tuple

from espnet_bayeslm.evaluation.transcripts import read_transcripts, without_marks
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike, read_lines


def read_sentences(path: PathLike, *, keyed: bool) -> Dict[str, Tuple[str, ...]]:
    """{key: words}; the keys of plain text are its line numbers.

    Args:
        path: A Kaldi `text` or trn (keyed), or one sentence per line; an empty line is an
            empty sentence. `<s>` and `</s>` around a sentence are left out.
        keyed: True if the first word of each line is a key.
    """
    if keyed:
        return read_transcripts(path)
    sentences = {
        str(number): without_marks(line.split(), path=path, line=number)
        for number, line in read_lines(path)
    }
    if not sentences:
        raise InputError("no sentences", path=path, remedy="Give one sentence per line.")
    return sentences


def check_no_ids(
    sentences: Iterable[Sequence[str]],
    known: Collection[str],
    *,
    path: Optional[PathLike] = None,
    remedy: str,
) -> None:
    """Check that lines do not begin with utterance ids."""
    lines = [words for words in sentences if words]
    first = [words[0] for words in lines]
    is_known = any(word in known for word in first)
    # not so in a text without blanks, whose lines are long words
    others_are = any(word in known for words in lines for word in words[1:])
    if len(first) >= 10 and len(set(first)) == len(first) and others_are and not is_known:
        raise InputError(
            f"the first words of all lines are unknown and different ({first[0]!r}, ...)",
            path=path,
            remedy=remedy,
        )
