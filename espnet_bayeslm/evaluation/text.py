"""Sentences to score: plain text, or text with keys."""

from __future__ import annotations

from typing import Dict, Tuple

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
