"""Weights of a fusion, by decoding a development set again and again, with any recogniser.

Each round decodes the set, adds its N-best lists to those of all rounds before, and takes the
weights with the fewest errors on the union (`rescoring.weight_search`). The round with the fewest
errors wins, the search without an LM among them.

Each list with a bias list counts twice: with it, and with a decoy, the list without what was said.
Words outside of the bias list, and lists with decoys, may not be surely worse than without one:
first on the lists, then in the search.
"""

from __future__ import annotations

import itertools
import time
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from espnet_bayeslm.decoding.tuned_search import (
    FusionWeights,
    Heard,
    Key,
    SearchParts,
    TunedSearch,
)
from espnet_bayeslm.evaluation.bias_lists import BiasLists
from espnet_bayeslm.evaluation.biased_words import part_errors
from espnet_bayeslm.evaluation.wer import word_errors
from espnet_bayeslm.nbest.types import Hypothesis
from espnet_bayeslm.recognisers.recordings import LeftOut
from espnet_bayeslm.rescoring.bias import is_surely_worse
from espnet_bayeslm.rescoring.features import make_problem
from espnet_bayeslm.rescoring.weight_search import mert, normalised
from espnet_bayeslm.utils.log import LOG

# Weights that differ by less than this, absolute and relative, are the same
SAME_WEIGHTS = 0.05
# Weights of the LMs from which the search on lists starts
STARTS = (0.1, 0.3, 0.6, 1.0)

Recordings = Mapping[str, Callable[[], np.ndarray]]
"""Utterance id -> function that reads its samples."""


FARTHEST = FusionWeights(lm_weight=1.0, penalty=4.0, ahead_weight=2.0, bias_weight=10.0)
"""A round goes to these weights at most, or to twice those before: lists of a search are pruned, so
that weights which leave the recogniser or the look-ahead out do well on them, and make nonsense in
the search. The look-ahead keeps half of its weight."""
HALVINGS = 3
"""Times that the bias list's weight is halved after a search, before it is 0."""
GRID = 21
"""Number of values of a weight where those of the line search are too far."""


class Round(NamedTuple):
    """One decoding of the development set.

    Attributes:
        weights: Weights of the search.
        errors: Word errors of the best hypotheses.
        seconds: Mean time of an utterance.
        each: Utterance id -> word errors, and those outside of its bias list.
    """

    weights: FusionWeights
    errors: int
    seconds: float
    each: Mapping[str, Tuple[int, int]] = {}


Lists = Mapping[str, Mapping[Key, Heard]]
"""Utterance id -> its hypotheses, of all rounds, the best of the last round first."""


