"""Scores of lists in, rescored lists out, one by one; nothing is written here."""

from __future__ import annotations

import itertools
import logging
from typing import (
    TYPE_CHECKING,
    Dict,
    Iterable,
    Iterator,
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
from espnet_bayeslm.rescoring.decision import ListScores, Weighting
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
Refs = Mapping[str, Sequence[str]]


class RescoredList(NamedTuple):
    """An N-best list with its new scores and its new best hypothesis.

    Attributes:
        nbest: The list before rescoring.
        lm_scores: ln P(words, `</s>`) of each hypothesis under the mixture, in nats.
        word_log_probs: ln p of each word and `</s>`, (n + 1,), for each hypothesis.
        best: Index of the best hypothesis.
        uncertainty: Of each hypothesis how uncertain an LM is of its words, where it is wanted.
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
    scales, scored = weighting.scales, scores.scored(weighting)
    control, own = scales.control, None
    if control is not None and dict(control.features or ()).keys() <= scored.features().keys():
        own = scored.choice(control, weighting.decision)
    found = RescoredList(
        scores.nbest,
        tuple(scored.log_probs.tolist()),
        scores.mixed(weighting),
        scored.choice(scales, weighting.decision),
        scores.uncertainty,
        control=own,
        subtracted=scored.subtracted,
    )
    if not weighting.sure:
        return found
    posterior, scaling = scored.posterior(scales), (scales.posterior or Posterior()).scaling
    hyps = [hyp.words for hyp in scores.nbest.hypotheses]
    masses = word_confidences(posterior, words_in_place(found.words, hyps))
    return found._replace(
        expected_errors=float(distances_of(found.words, hyps) @ posterior),
        masses=masses,
        confidences=scaling.calibrated(masses),
    )


class Rescoring:
    """An iterator of rescored lists.

    Args:
        scores: The lists with their scores, one by one.
        weighting: How these are weighed.
        options: How scales are tuned.
        refs: References to tune the scales on; all lists are kept in memory then.

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
        refs: Optional[Refs] = None,
    ):
        self.tuned: Optional[Tuned] = None
        self.weighting = weighting
        self._rescored: Iterator[RescoredList]
        if refs is None:
            if weighting.sure and weighting.scales.posterior is None:
                logging.warning("the posterior over the lists is not tuned: its sharpness is 1")
            self._rescored = map(rescored_list, scores, itertools.repeat(weighting))
            return
        lists, groups = list(scores), recordings_of(options.segments)
        nbests = [item.nbest for item in lists]

        def tune(some: Sequence[ListScores], refs: Refs) -> Tuple[Weighting, Tuned]:
            tuned = tune_mixture(some, refs, weighting, groups=groups, options=options)
            # where mbr was wanted and max decides, there are confidences all the same
            found = weighting._replace(scales=tuned.scales, confidence=weighting.sure)
            return found.deciding(None), tuned

        self.weighting, self.tuned = tune(lists, refs)
        if options.folds is None:
            self._rescored = map(rescored_list, lists, itertools.repeat(self.weighting))
            return
        errors = hypothesis_errors(nbests, refs, options.counting)
        done: Dict[int, RescoredList] = {}
        counts = []
        for places in fold_lists(nbests, options.folds, groups):
            rest = [lists[k] for k in np.setdiff1d(np.arange(len(lists)), places)]
            of_others, _ = tune(rest, {item.nbest.utt: refs[item.nbest.utt] for item in rest})
            done.update((k, rescored_list(lists[k], of_others)) for k in places.tolist())
            pairs = [(errors[k], done[k]) for k in places.tolist()]
            own = [counted[r.control] for counted, r in pairs if r.control is not None]
            counts.append(
                Fold(
                    of_others.scales,
                    len(places),
                    sum(int(counted[0]) for counted, _ in pairs),
                    sum(int(counted[r.best]) for counted, r in pairs),
                    int(sum(own)) if len(own) == len(places) else None,
                )
            )
        self.tuned = self.tuned._replace(folds=tuple(counts))
        self._rescored = iter([done[k] for k in range(len(lists))])

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
