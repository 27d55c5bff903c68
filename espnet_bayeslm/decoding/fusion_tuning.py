"""Weights of a fusion, by decoding a development set again and again.

Each round decodes the set, adds its N-best lists to those of all rounds before, and takes the
weights with the fewest errors on the union (`rescoring.weight_search`). The round with the fewest
errors wins, the search without an LM among them.
"""

from __future__ import annotations

import itertools
import time
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from espnet_bayeslm.decoding.fusion_lm import FusionLM
from espnet_bayeslm.evaluation.wer import word_errors
from espnet_bayeslm.recognisers.espnet_asr import BeamSearch
from espnet_bayeslm.recognisers.recordings import LeftOut
from espnet_bayeslm.rescoring.features import LM, make_problem
from espnet_bayeslm.rescoring.weight_search import mert, normalised
from espnet_bayeslm.scoring.sequences import score_hypotheses
from espnet_bayeslm.utils.log import LOG

# Weights that differ by less than this, absolute and relative, are the same
SAME_WEIGHTS = 0.05
# Weights of the LMs from which the search on lists starts
STARTS = (0.1, 0.3, 0.6, 1.0)
FEATURES = ("am_score", LM, "tokens", "ahead")

Ids = Tuple[int, ...]
Recordings = Mapping[str, Callable[[], np.ndarray]]
"""Utterance id -> function that reads its samples."""


class FusionWeights(NamedTuple):
    """Weights of a search.

    Attributes:
        lm_weight: Of the LMs that are fused.
        penalty: Bonus of each token, as ESPnet's option `penalty`.
        ahead_weight: Of the look-ahead, where that of the LMs is 1.
    """

    lm_weight: float
    penalty: float
    ahead_weight: float


FARTHEST = FusionWeights(lm_weight=1.0, penalty=4.0, ahead_weight=2.0)
"""A round goes to these weights at most, or to twice those before: lists of a search are pruned, so
that weights which leave the recogniser or the look-ahead out do well on them, and make nonsense in
the search. The look-ahead keeps half of its weight."""
GRID = 21
"""Number of values of a weight where those of the line search are too far."""


class Round(NamedTuple):
    """One decoding of the development set.

    Attributes:
        weights: Weights of the search.
        errors: Word errors of the best hypotheses.
        seconds: Mean time of an utterance.
    """

    weights: FusionWeights
    errors: int
    seconds: float


class Heard(NamedTuple):
    """A hypothesis of some round.

    Attributes:
        am_score: Weighted sum of the recogniser's own scores.
        errors: Word errors.
        log_prob: Ln P of its text by the LMs; None: not computed yet.
        ahead: Ln P of its tokens by the look-ahead, where that stays.
    """

    am_score: float
    errors: int
    log_prob: Optional[float] = None
    ahead: float = 0.0


Lists = Mapping[str, Mapping[Ids, Heard]]
"""Utterance id -> its hypotheses, of all rounds, the best of the last round first."""


class FusionTuning:
    """Rounds of decoding, and the hypotheses of all of them.

    Args:
        search: The recogniser with an LM: a fusion, or another LM of the recogniser's tokens.
        alone: The recogniser without an LM.
        recordings: The development set.
        refs: Utterance id -> words that were said.
        progress: Progress bar around the recordings of a round.
        left_out: Recordings of the set that are left out already.
    """

    def __init__(
        self,
        search: BeamSearch,
        alone: BeamSearch,
        recordings: Recordings,
        refs: Mapping[str, Sequence[str]],
        *,
        progress: Callable[..., Any] = lambda items, **_: items,
        left_out: Optional[LeftOut] = None,
    ):
        self._search, self._alone, self._progress = search, alone, progress
        self._fusion = search.lm if isinstance(search.lm, FusionLM) else None
        self._recordings, self._refs = dict(recordings), refs
        self._left_out = left_out or LeftOut(len(recordings))
        self.lists: Dict[str, Dict[Ids, Heard]] = {utt: {} for utt in recordings}
        self.rounds: List[Round] = []

    def run(self, num_rounds: int) -> Round:
        """Best of some rounds, which follow the search without an LM.

        Lists say little of weights far from those that found them: after a round with more errors
        than the best one, the next goes half as far from this.
        """
        fusion = self._fusion
        start = FusionWeights(0.0, 0.0, 0.0 if fusion is None else fusion.ahead_weight)
        ahead_stays = fusion is not None and fusion.ahead_stays
        self._decode(start)
        best, step = self.rounds[0], 1.0
        for _ in range(num_rounds):
            found = best_weights(self.lists, best.weights, ahead_stays=ahead_stays)
            pairs = zip(best.weights, found, strict=True)
            weights = FusionWeights(*(round(old + step * (new - old), 3) for old, new in pairs))
            if np.allclose(weights, best.weights, rtol=SAME_WEIGHTS, atol=SAME_WEIGHTS):
                break
            self._decode(weights)
            if self.rounds[-1].errors < best.errors:
                best = self.rounds[-1]
            else:
                step /= 2
        return best

    def _decode(self, weights: FusionWeights) -> None:
        """Decode the set by some weights, and keep hypotheses and errors.

        A recording that fails the first time is left out, and later counts as all deleted.
        """
        search = self._search if weights.lm_weight else self._alone
        search.set_weights(lm=weights.lm_weight, length_bonus=weights.penalty)
        if self._fusion is not None:
            self._fusion.ahead_weight = weights.ahead_weight
        errors, seconds = 0, 0.0
        for utt, read in self._progress([*self._recordings.items()], desc="decode", unit="utt"):
            ref, found = self._refs[utt], {}
            try:
                samples, begin = read(), time.perf_counter()
                found = search.with_tokens(samples)
                seconds += time.perf_counter() - begin
            except Exception as error:  # a recogniser may raise any
                if not self.rounds:
                    del self._recordings[utt], self.lists[utt]
                    self._left_out.add(utt, "", error)
                    continue
                LOG.warning("%s counts as deleted: %s", utt, error)
            heard = {
                ids: Heard(hyp.am_score or 0.0, word_errors(ref, hyp.words).errors)
                for ids, hyp in found.items()
            }
            errors += next((item.errors for item in heard.values()), len(ref))
            # a hypothesis of an earlier round keeps its scores
            self.lists[utt] = {**heard, **self.lists[utt]}
            self._score(self.lists[utt])
        self.rounds.append(Round(weights, errors, seconds / len(self._recordings)))
        LOG.info(f"round {len(self.rounds)}: {weights}: {errors} word errors")

    def _score(self, heard: Dict[Ids, Heard]) -> None:
        """Score the new hypotheses of a list by the LMs, and by a look-ahead that stays."""
        new = [ids for ids, item in heard.items() if item.log_prob is None]
        if not new:
            return
        tokens, fusion, ahead = [[list(ids) for ids in new]], self._fusion, [0.0] * len(new)
        if fusion is None:
            log_probs = score_hypotheses(self._search.lm, tokens)[0]
        else:
            log_probs = fusion.text_log_probs(new)
            if fusion.ahead_stays:
                ahead = score_hypotheses(fusion.ahead, tokens)[0]
        for ids, log_prob, own in zip(new, log_probs, ahead, strict=True):
            heard[ids] = heard[ids]._replace(log_prob=log_prob, ahead=own)


