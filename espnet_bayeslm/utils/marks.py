"""Marks of a sentence's start and end in text, as n-grams have them."""

from __future__ import annotations

from typing import Optional, Sequence, Tuple

from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike

START, END = "<s>", "</s>"


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