class FusionTuning:
    """Rounds of decoding, and the hypotheses of all of them.

    Args:
        search: The recogniser's search.
        recordings: The development set.
        refs: Utterance id -> words that were said.
        bias: Bias lists, normalised as the fusion's words are; None: there are none.
        progress: Progress bar around the recordings of a round.
        left_out: Recordings of the set that are left out already.
    """

    def __init__(
        self,
        search: TunedSearch,
        recordings: Recordings,
        refs: Mapping[str, Sequence[str]],
        *,
        bias: Optional[BiasLists] = None,
        progress: Callable[..., Any] = lambda items, **_: items,
        left_out: Optional[LeftOut] = None,
    ):
        self._search, self._progress = search, progress
        self._recordings, self._refs = dict(recordings), refs
        self._bias, self._left_out = bias, left_out or LeftOut(len(recordings))
        self._parts = search.parts._replace(bias=bias is not None)
        self.lists: Dict[str, Dict[Key, Heard]] = {utt: {} for utt in recordings}
        self.rounds: List[Round] = []

    def run(self, num_rounds: int) -> Round:
        """Best of some rounds, which follow the search without an LM.

        Lists say little of weights far from those that found them: after a round with more errors
        than the best one, the next goes half as far from this.
        """
        self.rounds.append(self._decode(self._search.start))
        best, step = self.rounds[0], 1.0
        for _ in range(num_rounds):
            found = best_weights(self.lists, best.weights, self._parts)
            if len(self.rounds) == 1:
                found = self._search.first(found, self._parts.bias)
            pairs = zip(best.weights, found, strict=True)
            weights = FusionWeights(*(round(old + step * (new - old), 3) for old, new in pairs))
            if np.allclose(weights, best.weights, rtol=SAME_WEIGHTS, atol=SAME_WEIGHTS):
                break
            self.rounds.append(self._decode(weights))
            if self.rounds[-1].errors < best.errors:
                best = self.rounds[-1]
            else:
                step /= 2
        return best

    def guarded(self, best: Round) -> Tuple[Round, Round, Round]:
        """Best round with so small a weight of the bias list that it does no sure harm.

        Returns:
            The round; one without a bias list, or the search without an LM; one with decoys.
        """
        assert self._bias is not None
        plain = self.rounds[0]
        if self._parts.lms and best.weights.lm_weight:
            plain = self._decode(best.weights._replace(bias_weight=0.0))
        decoys = plain
        lists = {utt: self._bias.of(utt) for utt in self._recordings}
        others = {
            utt: own.without(own.said(self._search.spelled(self._refs[utt])))
            for utt, own in lists.items()
        }
        for halved in range(HALVINGS + 1):
            if not best.weights.bias_weight:
                return best, plain, plain
            decoys = self._decode(best.weights, BiasLists(others))
            losses = [(decoys.each[u][0] - plain.each[u][0]) for u in plain.each]
            outside = [(best.each[u][1] - plain.each[u][1]) for u in plain.each]
            if not any(map(is_surely_worse, map(np.array, (losses, outside)))):
                return (best, plain, decoys) if best.errors <= plain.errors else (plain,) * 3
            weight = round(best.weights.bias_weight / 2, 3) if halved < HALVINGS else 0.0
            LOG.info("other words, or decoys, lose in the search: bias_weight %.3g", weight)
            best = self._decode(best.weights._replace(bias_weight=weight))
        return plain, plain, plain

    def _decode(self, weights: FusionWeights, bias: Optional[BiasLists] = None) -> Round:
        """Decode the set by some weights, and keep hypotheses and errors.

        A recording that fails the first time is left out, and later counts as all deleted.

        Args:
            weights: The weights.
            bias: Decoys, in place of the bias lists.
        """
        self._search.set_weights(weights)
        seconds, each = 0.0, {}
        for utt, read in self._progress([*self._recordings.items()], desc="decode", unit="utt"):
            found: Mapping[Key, Hypothesis] = {}
            lists = self._bias if bias is None else bias
            given = () if lists is None else (lists.of(utt),)
            try:
                samples, begin = read(), time.perf_counter()
                found = self._search.search(samples, *given)
                seconds += time.perf_counter() - begin
            except Exception as error:  # a recogniser may raise any
                if not self.rounds:
                    del self._recordings[utt], self.lists[utt]
                    self._left_out.add(utt, "", error)
                    continue
                LOG.warning("%s counts as deleted: %s", utt, error)
            heard = {key: self._heard(utt, key, hyp) for key, hyp in found.items()}
            pairs = [(item.errors, item.outside) for item in heard.values()]
            deleted = len(self._search.counted(self._refs[utt])), self._outside(utt, ())
            each[utt] = (*pairs, deleted)[0]
            # a hypothesis of an earlier round keeps its scores
            self.lists[utt] = {**heard, **self.lists[utt]}
            self._score(self.lists[utt])
        errors = sum(own for own, _ in each.values())
        LOG.info(f"{weights}: {errors} word errors")
        return Round(weights, errors, seconds / len(self._recordings), each)

    def _heard(self, utt: str, key: Key, hyp: Hypothesis) -> Heard:
        """A hypothesis with its errors and phrases."""
        ref, said = self._refs[utt], self._search.counted(hyp.words)
        errors = word_errors(self._search.counted(ref), said).errors
        heard = Heard(hyp.am_score or 0.0, errors, length=self._search.length(key))
        if self._bias is None:
            return heard
        own, words = self._bias.of(utt), self._search.spelled(hyp.words)
        decoy = own.without(own.said(self._search.spelled(ref))).total(words)
        outside = self._outside(utt, words)
        return heard._replace(bias=own.total(words), decoy=decoy, outside=outside)

    def _outside(self, utt: str, words: Sequence[str]) -> int:
        """Errors of words outside of the utterance's bias list."""
        if self._bias is None:
            return 0
        biased = self._bias.of(utt).words
        return part_errors(self._search.spelled(self._refs[utt]), words, biased).unbiased.errors

    def _score(self, heard: Dict[Key, Heard]) -> None:
        """Score the new hypotheses of a list by the LMs, and by a look-ahead that stays."""
        new = [key for key, item in heard.items() if item.log_prob is None]
        if not new:
            return
        for key, (log_prob, own) in zip(new, self._search.log_probs(new), strict=True):
            heard[key] = heard[key]._replace(log_prob=log_prob, ahead=own)


class ListTable(NamedTuple):
    """Hypotheses of lists in columns; lists with decoys follow where there are bias lists.

    Attributes:
        features: (L, N, F), padded by zeros.
        errors: (L, N).
        sizes: Hypotheses of each list, (L,).
    """

    features: np.ndarray
    errors: np.ndarray
    sizes: np.ndarray

    def errors_of(self, vector: np.ndarray) -> np.ndarray:
        """Word errors of the best hypothesis of each list, (L,)."""
        totals = self.features @ vector
        totals[np.arange(self.errors.shape[1]) >= self.sizes[:, None]] = -np.inf
        return self.errors[np.arange(len(self.errors)), totals.argmax(1)]


