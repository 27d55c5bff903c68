"""Steps of a CTC search with few hypotheses, one by one: clean logits leave few.

A step finds what that of `ctc_beam` finds, without the cost of NumPy's calls.
"""

from __future__ import annotations

import heapq
import math
from typing import Dict, List, Tuple

from espnet_bayeslm.decoding.ctc_frames import FrameStep, Trace, grown
from espnet_bayeslm.decoding.ctc_texts import MOST_BEGUN, Texts

Value = Tuple[float, float, float, int]
"""Of a hypothesis after a step: ln P by the logits, ln P of the best alignment, score by all but
the logits, and the hypothesis before."""
Hypotheses = Dict[int, Tuple[float, float, float, Trace]]
"""{key: the same with the trace of the best alignment}."""


class SmallBeam:
    """Steps of few hypotheses.

    Args:
        texts: Their texts.
        size: Hypotheses after each step, at most.
        prune: Score below the best one's, from which on a hypothesis is dropped.
        prune_history: True if of hypotheses that go on alike the best one stays.
    """

    def __init__(self, texts: Texts, size: int, prune: float, prune_history: bool):
        self._texts, self._limit, self._prune = texts, size, prune
        self._prune_history = prune_history

    def step(self, beam: Hypotheses, step: FrameStep) -> Hypotheses:
        """Hypotheses after a step."""
        found, waiting = self._moved(beam, step.tokens)
        if waiting:
            self._add(found, waiting)
        kept = self._kept(found)
        blank, size = self._texts.blank, self._texts.size
        after: Hypotheses = {}
        for key, (am, best, score, source) in kept:
            trace, last = beam[source][3], key % size
            if last != blank:
                trace = grown(trace, last, key == source, step)
            after[key] = (am, best, score, trace)
        return after

    def _moved(
        self, beam: Hypotheses, tokens: List[Tuple[int, float]]
    ) -> Tuple[Dict[int, Value], Dict[int, Value]]:
        """Hypotheses after a step; by text and token, those whose new text is not known yet."""
        texts = self._texts
        size, blank, opens = texts.size, texts.blank, texts.opens
        moves, finished = texts.begun.moves.get, texts.finished.get
        ahead, scores = texts.begun.ahead.item, texts.histories.scores.item
        is_plain = texts.phrases is None
        found: Dict[int, Value] = {}
        waiting: Dict[int, Value] = {}
        for key, (am, best, own, _) in beam.items():
            text, last = divmod(key, size)
            history, begun = divmod(text, MOST_BEGUN)
            for token, log_prob in tokens:
                into, score, after = found, own, key
                if token == blank:
                    after = key - last + blank
                elif token != last:
                    after = -1
                    if opens[token]:
                        words = finished(text, -1) if begun else history
                        number = moves(token, -1) if words >= 0 else -1
                    else:
                        words, number = history, moves(begun * size + token, -1)
                    if number >= 0:
                        after = (words * MOST_BEGUN + number) * size + token
                        if is_plain:
                            score = scores(words) + ahead(number)
                        else:
                            score = texts.score(words, number)
                    else:
                        into, after = waiting, key - last + token
                old = into.get(after)
                value = (am + log_prob, best + log_prob, score, key)
                into[after] = value if old is None else _merged(old, value)
        return found, waiting

    def _add(self, found: Dict[int, Value], waiting: Dict[int, Value]) -> None:
        """Add hypotheses with new texts, as far as they may stay."""
        texts, bar = self._texts, self._bar(found)
        unpaid: List[Tuple[int, int, Value]] = []
        for pair, value in waiting.items():
            text, token = divmod(pair, texts.size)
            history, begun = divmod(text, MOST_BEGUN)
            if texts.opens[token]:
                if begun and text not in texts.finished:
                    unpaid.append((text, token, value))
                    continue
                words = texts.finished[text] if begun else history
                self._join(found, words, 0, token, value)
            elif value[0] + texts.histories.scores.item(history) + texts.fusion.most >= bar:
                self._join(found, history, begun, token, value)
        if unpaid:
            self._pay(found, unpaid)

    def _pay(self, found: Dict[int, Value], unpaid: List[Tuple[int, int, Value]]) -> None:
        """Add hypotheses whose last words are not paid yet, as far as they may stay."""
        texts, bar = self._texts, self._bar(found)
        after = [texts.begun.move(0, token) for _, token, _ in unpaid]
        most = texts.most([text for text, _, _ in unpaid], after)
        rows = zip(most, unpaid, strict=True)
        paid = [row for gain, row in rows if row[2][0] + gain >= bar]
        numbers = texts.pay([text for text, _, _ in paid])
        for words, (_, token, value) in zip(numbers, paid, strict=True):
            self._join(found, words, 0, token, value)

    def _join(
        self, found: Dict[int, Value], history: int, begun: int, token: int, value: Value
    ) -> None:
        """Add a hypothesis whose text is that of a token after some words and first letters."""
        texts = self._texts
        number = texts.begun.move(begun, token)
        key = (history * MOST_BEGUN + number) * texts.size + token
        value = (value[0], value[1], texts.score(history, number), value[3])
        old = found.get(key)
        found[key] = value if old is None else _merged(old, value)

    def _bar(self, found: Dict[int, Value]) -> float:
        """Score below which no other hypothesis stays in the beam."""
        totals = sorted((value[0] + value[2] for value in found.values()), reverse=True)
        if not totals:
            return -math.inf
        bar = totals[0] + self._prune
        return max(bar, totals[self._limit - 1]) if len(totals) >= self._limit else bar

    def _kept(self, found: Dict[int, Value]) -> List[Tuple[int, Value]]:
        """Best hypotheses."""
        least = max(value[0] + value[2] for value in found.values()) + self._prune
        kept = [each for each in found.items() if each[1][0] + each[1][2] >= least]
        if len(kept) > self._limit:
            kept = heapq.nlargest(self._limit, kept, key=_total)
        if self._prune_history and len(kept) > 1:
            kept.sort(key=_total, reverse=True)
            kept = self._distinct(kept)
        return kept

    def _distinct(self, kept: List[Tuple[int, Value]]) -> List[Tuple[int, Value]]:
        """The first of hypotheses that go on alike."""
        first: Dict[Tuple[int, int], Tuple[int, Value]] = {}
        texts = self._texts
        begun = MOST_BEGUN * texts.size
        for each in kept:
            history, rest = divmod(each[0], begun)
            first.setdefault((texts.context(history), rest), each)
        return list(first.values())


def _total(each: Tuple[int, Value]) -> float:
    """Score of a hypothesis."""
    return each[1][0] + each[1][2]


def _merged(one: Value, other: Value) -> Value:
    """Value of two hypotheses that are the same."""
    high, low = (one, other) if one[0] > other[0] else (other, one)
    best = one if one[1] >= other[1] else other
    am_score = high[0] + math.log1p(math.exp(low[0] - high[0]))
    return (am_score, best[1], one[2], best[3])
