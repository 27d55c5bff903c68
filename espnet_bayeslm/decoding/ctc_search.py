"""CTC prefix beam search with words of any LM, a vocabulary and a bias list.

A hypothesis is a text and its last column: a token, or the blank. A text is a sequence of words and
the first letters of a word that has begun. Its score of the logits is the ln of the sum over all
alignments of all tokens that write the text: hypotheses whose texts and last columns agree are
merged, as in pyctcdecode. All hypotheses of a frame are moved at once. A complete word is paid only
where the hypothesis would stay in the beam with ln P = 0, which no LM exceeds.
"""

from __future__ import annotations

import dataclasses
import gc
import math
import threading
from typing import Dict, List, NamedTuple, Optional, Tuple

import numpy as np

from espnet_bayeslm.decoding.bias_search import BiasTree
from espnet_bayeslm.decoding.ctc_tokens import CTCTokens
from espnet_bayeslm.decoding.ctc_words import BegunPhrases, BegunWords, WordFusion, WordHistories
from espnet_bayeslm.evaluation.bias_lists import BiasList
from espnet_bayeslm.utils.options import ToolOptions, option

GROUP = "CTC"
MOST_BEGUN = 1 << 24
"""Above the number of first letters of words in one search."""
KEPT_BEGUN = 500_000
"""First letters of words that are kept from one utterance to the next, at most."""
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
    """

    words: Tuple[str, ...]
    am_score: float
    lm_score: Optional[float]
    phrase_score: float
    score: float


class Beam(NamedTuple):
    """Hypotheses, sorted by their keys.

    Attributes:
        keys: (B,), number of the text times the number of tokens, plus the last column.
        am_scores: (B,), their ln P by the logits.
    """

    keys: np.ndarray
    am_scores: np.ndarray


NOTHING = Beam(np.empty(0, np.int64), np.empty(0))


def merged(*parts: Beam) -> Beam:
    """Beam of hypotheses of which some may be equal, whose probabilities are added."""
    keys = np.concatenate([part.keys for part in parts])
    am_scores = np.concatenate([part.am_scores for part in parts])
    order = np.argsort(keys, kind="stable")
    keys, am_scores = keys[order], am_scores[order]
    starts = _starts(keys)
    if len(starts) == len(keys):
        return Beam(keys, am_scores)
    return Beam(keys[starts], np.logaddexp.reduceat(am_scores, starts))


def _starts(values: np.ndarray) -> np.ndarray:
    """Where runs of equal values begin."""
    is_new = np.ones(len(values), bool)
    np.not_equal(values[1:], values[:-1], out=is_new[1:])
    return np.flatnonzero(is_new)


class CTCSearch:
    """Search of one CTC recogniser.

    Args:
        tokens: Its tokens.
        fusion: LMs, vocabulary and hotwords.
        options: Sizes of the beam.
    """

    def __init__(self, tokens: CTCTokens, fusion: WordFusion, options: BeamOptions):
        self._tokens, self._fusion, self._options = tokens, fusion, options
        self._bias: Optional[BiasList] = None
        self._known_phrases: Optional[BegunPhrases] = None
        self._silent = ~np.array(tokens.spoken)
        self._begun = BegunWords(fusion, tokens.words.texts)

    def __call__(self, log_probs: np.ndarray, bias: Optional[BiasList] = None) -> List[FoundText]:
        """Hypotheses of an utterance, the best first, each text once.

        One search runs at a time, since searches share first letters of words and LMs.

        Args:
            log_probs: Ln P of each token at each frame, (T, V).
            bias: The utterance's bias list, in place of that of the fusion.
        """
        with _ONE_AT_A_TIME:
            if bias is not self._bias:
                tree = BiasTree(bias, self._tokens.words) if bias else None
                self._bias, self._fusion = bias, dataclasses.replace(self._fusion, bias=tree)
            return self._found(log_probs)

    def _found(self, log_probs: np.ndarray) -> List[FoundText]:
        """Hypotheses of an utterance."""
        if len(self._begun.letters) > KEPT_BEGUN:
            self._begun = BegunWords(self._fusion, self._tokens.words.texts)
        utterance = UtteranceSearch(
            self._tokens, self._begun, self._fusion, self._options, self._phrases()
        )
        allowed = np.where(self._silent, -np.inf, log_probs)
        used = allowed >= self._options.token_min_logp
        used[np.arange(len(used)), allowed.argmax(axis=1)] = True
        for row, is_used in zip(allowed, used, strict=True):
            tokens = np.flatnonzero(is_used)
            utterance.step(tokens, row[tokens])
        found = utterance.texts()
        if self._fusion.keeps_prefixes:
            # nodes of a tree hold each other, and a utterance's take hundreds of MB
            del utterance
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
        tokens: The recogniser's tokens.
        begun: First letters of words.
        fusion: LMs, vocabulary and the utterance's bias list.
        options: Sizes of the beam.
        phrases: Gains of first letters by the bias list; None: there is none.
    """

    def __init__(
        self,
        tokens: CTCTokens,
        begun: BegunWords,
        fusion: WordFusion,
        options: BeamOptions,
        phrases: Optional[BegunPhrases] = None,
    ):
        self._options, self._fusion, self._begun = options, fusion, begun
        self._blank, self._size = tokens.blank, len(tokens.tokens)
        self._opens = np.array(tokens.words.opens)
        self._histories = WordHistories(fusion, tokens.words)
        self._phrases = phrases
        # text -> its words, the last one complete
        self._finished: Dict[int, int] = {}
        # a sentence begins as after a blank
        self._beam = Beam(np.array([self._blank]), np.zeros(1))

    def step(self, tokens: np.ndarray, log_probs: np.ndarray) -> None:
        """Read a frame.

        Args:
            tokens: Tokens that are not skipped, (K,).
            log_probs: Their ln P, (K,).
        """
        beam = self._beam
        texts, lasts = np.divmod(beam.keys, self._size)
        stays = (lasts[:, None] == tokens) | (tokens == self._blank)
        if len(tokens) == 1 and stays.all() and (lasts == self._blank).all():
            self._beam = Beam(beam.keys, beam.am_scores + log_probs)
            return
        # (B, K) -> (N, K): hypotheses of one text take the same steps, unless the token repeats
        steps = beam.am_scores[:, None] + log_probs
        rows, columns = np.nonzero(stays)
        own = beam.keys[rows] - lasts[rows] + tokens[columns]
        staying = merged(Beam(own, steps[rows, columns]))
        steps[rows, columns] = -np.inf
        starts = _starts(texts)
        moved = np.logaddexp.reduceat(steps, starts, axis=0)
        rows, columns = np.nonzero(moved > -np.inf)
        moves = (texts[starts][rows], tokens[columns], moved[rows, columns])
        is_open = self._opens[moves[1]]
        beam = self._with_letters(staying, *(part[~is_open] for part in moves))
        if is_open.any():
            beam = self._with_words(beam, *(part[is_open] for part in moves))
        self._beam = self._pruned(beam)

    def _with_letters(
        self, beam: Beam, texts: np.ndarray, tokens: np.ndarray, am_scores: np.ndarray
    ) -> Beam:
        """Beam with texts whose last words go on, as far as they may stay in it.

        Args:
            beam: Other hypotheses.
            texts: Texts before the last token, (M,).
            tokens: The last tokens, (M,).
            am_scores: Ln P by the logits, (M,).
        """
        if not len(texts):
            return beam
        histories, begun = np.divmod(texts, MOST_BEGUN)
        after = self._begun.after(begun, tokens)
        new = after < 0
        if new.any():
            most = am_scores[new] + self._histories.scores[histories[new]] + self._fusion.most
            new[new] = most >= self._bar(beam)
            after[new] = self._begun.add_after(begun[new], tokens[new])
        known = after >= 0
        parts = (part[known] for part in (histories, after, tokens, am_scores))
        return self._joined(beam, *parts)

    def _with_words(
        self, beam: Beam, texts: np.ndarray, tokens: np.ndarray, am_scores: np.ndarray
    ) -> Beam:
        """Beam with texts whose last words are complete, as far as they may stay in it.

        Args:
            beam: Other hypotheses.
            texts: Texts before the last token, which opens a word, (M,).
            tokens: The last tokens, (M,).
            am_scores: Ln P by the logits, (M,).
        """
        first = np.zeros(len(tokens), np.int64)
        after = self._begun.after(first, tokens)
        if (after < 0).any():
            after = self._begun.add_after(first, tokens)
        finished = self._known(texts)
        for pays in (False, True):
            # those that need no LM raise the bar for those that do
            chosen = finished >= 0
            if pays and not chosen.all():
                chosen = ~chosen
                most = am_scores[chosen] + self._at_most(texts[chosen], after[chosen])
                chosen[chosen] = most >= self._bar(beam)
                finished[chosen] = self._paid(texts[chosen])
            elif pays:
                break
            parts = (part[chosen] for part in (finished, after, tokens, am_scores))
            beam = self._joined(beam, *parts)
        return beam

    def _joined(
        self,
        beam: Beam,
        histories: np.ndarray,
        begun: np.ndarray,
        tokens: np.ndarray,
        am_scores: np.ndarray,
    ) -> Beam:
        """Beam with more hypotheses: word sequences and first letters of the next words, (M,)."""
        keys = (histories * MOST_BEGUN + begun) * self._size + tokens
        return merged(beam, Beam(keys, am_scores))

    def _known(self, texts: np.ndarray) -> np.ndarray:
        """Word sequence of each text with its last word complete, (N,); -1: it is not paid yet."""
        histories, begun = np.divmod(texts, MOST_BEGUN)
        get = self._finished.get
        found = np.array([get(text, -1) for text in texts.tolist()], np.int64)
        return np.where(begun == 0, histories, found)

    def _paid(self, texts: np.ndarray) -> np.ndarray:
        """Word sequence of each text, (N,), whose last words are paid at once."""
        new = [text for text in dict.fromkeys(texts.tolist()) if text not in self._finished]
        letters = self._begun.letters
        pairs = [(text // MOST_BEGUN, letters[text % MOST_BEGUN]) for text in new]
        self._finished.update(zip(new, self._histories.add(pairs), strict=True))
        return np.array([self._finished[text] for text in texts.tolist()], np.int64)

    def _at_most(self, texts: np.ndarray, after: np.ndarray) -> np.ndarray:
        """Score of each text, (N,), with first letters of a next word, by an LM that is sure."""
        histories, begun = np.divmod(texts, MOST_BEGUN)
        gains = self._begun.complete[begun]
        if self._phrases is None:
            return self._histories.scores[histories] + gains + self._begun.ahead[after]
        known, letters = self._histories, self._begun.letters
        ahead = self._phrases.ahead(known, histories, after)
        for n in np.flatnonzero(self._phrases.lead_on(known, histories, begun)).tolist():
            heard = known.heard_after(histories[n], letters[begun[n]])
            gains[n] += known.phrase_gain(histories[n], heard)
            gain = self._fusion.bias_weight * heard.ahead(letters[after[n]]) if heard else 0.0
            ahead[n] = gain or self._begun.ahead[after[n]]
        return self._histories.scores[histories] + gains + ahead

    def _score(self, histories: np.ndarray, begun: np.ndarray) -> np.ndarray:
        """Score of each text by all but the logits, (N,)."""
        if self._phrases is None:
            return self._histories.scores[histories] + self._begun.ahead[begun]
        return self._histories.scores[histories] + self._phrases.ahead(
            self._histories, histories, begun
        )

    def _totals(self, beam: Beam) -> np.ndarray:
        """Score of each hypothesis, (B,)."""
        histories, begun = np.divmod(beam.keys // self._size, MOST_BEGUN)
        return beam.am_scores + self._score(histories, begun)

    def _bar(self, beam: Beam) -> float:
        """Score below which no other hypothesis stays in the beam."""
        if not len(beam.keys):
            return -np.inf
        totals, size = self._totals(beam), self._options.beam_size
        bar = totals.max() + self._options.beam_prune_logp
        if len(totals) >= size:
            bar = max(bar, np.partition(totals, -size)[-size])
        return float(bar)

    def _pruned(self, beam: Beam) -> Beam:
        """Best hypotheses of a beam."""
        totals, size = self._totals(beam), self._options.beam_size
        kept = totals >= totals.max() + self._options.beam_prune_logp
        if np.count_nonzero(kept) > size:
            kept[:] = False
            kept[np.argpartition(totals, -size)[-size:]] = True
        return Beam(beam.keys[kept], beam.am_scores[kept])

    def texts(self) -> List[FoundText]:
        """Hypotheses after the last frame, the best first, whose last words and ends are paid."""
        texts = self._beam.keys // self._size
        finished = self._known(texts)
        finished[finished < 0] = self._paid(texts[finished < 0])
        ended = merged(Beam(finished, self._beam.am_scores))
        histories, found = self._histories, []
        numbers = ended.keys.tolist()
        ends = histories.ends(numbers)
        for n, am, end in zip(numbers, ended.am_scores.tolist(), ends, strict=True):
            score = am + float(histories.scores[n]) + self._fusion.lm_weight * end
            lm = histories.log_probs[n] + end if self._fusion.mixture else None
            found.append(FoundText(histories.words(n), am, lm, histories.phrase_score(n), score))
        found.sort(key=lambda text: -text.score)
        least = found[0].score + self._options.beam_prune_logp
        return [text for text in found if text.score >= least]
