"""Hypotheses of a CTC search for users, with the places of beams of pyctcdecode."""

from __future__ import annotations

from typing import Any, List, NamedTuple, Optional

from espnet_bayeslm.decoding.ctc_search import FoundText
from espnet_bayeslm.decoding.word_times import WordFrames, WordTimes


class _Beam(NamedTuple):
    text: str
    last_lm_state: Any
    text_frames: List[WordFrames]
    logit_score: float
    lm_score: float


class OutputBeam(_Beam):
    """A hypothesis, with the places of a beam of pyctcdecode.

    Attributes:
        text: The text.
        last_lm_state: State of the LM after the text: KenLM's, or one of each LM; None: no LM.
        text_frames: (word, (first frame, frame after the last one)) of each word, on the best
            alignment.
        logit_score: Ln P of the text by the logits.
        lm_score: Sum of all scores, weighted, by which beams are ranked.
        log_prob: Ln P of the words and the sentence's end by the LM; None without an LM.
        hotword_score: Weight of the hotwords in the text.
    """

    log_prob: Optional[float] = None
    hotword_score: float = 0.0


class OutputBeamMPSafe(NamedTuple):
    """A hypothesis of a batch: an `OutputBeam` without the LM's state."""

    text: str
    text_frames: List[WordFrames]
    logit_score: float
    lm_score: float


def output_beam(text: FoundText, state: Any, times: WordTimes) -> OutputBeam:
    """Hypothesis for users.

    Args:
        text: A hypothesis that was traced.
        state: State of the LM after it.
        times: Frames of its words.
    """
    frames, scores = times.of(text), (text.am_score, text.score)
    beam = OutputBeam(" ".join(text.words), state, frames, *scores)
    beam.log_prob, beam.hotword_score = text.lm_score, text.phrase_score
    return beam
