"""The training text of an n-gram as one stream of word ids."""

from __future__ import annotations

import logging
from array import array
from typing import Dict, List, NamedTuple

import numpy as np

from espnet_bayeslm.evaluation.transcripts import END, START, without_marks
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike, read_lines

UNK, BOS, EOS = 0, 1, 2
UNKNOWN = "<unk>"
SPECIAL_WORDS = (UNKNOWN, START, END)

# lmplz cuts at these and at nothing else: a no-break space is a part of a word
_BLANKS = str.maketrans("\0\t\r", "   ")


class Corpus(NamedTuple):
    """A text whose sentences stand one after another, each as `<s> words </s>`.

    Attributes:
        words: The word of each id: `<unk>`, `<s>`, `</s>`, then by first appearance.
        ids: (T,) int64, the stream.
        positions: (T,) int64, position in the sentence, 0 for `<s>`.
        num_sentences: Lines of the text, blank ones too.
    """

    words: List[str]
    ids: np.ndarray
    positions: np.ndarray
    num_sentences: int

    @property
    def num_tokens(self) -> int:
        """Words of the text, without `<s>` and `</s>`."""
        return len(self.ids) - 2 * self.num_sentences


def split_words(line: str, path: PathLike, number: int) -> List[str]:
    """Words of one line."""
    fields = line.translate(_BLANKS).split(" ")
    words = without_marks([word for word in fields if word], path=path, line=number)
    if UNKNOWN in words:
        raise InputError(
            f"{UNKNOWN} stands in the text, where only ordinary words are expected",
            path=path,
            line=number,
            remedy="Remove it: the estimation adds it.",
        )
    return list(words)


def read_corpus(path: PathLike) -> Corpus:
    """Text of a file with one sentence per line; a file whose name ends in .gz is unpacked.

    A blank line is an empty sentence, `<s> </s>`, as it is for lmplz.
    """
    index: Dict[str, int] = {word: id_ for id_, word in enumerate(SPECIAL_WORDS)}
    ids = array("q")  # 8 bytes each, where a list would take more
    lengths: List[int] = []
    for number, line in read_lines(path):
        words = split_words(line, path, number)
        ids.append(BOS)
        ids.extend([index.setdefault(word, len(index)) for word in words])
        ids.append(EOS)
        lengths.append(len(words) + 2)
    if len(index) == len(SPECIAL_WORDS):
        raise InputError("no word in the text", path=path, remedy="Give one sentence per line.")
    if uncommon := [word for word in index if word.split() != [word]]:
        logging.warning(
            "%s: %d words hold blanks that are none for lmplz, %r first; all other tools cut there:"
            " put ordinary blanks in their place",
            path,
            len(uncommon),
            uncommon[0],
        )
    starts = np.cumsum([0, *lengths[:-1]])
    positions = np.arange(len(ids)) - np.repeat(starts, lengths)
    return Corpus(list(index), np.array(ids, dtype=np.int64), positions, len(lengths))
