"""Steps of a CTC search with many hypotheses, all at once."""

from __future__ import annotations

from typing import List, NamedTuple, Tuple

import numpy as np

from espnet_bayeslm.decoding.ctc_frames import FrameStep, Trace, grown
from espnet_bayeslm.decoding.ctc_texts import MOST_BEGUN, Texts

AM, BEST, SOURCE = range(3)
"""Columns of what is known of a hypothesis: ln P by the logits, ln P of the best alignment, and
the place of the hypothesis before."""


class Beam(NamedTuple):
    """Hypotheses, sorted by their keys.

    Attributes:
        keys: (B,), number of the text times the number of tokens, plus the last column.
        values: (3, B), as `AM`, `BEST` and `SOURCE` say, or (1, B) where nothing is traced.
    """

    keys: np.ndarray
    values: np.ndarray


def merged(*parts: Beam) -> Beam:
    """Beam of hypotheses of which some may be equal, whose probabilities are added."""
    keys = np.concatenate([part.keys for part in parts])
    values = np.concatenate([part.values for part in parts], axis=1)
    order = np.argsort(keys, kind="stable")
    keys, values = keys[order], values[:, order]
    starts = _starts(keys)
    if len(starts) == len(keys):
        return Beam(keys, values)
    return Beam(keys[starts], _sums(values, starts))


def _starts(values: np.ndarray) -> np.ndarray:
    """Where runs of equal values begin."""
    is_new = np.ones(len(values), bool)
    np.not_equal(values[1:], values[:-1], out=is_new[1:])
    return np.flatnonzero(is_new)