def best_weights(lists: Lists, before: FusionWeights, parts: SearchParts) -> FusionWeights:
    """Weights with the fewest word errors on lists, by the line search that rescoring has.

    The recogniser's own scores keep a weight, whatever the lists say. That of a bias list is halved
    while other words, or lists with decoys, are surely worse than without it.
    """
    table = _table(lists, parts)
    if not parts.bias:
        return _fewest_errors(table, before, parts)
    decoys = _table(lists, parts, decoy=True)
    both = ListTable(*(np.concatenate(pair) for pair in zip(table, decoys, strict=True)))
    found, without = _fewest_errors(both, before, parts), parts._replace(bias=False)
    plain_table = table._replace(features=table.features[..., :-1])
    plain = _fewest_errors(plain_table, before, without)
    outside = table._replace(errors=_table(lists, parts, outside=True).errors)
    guards = [(outside, plain_table._replace(errors=outside.errors)), (decoys, plain_table)]
    for _ in range(HALVINGS):
        vector, old = parts.vector(found), without.vector(plain)
        losses = [new.errors_of(vector) - known.errors_of(old) for new, known in guards]
        if not any(map(is_surely_worse, losses)):
            return found
        found = found._replace(bias_weight=round(found.bias_weight / 2, 3))
    return plain


def _fewest_errors(table: ListTable, before: FusionWeights, parts: SearchParts) -> FusionWeights:
    """Weights with the fewest word errors on lists."""
    problem = make_problem(*table)._replace(names=parts.names)
    starts = [before, *(before._replace(lm_weight=lm) for lm in STARTS)]
    # the line search counts in units of the features' spread
    vectors = [parts.vector(start) * problem.spreads for start in starts]
    best = mert(problem, vectors, normalised(vectors[2 if before.lm_weight == 0 else 0]))
    found = parts.weights(best / np.where(problem.spreads > 0, problem.spreads, np.inf), before)
    if found is not None:
        least, most = _limits(before)
        if all(low <= value <= high for low, value, high in zip(least, found, most, strict=True)):
            return found
    return _best_on_grid(
        before, lambda weights: table.errors_of(parts.vector(weights)).sum(), parts
    )


def _table(
    lists: Lists, parts: SearchParts, *, decoy: bool = False, outside: bool = False
) -> ListTable:
    """Features and errors of lists; with decoys, or the errors outside of bias lists."""
    filled = [list(heard.values()) for heard in lists.values() if heard]
    sizes = np.array([len(items) for items in filled])
    features = np.zeros((len(filled), sizes.max(), len(parts.names)))
    errors = np.zeros(features.shape[:2])
    for row, items in enumerate(filled):
        features[row, : len(items)] = [parts.features(h, decoy=decoy) for h in items]
        errors[row, : len(items)] = [h.outside if outside else h.errors for h in items]
    return ListTable(features, errors, sizes)


def _best_on_grid(
    before: FusionWeights, errors_of: Callable[[FusionWeights], int], parts: SearchParts
) -> FusionWeights:
    """Weights within the limits with the fewest errors, the mean over neighbours on a grid."""
    from scipy.ndimage import uniform_filter  # takes a while

    least, most = _limits(before)
    lms = np.linspace(0, most.lm_weight, GRID)[1:] if parts.lms else np.ones(1)
    penalties, aheads, biases = np.zeros(1), np.array([before.ahead_weight]), np.zeros(1)
    if parts.length:
        penalties = np.linspace(least.penalty, most.penalty, 2 * GRID - 1)
    if parts.ahead:
        aheads = np.linspace(least.ahead_weight, most.ahead_weight, GRID // 2)
    if parts.bias:
        biases = np.linspace(0, most.bias_weight, GRID // 2)
    axes = (lms, penalties, aheads, biases)
    points = [FusionWeights(*map(float, point)) for point in itertools.product(*axes)]
    costs = np.reshape([*map(errors_of, points)], [*map(len, axes)])
    smooth = uniform_filter(costs.astype(float), 3, mode="nearest")
    return FusionWeights(*(round(value, 3) for value in points[int(smooth.argmin())]))


def _limits(before: FusionWeights) -> Tuple[FusionWeights, FusionWeights]:
    """The least and the largest weights that a round may go to from the weights `before`."""
    pairs = zip(FARTHEST, before, strict=True)
    most = FusionWeights(*(max(far, 2 * abs(old)) for far, old in pairs))
    return FusionWeights(-most.lm_weight, -most.penalty, before.ahead_weight / 2, 0.0), most
