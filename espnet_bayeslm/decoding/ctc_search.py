"""CTC prefix beam search with words of any LM, a vocabulary and a bias list.

A hypothesis is a text and its last column: a token, or the blank. A text is a sequence of words and
the first letters of a word that has begun. Its score of the logits is the ln of the sum over all
alignments of all tokens that write the text: hypotheses whose texts and last columns agree are
merged, as in pyctcdecode. A complete word is paid only where the hypothesis would stay in the beam
with ln P = 0, which no LM exceeds. Many hypotheses are moved at once (`ctc_beam`), few one by one
(`ctc_small_beam`).
"""

from __future__ import annotations

import dataclasses
import gc
import math
import threading
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from espnet_bayeslm.decoding.bias_search import BiasTree
from espnet_bayeslm.decoding.ctc_beam import AM, BEST, Beam, LargeBeam
from espnet_bayeslm.decoding.ctc_frames import FrameStep, Trace, steps_of
from espnet_bayeslm.decoding.ctc_given import text_log_prob
from espnet_bayeslm.decoding.ctc_small_beam import Hypotheses, SmallBeam
from espnet_bayeslm.decoding.ctc_texts import MOST_BEGUN, Texts
from espnet_bayeslm.decoding.ctc_tokens import CTCTokens
from espnet_bayeslm.decoding.ctc_words import BegunPhrases, BegunWords, CTCFusion
from espnet_bayeslm.evaluation.bias_lists import BiasList
from espnet_bayeslm.utils.options import ToolOptions, option

GROUP = "CTC"
KEPT_BEGUN = 500_000
"""First letters of words that are kept from one utterance to the next, at most."""
SMALL, LARGE = 32, 64
"""Few hypotheses times tokens, and many: above the latter arrays are faster."""
_ONE_AT_A_TIME = threading.Lock()


@dataclasses.dataclass(frozen=True, kw_only=True)
class BeamOptions(ToolOptions):
    """Sizes of a CTC search."""

    beam_size: int = option("Hypotheses after each frame, at most", 100, group=GROUP, least=1)
    beam_prune_logp: float = option(
        "Score of a hypothesis below the best one's, from which on it is dropped",
        -10.0,
        group=GROUP,
        least=-math.inf,
        most=0,
    )
    token_min_logp: float = option(
        "Ln P below which a token is skipped, but for the best one of a frame",
        -5.0,
        group=GROUP,
        least=-math.inf,
        most=0,
    )


class FoundText(NamedTuple):
    """A hypothesis of a search.

    Attributes:
        words: Words of the text.
        am_score: Ln of the sum of the probabilities of all alignments in the beam.
        lm_score: Ln P of the words and the sentence's end; None without an LM.
        phrase_score: Weight of the phrases in the text, of hotwords or of a bias list.
        score: Sum of all scores, weighted, by which hypotheses are ranked.
        trace: Tokens of its best alignment, with their frames, where they are traced.
        state: State of the LMs after the words.
    """

    words: Tuple[str, ...]
    am_score: float
    lm_score: Optional[float]
    phrase_score: float
    score: float
    trace: Trace
    state: Any


class CTCSearch:
    """Search of one CTC recogniser.

    Args:
        tokens: Its tokens.
        fusion: LMs, vocabulary and a bias list.
        options: Sizes of the beam.
        prune_history: True if of hypotheses whose next words cost the same only the best one stays,
            which is faster; the first text may change, and most of the others are lost.
        traced: True if the tokens of the best alignments are kept.
    """

    def __init__(
        self,
        tokens: CTCTokens,
        fusion: CTCFusion,
        options: BeamOptions,
        *,
        prune_history: bool = False,
        traced: bool = True,
    ):
        self._tokens, self._fusion, self._options = tokens, fusion, options
        self._how = {"prune_history": prune_history, "traced": traced}
        self._bias: Optional[BiasList] = None
        self._known_phrases: Optional[BegunPhrases] = None
        self._silent = ~np.array(tokens.spoken)
        self._begun = BegunWords(fusion, tokens.words.texts)

    def __call__(
        self, log_probs: np.ndarray, bias: Optional[BiasList] = None, start: Optional[Any] = None
    ) -> List[FoundText]:
        """Hypotheses of an utterance, the best first, each text once.

        One search runs at a time, since searches share first letters of words and LMs.

        Args:
            log_probs: Ln P of each token at each frame, (T, V).
            bias: The utterance's bias list, in place of that of the fusion.
            start: State of the LMs before the first word; None: the start of a sentence.
        """
        with _ONE_AT_A_TIME:
            if bias is not self._bias:
                tree = BiasTree(bias, self._tokens.words) if bias else None
                self._bias, self._fusion = bias, dataclasses.replace(self._fusion, bias=tree)
            return self._found(log_probs, start)

    def scored(
        self, log_probs: np.ndarray, texts: Sequence[Sequence[str]], bias: BiasList
    ) -> List[FoundText]:
        """Given texts as a search finds them, without a trace and a state of the LMs.

        Args:
            log_probs: Ln P of each token at each frame, (T, V).
            texts: Words of each text.
            bias: The utterance's bias list.
        """
        fusion, found = self._fusion, []
        for words in texts:
            am_score = text_log_prob(log_probs, words, self._tokens)
            phrases = fusion.bias_weight * bias.total(words)
            score, lm = am_score + phrases + sum(map(fusion.complete, words)), None
            if fusion.mixture is not None:
                lm = float(fusion.mixture.word_scores([words])[0].log_probs.sum())
                score += fusion.lm_weight * lm
            if math.isfinite(am_score):
                found.append(FoundText(tuple(words), am_score, lm, phrases, score, None, None))
        return found

    def _found(self, log_probs: np.ndarray, start: Optional[Any]) -> List[FoundText]:
        """Hypotheses of an utterance."""
        if len(self._begun.letters) > KEPT_BEGUN:
            self._begun = BegunWords(self._fusion, self._tokens.words.texts)
        texts = Texts(self._tokens, self._begun, self._fusion, self._phrases(), start)
        utterance = UtteranceSearch(texts, self._options, **self._how)
        if len(log_probs):
            for step in steps_of(log_probs, self._silent, self._options.token_min_logp):
                utterance.step(step)
        found = utterance.found()
        if self._fusion.keeps_prefixes:
            # nodes of a tree hold each other, and a utterance's take hundreds of MB
            del utterance, texts
            gc.collect()
        return found

    def _phrases(self) -> Optional[BegunPhrases]:
        """Gains of first letters by the bias list, kept while it is the same."""
        bias, known = self._fusion.bias, self._known_phrases
        if bias is None:
            return None
        if known is None or known.bias is not bias or known.begun is not self._begun:
            known = BegunPhrases(bias, self._fusion.bias_weight, self._begun)
        self._known_phrases = known
        return known