def _sums(values: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Values of runs of hypotheses, (3, N, ...), with the source of the best one."""
    found = np.empty((len(values), len(starts), *values.shape[2:]))
    np.logaddexp.reduceat(values[AM], starts, axis=0, out=found[AM])
    if len(values) == 1:
        return found
    np.maximum.reduceat(values[BEST], starts, axis=0, out=found[BEST])
    run = np.zeros(values.shape[1], np.int64)
    run[starts[1:]] = 1
    sources = np.where(values[BEST] == found[BEST][run.cumsum()], values[SOURCE], -1.0)
    np.maximum.reduceat(sources, starts, axis=0, out=found[SOURCE])
    return found


class LargeBeam:
    """Steps of many hypotheses.

    Args:
        texts: Their texts.
        size: Hypotheses after each step, at most.
        prune: Score below the best one's, from which on a hypothesis is dropped.
        prune_history: True if of hypotheses that go on alike the best one stays.
    """

    def __init__(self, texts: Texts, size: int, prune: float, prune_history: bool):
        self._texts, self._limit, self._prune = texts, size, prune
        self._prune_history = prune_history
        self._opens = np.array(texts.opens)

    def step(self, beam: Beam, traces: List[Trace], step: FrameStep) -> Tuple[Beam, List[Trace]]:
        """Hypotheses and their traces after a step."""
        tokens = np.array([token for token, _ in step.tokens])
        after = self._pruned(self._moved(beam, tokens, np.array([p for _, p in step.tokens])))
        is_traced = len(after.values) > 1
        return after, self._grown(after, beam, traces, step) if is_traced else []

    def _moved(self, beam: Beam, tokens: np.ndarray, log_probs: np.ndarray) -> Beam:
        """Hypotheses after a step that may stay."""
        size, blank = self._texts.size, self._texts.blank
        texts, lasts = np.divmod(beam.keys, size)
        steps = np.empty((len(beam.values), len(texts), len(tokens)))
        np.add(beam.values[:SOURCE, :, None], log_probs, out=steps[:SOURCE])
        steps[SOURCE:] = np.arange(len(texts))[:, None]
        stays = (lasts[:, None] == tokens) | (tokens == blank)
        rows, columns = np.nonzero(stays)
        own = beam.keys[rows] - lasts[rows] + tokens[columns]
        found = merged(Beam(own, steps[:, rows, columns]))
        if stays.all():
            return found
        # hypotheses of one text take the same steps, unless the token repeats
        steps[:SOURCE, rows, columns] = -np.inf
        starts = _starts(texts)
        moved = _sums(steps, starts) if len(starts) < len(texts) else steps
        rows, columns = np.nonzero(moved[AM] > -np.inf)
        moves = (texts[starts][rows], tokens[columns], moved[:, rows, columns])
        is_open = self._opens[moves[1]]
        if not is_open.all():
            found = self._with_letters(found, *(part[..., ~is_open] for part in moves))
        if is_open.any():
            found = self._with_words(found, *(part[..., is_open] for part in moves))
        return found

    def _with_letters(
        self, beam: Beam, texts: np.ndarray, tokens: np.ndarray, values: np.ndarray
    ) -> Beam:
        """Beam with texts whose last words go on, as far as they may stay in it.

        Args:
            beam: Other hypotheses.
            texts: Texts before the last token, (M,).
            tokens: The last tokens, (M,).
            values: What is known of them, (3, M).
        """
        histories, begun = np.divmod(texts, MOST_BEGUN)
        known = self._texts.begun
        after = known.after(begun, tokens)
        new = after < 0
        if new.any():
            scores = self._texts.histories.scores[histories[new]]
            most = values[AM, new] + scores + self._texts.fusion.most
            new[new] = most >= self._bar(beam)
            after[new] = known.add_after(begun[new], tokens[new])
        kept = after >= 0
        return self._joined(beam, *(part[..., kept] for part in (histories, after, tokens, values)))

    def _with_words(
        self, beam: Beam, texts: np.ndarray, tokens: np.ndarray, values: np.ndarray
    ) -> Beam:
        """Beam with texts whose last words are complete, as far as they may stay in it.

        Args:
            beam: Other hypotheses.
            texts: Texts before the last token, which opens a word, (M,).
            tokens: The last tokens, (M,).
            values: What is known of them, (3, M).
        """
        first = np.zeros(len(tokens), np.int64)
        after = self._texts.begun.after(first, tokens)
        if (after < 0).any():
            after = self._texts.begun.add_after(first, tokens)
        finished = self._texts.known(texts)
        # those that need no LM raise the bar for those that do
        chosen = finished >= 0
        parts = (finished, after, tokens, values)
        beam = self._joined(beam, *(part[..., chosen] for part in parts))
        if chosen.all():
            return beam
        chosen = ~chosen
        most = values[AM, chosen] + self._texts.most_of(texts[chosen], after[chosen])
        chosen[chosen] = most >= self._bar(beam)
        finished[chosen] = self._texts.pay(texts[chosen].tolist())
        return self._joined(beam, *(part[..., chosen] for part in parts))

    def _joined(
        self,
        beam: Beam,
        histories: np.ndarray,
        begun: np.ndarray,
        tokens: np.ndarray,
        values: np.ndarray,
    ) -> Beam:
        """Beam with more hypotheses: word sequences and first letters of the next words, (M,)."""
        keys = (histories * MOST_BEGUN + begun) * self._texts.size + tokens
        return merged(beam, Beam(keys, values))

    def _totals(self, beam: Beam) -> np.ndarray:
        """Score of each hypothesis, (B,)."""
        totals: np.ndarray = beam.values[AM] + self._texts.scores(beam.keys)
        return totals

    def _bar(self, beam: Beam) -> float:
        """Score below which no other hypothesis stays in the beam."""
        if not len(beam.keys):
            return -np.inf
        totals = self._totals(beam)
        bar = totals.max() + self._prune
        if len(totals) >= self._limit:
            bar = max(bar, np.partition(totals, -self._limit)[-self._limit])
        return float(bar)

    def _pruned(self, beam: Beam) -> Beam:
        """Best hypotheses of a beam."""
        totals = self._totals(beam)
        kept = totals >= totals.max() + self._prune
        if np.count_nonzero(kept) > self._limit:
            kept[:] = False
            kept[np.argpartition(totals, -self._limit)[-self._limit :]] = True
        if self._prune_history:
            places = np.flatnonzero(kept)
            places = places[np.argsort(-totals[places], kind="stable")]
            histories, rest = np.divmod(beam.keys[places], MOST_BEGUN * self._texts.size)
            contexts = np.array([self._texts.context(n) for n in histories.tolist()])
            alike = contexts * (MOST_BEGUN * self._texts.size) + rest
            kept[:] = False
            kept[places[np.unique(alike, return_index=True)[1]]] = True
        return Beam(beam.keys[kept], beam.values[:, kept])

    def _grown(self, after: Beam, beam: Beam, traces: List[Trace], step: FrameStep) -> List[Trace]:
        """Traces of hypotheses after a step."""
        sources = after.values[SOURCE].astype(np.int64)
        lasts = after.keys % self._texts.size
        found = [traces[source] for source in sources.tolist()]
        heard = np.flatnonzero(lasts != self._texts.blank)
        goes_on = after.keys[heard] == beam.keys[sources[heard]]
        rows = zip(heard.tolist(), lasts[heard].tolist(), goes_on.tolist(), strict=True)
        for n, last, is_same in rows:
            found[n] = grown(found[n], last, is_same, step)
        return found
