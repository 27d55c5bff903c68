"""Times of the words of a CTC search, and the ctm file that holds them."""

from __future__ import annotations

import contextlib
from typing import Callable, Iterator, List, Optional, Sequence

from espnet_bayeslm.decoding.ctc_frames import WordFrames, word_frames
from espnet_bayeslm.decoding.ctc_search import FoundText
from espnet_bayeslm.decoding.token_words import TokenWords
from espnet_bayeslm.utils.files import PathLike, atomic_write

Write = Callable[[str, Sequence[WordFrames]], None]
"""Adds the words of an utterance."""


def text_frames(text: FoundText, numbers: Sequence[int], rules: TokenWords) -> List[WordFrames]:
    """Words with their first frame and the frame after their last one.

    Args:
        text: A hypothesis that was traced.
        numbers: Number of each frame that was searched, T of them.
        rules: How the tokens make words.
    """
    return [
        (word, (numbers[start], numbers[end - 1] + 1))
        for word, (start, end) in word_frames(text.words, text.trace, rules.opens, rules.texts)
    ]


@contextlib.contextmanager
def ctm_writer(path: Optional[PathLike], frame_shift: float) -> Iterator[Write]:
    """Function that adds utterances to a ctm file, which appears whole; None: there is no file.

    Args:
        path: The file.
        frame_shift: Seconds of a frame.
    """
    if path is None:
        yield lambda utt, words: None
        return
    with atomic_write(path) as f:

        def add(utt: str, words: Sequence[WordFrames]) -> None:
            for word, (start, end) in words:
                begin, duration = start * frame_shift, (end - start) * frame_shift
                f.write(f"{utt} 1 {begin:.3f} {duration:.3f} {word}\n")

        yield add
