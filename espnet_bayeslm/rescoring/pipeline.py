"""Scores of lists in, rescored lists out, one by one; nothing is written here."""

from __future__ import annotations

import itertools
import logging
from typing import (
    TYPE_CHECKING,
    Dict,
    Iterable,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
    Union,
)

import numpy as np

from espnet_bayeslm.nbest.normalized_lists import restored
from espnet_bayeslm.nbest.segments import Segment, known_segments
from espnet_bayeslm.nbest.types import NBest
from espnet_bayeslm.rescoring.bayes_risk import (
    Posterior,
    distances_of,
    word_confidences,
    words_in_place,
)
from espnet_bayeslm.rescoring.decision import (
    ListScores,
    ScoredList,
    Weighting,
    written_log_probs,
)
from espnet_bayeslm.rescoring.options import RescoreOptions
from espnet_bayeslm.rescoring.tuning import (
    AS_USUAL,
    Fold,
    Tuned,
    fold_lists,
    hypothesis_errors,
    tune_mixture,
)
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike

if TYPE_CHECKING:
    from espnet_bayeslm.scoring.uncertainty import Uncertainty

Segments = Union[PathLike, Mapping[str, Segment], None]


class RescoredList(NamedTuple):
    """An N-best list with its new scores and its new best hypothesis.

    Attributes:
        nbest: The list before rescoring.
        lm_scores: ln P(words, `</s>`) of each hypothesis under the mixture, in nats.
        word_log_probs: ln p of each word and `</s>`, (n + 1,), for each hypothesis.
        best: Index of the best hypothesis.
        uncertainty: Of each hypothesis how uncertain an LM is of its words, where it is wanted.
        unknown: Of each hypothesis how many words each component does not know, (K,).
        expected_errors: Word errors of the best under the posterior over the list.
        masses: Posterior mass of the hypotheses that have each of its words in place, (n,).
        confidences: Calibrated probability that each of its words is right, (n,); these three
            with the decision "mbr", or where they are wanted.
        control: Index of the best hypothesis by the scales that were tuned without the new LMs'
            scores; None where there are none, or the list lacks a score that they weigh.
        subtracted: Subtracted LM -> ln P of each hypothesis under it, (N,).
    """

    nbest: NBest
    lm_scores: Tuple[float, ...]
    word_log_probs: Tuple[np.ndarray, ...]
    best: int
    uncertainty: Tuple[Uncertainty, ...] = ()
    unknown: Tuple[np.ndarray, ...] = ()
    expected_errors: Optional[float] = None
    masses: Optional[np.ndarray] = None
    confidences: Optional[np.ndarray] = None
    control: Optional[int] = None
    subtracted: Mapping[str, np.ndarray] = {}

    @property
    def words(self) -> Tuple[str, ...]:
        """The words of the best hypothesis, as they were scored."""
        return self.nbest.hypotheses[self.best].words

    @property
    def text(self) -> Tuple[str, ...]:
        """The words of the best hypothesis as the list has them, before any normalisation."""
        return self.text_of(self.best)

    def text_of(self, place: int) -> Tuple[str, ...]:
        """The words of a hypothesis as the list has them, before any normalisation."""
        return restored(self.nbest).hypotheses[place].words


def rescored_list(scores: ListScores, weighting: Weighting) -> RescoredList:
    """Rescored list: new scores, the choice by them, and confidences where they are wanted."""
    nbest, scales = scores.nbest, weighting.scales
    words = scores.mixed(weighting.weights, weighting.combine)
    names = weighting.names if scales.of_each_lm else ()
    subtracted = scores.of_lms(weighting.subtracted, first=len(weighting.weights))
    log_probs = np.array(written_log_probs(words))
    scored = ScoredList(nbest, log_probs, scores.of_lms(names), subtracted)
    control, own = scales.control, None
    if control is not None and dict(control.features or ()).keys() <= scored.features().keys():
        own = scored.choice(control, weighting.decision)
    found = RescoredList(
        nbest,
        tuple(scored.log_probs.tolist()),
        words,
        scored.choice(scales, weighting.decision),
        scores.uncertainty,
        scores.unknown,
        control=own,
        subtracted=subtracted,
    )
    if not weighting.sure:
        return found
    posterior, scaling = scored.posterior(scales), (scales.posterior or Posterior()).scaling
    hyps = [hyp.words for hyp in nbest.hypotheses]
    masses = word_confidences(posterior, words_in_place(found.words, hyps))
    return found._replace(
        expected_errors=float(distances_of(found.words, hyps) @ posterior),
        masses=masses,
        confidences=scaling.calibrated(masses),
    )


