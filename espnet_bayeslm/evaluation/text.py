"""Sentences to score: plain text, or text with keys."""

from __future__ import annotations

from typing import Collection, Dict, Iterable, Optional, Sequence, Tuple

from espnet_bayeslm.evaluation.wer import read_transcripts
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike, read_lines


def read_sentences(path: PathLike, *, keyed: bool) -> Dict[str, Tuple[str, ...]]:
    """{key: words}; the keys of plain text are its line numbers.

    Args:
        path: A Kaldi `text` or trn (keyed), or one sentence per line; an empty line is an
            empty sentence.
        keyed: Whether the first word of each line is a key.

    Raises:
        InputError: The file holds nothing, or its keys cannot be used.
    """
    if keyed:
        return read_transcripts(path)
    sentences = {str(number): tuple(line.split()) for number, line in read_lines(path)}
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
    """Check that lines do not begin with what looks like utterance ids.

    Args:
        sentences: Their words.
        known: Words that somebody knows.
        path: The file, for the message.
        remedy: For the message.

    Raises:
        InputError: The first words of ten lines or more are all unknown, and all different.
    """
    first = [words[0] for words in sentences if words]
    is_known = any(word in known for word in first)
    if len(first) >= 10 and len(set(first)) == len(first) and not is_known:
        raise InputError(
            f"the first words of all lines are unknown and different ({first[0]!r}, ...)",
            path=path,
            remedy=remedy,
        )
