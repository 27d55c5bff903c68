"""Times of the words of a CTC search."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence, Tuple

from espnet_bayeslm.decoding.ctc_frames import Trace
from espnet_bayeslm.decoding.ctc_search import FoundText
from espnet_bayeslm.decoding.token_words import TokenWords

WordFrames = Tuple[str, Tuple[int, int]]
"""A word, its first frame, and the frame after its last one."""


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