class UtteranceSearch:
    """Search of one utterance, frame by frame.

    Args:
        texts: Texts of the utterance.
        options: Sizes of the beam.
        prune_history: True if of hypotheses that go on alike the best one stays.
        traced: True if the tokens of the best alignments are kept.
    """

    def __init__(self, texts: Texts, options: BeamOptions, *, prune_history: bool, traced: bool):
        self._texts, self._prune, self._traced = texts, options.beam_prune_logp, traced
        how = (texts, options.beam_size, options.beam_prune_logp, prune_history)
        self._small, self._large = SmallBeam(*how), LargeBeam(*how)
        # a sentence begins as after a blank
        self._few: Optional[Hypotheses] = {texts.blank: (0.0, 0.0, 0.0, None)}
        self._many = Beam(np.empty(0, np.int64), np.empty((3, 0)))
        self._traces: List[Trace] = []
        self._rest = 0.0

    def step(self, step: FrameStep) -> None:
        """Read the next frames."""
        count = len(self._many.keys) if self._few is None else len(self._few)
        work = count * len(step.tokens)
        if self._few is not None and work > LARGE:
            self._many, self._traces = as_arrays(self._few)
            if not self._traced:
                self._many = Beam(self._many.keys, self._many.values[:1])
            self._few = None
        elif self._few is None and work <= SMALL:
            self._few = as_dict(self._many, self._traces, self._texts)
        if self._few is not None:
            self._few = self._small.step(self._few, step)
        else:
            self._many, self._traces = self._large.step(self._many, self._traces, step)
        self._rest += step.rest

    def found(self) -> List[FoundText]:
        """Hypotheses after the last frame, the best first, whose last words and ends are paid."""
        ended, texts = self._ended(), self._texts
        histories, fusion, found = texts.histories, texts.fusion, []
        for (n, (am, trace)), end in zip(ended.items(), histories.ends(list(ended)), strict=True):
            am_score = am + self._rest
            score = am_score + histories.scores.item(n) + fusion.lm_weight * end
            lm = histories.log_probs[n] + end if fusion.mixture else None
            how = (histories.phrase_score(n), score, trace, histories.state(n))
            found.append(FoundText(histories.words(n), am_score, lm, *how))
        found.sort(key=lambda text: -text.score)
        least = found[0].score + self._prune
        return [text for text in found if text.score >= least]

    def _ended(self) -> Dict[int, Tuple[float, Trace]]:
        """{word sequence: ln P by the logits, trace of the best alignment}, all words complete."""
        few = self._few
        if few is None:
            few = as_dict(self._many, self._traces, self._texts)
        texts = [key // self._texts.size for key in few]
        self._texts.pay([text for text in texts if text % MOST_BEGUN])
        found: Dict[int, List[Tuple[float, float, Trace]]] = {}
        for text, (am, best, _, trace) in zip(texts, few.values(), strict=True):
            words = self._texts.finished[text] if text % MOST_BEGUN else text // MOST_BEGUN
            found.setdefault(words, []).append((am, best, trace))
        return {
            words: (
                float(np.logaddexp.reduce([am for am, _, _ in parts])),
                max(parts, key=lambda part: part[1])[2],
            )
            for words, parts in found.items()
        }


def as_arrays(few: Hypotheses) -> Tuple[Beam, List[Trace]]:
    """Hypotheses for steps of many, and their traces."""
    keys, rows = np.array(list(few)), list(few.values())
    order = np.argsort(keys)
    values = np.array([(am, best, 0.0) for am, best, _, _ in rows]).T
    return Beam(keys[order], values[:, order]), [rows[n][3] for n in order.tolist()]


def as_dict(many: Beam, traces: List[Trace], texts: Texts) -> Hypotheses:
    """Hypotheses for steps of few."""
    values = many.values.tolist()
    traces = traces or [None] * len(many.keys)
    scores = texts.scores(many.keys).tolist()
    # the best alignment counts for nothing where it is not traced
    rows = zip(values[AM], values[: BEST + 1][-1], scores, traces, strict=True)
    return dict(zip(many.keys.tolist(), rows, strict=True))
