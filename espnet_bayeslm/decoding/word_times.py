"""Times of the words of a CTC search, and the ctm file that holds them."""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

from espnet_bayeslm.decoding.ctc_frames import Trace
from espnet_bayeslm.decoding.ctc_search import FoundText
from espnet_bayeslm.decoding.token_words import TokenWords
from espnet_bayeslm.utils.files import PathLike, atomic_write

WordFrames = Tuple[str, Tuple[int, int]]
"""A word, its first frame, and the frame after its last one."""
Write = Callable[[str, Sequence[WordFrames], Sequence[float]], None]
"""Adds the words of an utterance, each with its confidence."""


class WordTimes:
    """Frames of the words of an utterance's hypotheses, which share most of their alignments.

    Args:
        numbers: Number of each frame that was searched, T of them.
        rules: How the tokens make words.
    """

    def __init__(self, numbers: Sequence[int], rules: TokenWords):
        self._numbers, self._opens, self._texts = numbers, rules.opens, rules.texts
        # trace after which a word begins -> (the same of the words before, frames of the last one)
        self._known: Dict[int, Any] = {}

    def of(self, text: FoundText) -> List[WordFrames]:
        """Words of a hypothesis with their first frame and the frame after their last one."""
        trace, new = text.trace, []
        while trace is not None and id(trace) not in self._known:
            before, span = self._last_word(trace)
            new.append((id(trace), span))
            trace = before
        chain = self._known.get(id(trace))
        for key, span in reversed(new):
            chain = self._known[key] = chain if span is None else (chain, span)
        spans = []
        while chain is not None:
            chain, span = chain
            spans.append(span)
        return list(zip(text.words, reversed(spans), strict=True))

    def _last_word(self, trace: Trace) -> Tuple[Trace, Optional[Tuple[int, int]]]:
        """Trace of the words before the last one, and its frames; None: it has no letters."""
        end, first = 0, 0
        while trace is not None:
            trace, token, start, after = trace
            if self._texts[token]:
                end, first = end or after, start
            if self._opens[token] and end:
                break
        span = (self._numbers[first], self._numbers[end - 1] + 1)
        return trace, span if end else None


@contextlib.contextmanager
def ctm_writer(path: Optional[PathLike], frame_shift: float) -> Iterator[Write]:
    """Function that adds utterances to a ctm file, which appears whole; None: there is no file.

    Args:
        path: The file.
        frame_shift: Seconds of a frame.
    """
    if path is None:
        yield lambda utt, words, confidences: None
        return
    with atomic_write(path) as f:

        def add(utt: str, words: Sequence[WordFrames], confidences: Sequence[float]) -> None:
            for (word, (start, end)), sure in zip(words, confidences, strict=True):
                begin, duration = start * frame_shift, (end - start) * frame_shift
                f.write(f"{utt} 1 {begin:.3f} {duration:.3f} {word} {sure:.3f}\n")

        yield add