def best_weights(lists: Lists, before: FusionWeights, *, ahead_stays: bool) -> FusionWeights:
    """Weights with the fewest word errors on lists, by the line search that rescoring has.

    The recogniser's own scores keep a weight, whatever the lists say.
    """
    num_features = 4 if ahead_stays else 3
    features, errors, sizes = _arrays(lists, num_features)
    problem = make_problem(features, errors, sizes)
    problem = problem._replace(names=tuple((name,) for name in FEATURES[:num_features]))

    def of_features(weights: FusionWeights) -> np.ndarray:
        """Weights of the features."""
        lm, penalty, ahead = weights
        return np.array([1.0, lm, penalty, lm * ahead][:num_features])

    starts = [before, *(before._replace(lm_weight=lm) for lm in STARTS)]
    # the line search counts in units of the features' spread
    vectors = [of_features(start) * problem.spreads for start in starts]
    best = mert(problem, vectors, normalised(vectors[2 if before.lm_weight == 0 else 0]))
    raw = best / np.where(problem.spreads > 0, problem.spreads, np.inf)
    if raw[0] > 0:
        lm, penalty = raw[1] / raw[0], raw[2] / raw[0]
        ahead = max(raw[3] / raw[1], 0.0) if ahead_stays and raw[1] > 0 else before.ahead_weight
        found = FusionWeights(*(round(float(value), 3) for value in (lm, penalty, ahead)))
        least, most = _limits(before)
        if all(low <= value <= high for low, value, high in zip(least, found, most, strict=True)):
            return found
    beyond = np.arange(errors.shape[1]) >= sizes[:, None]

    def errors_of(weights: FusionWeights) -> int:
        """Word errors of the best hypotheses."""
        totals = features @ of_features(weights)
        totals[beyond] = -np.inf
        return int(errors[np.arange(len(errors)), totals.argmax(1)].sum())

    return _best_on_grid(before, errors_of, ahead_stays=ahead_stays)


def _arrays(lists: Lists, num_features: int) -> Tuple[np.ndarray, np.ndarray, np.ndarray]:
    """First `FEATURES` (L, N, F) and errors (L, N) of lists, padded by zeros; sizes (L,)."""
    filled = [list(heard.items()) for heard in lists.values() if heard]
    sizes = np.array([len(items) for items in filled])
    features = np.zeros((len(filled), sizes.max(), num_features))
    errors = np.zeros(features.shape[:2])
    for row, items in enumerate(filled):
        values = [(h.am_score, h.log_prob, len(ids) + 1, h.ahead) for ids, h in items]
        features[row, : len(items)] = np.array(values)[:, :num_features]
        errors[row, : len(items)] = [h.errors for _, h in items]
    return features, errors, sizes


def _best_on_grid(
    before: FusionWeights, errors_of: Callable[[FusionWeights], int], *, ahead_stays: bool
) -> FusionWeights:
    """Weights within the limits with the fewest errors, the mean over neighbours on a grid."""
    from scipy.ndimage import uniform_filter  # takes a while

    least, most = _limits(before)
    lms = np.linspace(0, most.lm_weight, GRID)[1:]
    penalties = np.linspace(least.penalty, most.penalty, 2 * GRID - 1)
    aheads = [before.ahead_weight]
    if ahead_stays:
        aheads = [*np.linspace(least.ahead_weight, most.ahead_weight, GRID // 2)]
    points = [
        FusionWeights(*map(float, point)) for point in itertools.product(lms, penalties, aheads)
    ]
    costs = np.reshape([*map(errors_of, points)], (len(lms), len(penalties), len(aheads)))
    smooth = uniform_filter(costs.astype(float), 3, mode="nearest")
    return FusionWeights(*(round(value, 3) for value in points[int(smooth.argmin())]))


def _limits(before: FusionWeights) -> Tuple[FusionWeights, FusionWeights]:
    """The least and the largest weights that a round may go to from the weights `before`."""
    pairs = zip(FARTHEST, before, strict=True)
    most = FusionWeights(*(max(far, 2 * abs(old)) for far, old in pairs))
    return FusionWeights(-most.lm_weight, -most.penalty, before.ahead_weight / 2), most