class _Tuner(NamedTuple):
    """Tuning on all lists of a rescoring, or on some of them."""

    refs: Mapping[str, Sequence[str]]
    groups: Optional[Mapping[str, str]]
    options: RescoreOptions
    weighting: Weighting

    def folds(self, nbests: Sequence[NBest]) -> List[np.ndarray]:
        """Places of the lists of each fold; no folds without the option."""
        count = self.options.folds
        if count is None:
            return []
        found = fold_lists(nbests, count, self.groups)
        if len(found) < 2:
            raise InputError(
                f"--folds {count}: the {len(nbests)} lists are one list, recording or speaker",
                remedy="Give lists of several, which can be divided.",
            )
        return found

    def fold_errors(self, lists: Sequence[ListScores], weighting: Weighting) -> Fold:
        """Errors of the lists of a fold."""
        refs = {item.nbest.utt: self.refs[item.nbest.utt] for item in lists}
        errors = hypothesis_errors([item.nbest for item in lists], refs, self.options.counting)
        found = [rescored_list(item, weighting) for item in lists]
        first = sum(int(counts[0]) for counts in errors)
        rescored = sum(int(counts[r.best]) for counts, r in zip(errors, found, strict=True))
        pairs = zip(errors, (item.control for item in found), strict=True)
        own = [int(counts[place]) for counts, place in pairs if place is not None]
        control = sum(own) if len(own) == len(lists) else None
        return Fold(weighting.scales, len(lists), first, rescored, control)

    def tune(self, lists: Sequence[ListScores]) -> Tuple[Weighting, Tuned]:
        """Weighting that is tuned on some lists, and the result of the tuning."""
        refs, before = self.refs, self.weighting
        if len(lists) < len(refs):
            refs = {item.nbest.utt: refs[item.nbest.utt] for item in lists}
        tuned = tune_mixture(lists, refs, before, groups=self.groups, options=self.options)
        # where mbr was wanted and max decides, there are confidences all the same
        found = before._replace(scales=tuned.scales, confidence=before.sure)
        return found.deciding(None), tuned


class Rescoring:
    """An iterator of rescored lists.

    Args:
        scores: The lists with their scores, one by one.
        weighting: How these are weighed.
        options: How scales are tuned.
        refs: Utterance id -> words: tune the scales on them. All lists are kept in memory then.

    Attributes:
        weighting: How scores are weighed, as tuned.
        tuned: Result of the tuning, where there was one.
    """

    def __init__(
        self,
        scores: Iterable[ListScores],
        weighting: Weighting,
        options: RescoreOptions = AS_USUAL,
        *,
        refs: Optional[Mapping[str, Sequence[str]]] = None,
    ):
        self.tuned: Optional[Tuned] = None
        self.weighting = weighting
        if refs is None:
            if weighting.sure and weighting.scales.posterior is None:
                logging.warning("the posterior over the lists is not tuned: its sharpness is 1")
            self._rescored = map(rescored_list, scores, itertools.repeat(weighting))
            return
        lists = list(scores)
        tuner = _Tuner(refs, recordings_of(options.segments), options, weighting)
        self.weighting, self.tuned = tuner.tune(lists)
        used = [self.weighting] * len(lists)
        counts = []
        for fold in tuner.folds([item.nbest for item in lists]):
            rest = np.setdiff1d(np.arange(len(lists)), fold)
            of_others, _ = tuner.tune([lists[k] for k in rest])
            for k in fold:
                used[k] = of_others
            counts.append(tuner.fold_errors([lists[k] for k in fold], of_others))
        self.tuned = self.tuned._replace(folds=tuple(counts))
        self._rescored = map(rescored_list, lists, used)

    def __iter__(self) -> Iterator[RescoredList]:
        return self

    def __next__(self) -> RescoredList:
        return next(self._rescored)


def recordings_of(segments: Segments) -> Optional[Dict[str, str]]:
    """Utterance id -> recording; None where it is not known, or there is one only."""
    known = known_segments(segments) or {}
    recordings = {utt: segment.recording for utt, segment in known.items()}
    return recordings if len(set(recordings.values())) > 1 else None


def own_refs(lists: Iterable[NBest]) -> Dict[str, Sequence[str]]:
    """The references that lists hold, by utterance id."""
    refs: Dict[str, Sequence[str]] = {}
    for item in lists:
        if item.ref is None:
            raise InputError(
                f"the list of {item.utt!r} has no reference to tune on",
                remedy="Give references of all lists, or lists that hold them (jsonl's `ref`).",
            )
        refs[item.utt] = item.ref
    return refs
