"""Lists with the scores of LMs, the new best hypothesis of each, and their errors."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from espnet_bayeslm.evaluation.bias_lists import BiasLists
from espnet_bayeslm.evaluation.biased_words import PartErrors, part_errors
from espnet_bayeslm.evaluation.comparison import (
    Mapsswe,
    SegmentErrors,
    compare_segments,
    utterance_segments,
)
from espnet_bayeslm.evaluation.wer import (
    ALL_WORDS,
    FIRST_PASS,
    NO_WORDS,
    ORACLE,
    Counting,
    align,
    closest_reading,
    word_errors,
)
from espnet_bayeslm.mixture.facts import MixtureFacts
from espnet_bayeslm.nbest.types import NBest
from espnet_bayeslm.rescoring.bayes_risk import (
    ListPosterior,
    auroc,
    calibration_error,
    distances_of,
    edit_distances,
    least_risk,
    list_posterior,
    normalized_cross_entropy,
    risk_coverage,
    word_confidences,
    words_in_place,
)
from espnet_bayeslm.rescoring.features import (
    FIRST_WINS,
    LM,
    SUBTRACTED,
    Features,
    Totals,
    hypothesis_features,
    totals,
)
from espnet_bayeslm.rescoring.scales import Scales
from espnet_bayeslm.scoring.interpolation import combined
from espnet_bayeslm.utils.errors import InputError

if TYPE_CHECKING:
    from espnet_bayeslm.scoring.uncertainty import Uncertainty

# Digits after the point of a written cost. Choices are made with what is written, so that they
# can be made again from the files.
DIGITS = 6
# Of words, at which the share of wrong ones is told
PERCENTS = range(10, 101, 10)
# Files of a rescoring: costs of hypotheses and words, the new best, what is known of words
COSTS, WORD_COSTS, BEST, BEST_TRN = "lmwt.nn", "lmwt.nn.words", "text", "trn"
WITHOUT_LM, WITHOUT_BIAS = "text_without_lm", "text_without_bias"
SUBTRACTED_COSTS, BEST_LISTS = "lmwt.subtracted", "best"
UNCERTAINTY, CONFIDENCE, CTM = "uncertainty.ndjson", "confidence.ndjson", "ctm"
# Name in `UNCERTAINTY` -> attribute of `scoring.uncertainty.Uncertainty`
MEASURES = {"log_prob": "log_probs", "entropy": "entropy"}
MEASURES |= {"mutual_information": "mutual_information", "variance": "variance"}
# Names of hypotheses in tables; the control are those of scales without the new LMs' scores
NO_LM, NO_BIAS, RESCORED = "without the LM", "without the bias list", "rescored"


@dataclasses.dataclass(frozen=True, eq=False)
class ScoredList:
    """An N-best list with the scores of its words under new LMs.

    Attributes:
        nbest: The list.
        log_probs: Of each hypothesis ln p under each component, (K, n + 1), the last `</s>`; then
            under each subtracted LM.
        uncertainty: Of each hypothesis how uncertain an LM is of its words, where it is wanted.
        given: Further features of the hypotheses, (N,), by name.
    """

    nbest: NBest
    log_probs: Tuple[np.ndarray, ...]
    uncertainty: Tuple[Uncertainty, ...] = ()
    given: Features = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def distances(self) -> np.ndarray:
        """Word errors of each hypothesis with each other one as the reference, (N, N)."""
        return edit_distances([hyp.words for hyp in self.nbest.hypotheses])

    def mixed(self, mixture: MixtureFacts) -> Tuple[np.ndarray, ...]:
        """The mixture's score of each word and `</s>` of each hypothesis, (n + 1,), in nats."""
        weights = mixture.weights
        if not len(weights):  # no LM is used: one that knows nothing
            return tuple(np.zeros(rows.shape[1]) for rows in self.log_probs)
        return tuple(combined(rows[: len(weights)], weights) for rows in self.log_probs)

    def lm_scores(
        self, mixture: MixtureFacts, mixed: Sequence[np.ndarray] = (), *, of_each: bool = False
    ) -> Dict[str, np.ndarray]:
        """Ln P of each hypothesis, (N,), under the mixture and subtracted LMs, by its feature.

        With `of_each` there are those under each LM of the mixture too. `mixed` are the mixture's
        scores, where they are known.
        """
        names = [f"{LM}.{name}" if of_each else "" for name in mixture.names]
        names += [f"{SUBTRACTED}.{row.name}" for row in mixture.subtracted]
        words = {LM: mixed or self.mixed(mixture)}
        for k, name in enumerate(names):
            if name:
                words[name] = tuple(rows[k] for rows in self.log_probs)
        # choices are made with the sums of the words' costs as their file has them
        written = {
            name: [-round(float((-row).round(DIGITS).sum()), DIGITS) for row in rows]
            for name, rows in words.items()
        }
        return {name: np.array(row) for name, row in written.items()}

    def features(self, lm_scores: Optional[Features]) -> Features:
        """Features of the hypotheses, (N,) each, by name.

        None in place of the scores of LMs: those of a control, to which the LMs and all that is
        given beside them say nothing.
        """
        if lm_scores is None:
            return hypothesis_features(self.nbest, {LM: np.zeros(len(self.nbest.hypotheses))})
        return hypothesis_features(self.nbest, {**lm_scores, **self.given})

    def totals(self, features: Features, scales: Scales, *, once: bool = False) -> Totals:
        """Score that is maximised, (N,): logits of a posterior over the list, up to a factor.

        With `once` a hypothesis that repeats an earlier one is impossible.
        """
        try:
            found = totals(features, scales.weights(features))
        except InputError as error:
            raise InputError(f"utterance {self.nbest.utt[:80]!r}: {error}") from error
        if not once:
            return found
        is_new = np.diff(np.maximum.accumulate(self.nbest.numbered()), prepend=-1) > 0
        return found._replace(values=np.where(is_new, found.values, -np.inf))

    def choice(self, features: Features, scales: Scales, decision: str = "max") -> int:
        """Index of the best hypothesis at some scales, the first of equals.

        Weights that leave lists as they came do so with every decision.
        """
        found = self.totals(features, scales)
        if decision == "mbr" and scales.features != FIRST_WINS:
            sharpness = (scales.posterior or ListPosterior()).sharpness
            posterior = list_posterior(self.totals(features, scales, once=True).values, sharpness)
            return least_risk(posterior, self.distances)
        return int(found.best())


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
        unbiased: Index of the best hypothesis by the scales without a bias list, as `control`.
        totals: Score of each hypothesis that is maximised, (N,).
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
    totals: np.ndarray = np.empty(0)
    unbiased: Optional[int] = None

    @property
    def words(self) -> Tuple[str, ...]:
        """The words of the best hypothesis, as they were scored."""
        return self.nbest.hypotheses[self.best].words

    @property
    def text(self) -> Tuple[str, ...]:
        """The words of the best hypothesis as the list has them, before any normalisation."""
        return (self.nbest.source or self.nbest).hypotheses[self.best].words

    def best_hypotheses(self, size: int) -> NBest:
        """The list with so many hypotheses at most: the new best, then the highest totals.

        They are as they came, before any normalisation.
        """
        nbest = self.nbest.source or self.nbest
        others = (k for k in np.argsort(-self.totals, kind="stable").tolist() if k != self.best)
        kept = [nbest.hypotheses[k] for k in [self.best, *others][:size]]
        # a reader would sort by the ranks that they had
        extras = ({k: v for k, v in hyp.extra.items() if k != "rank"} for hyp in kept)
        pairs = zip(kept, extras, strict=True)
        return dataclasses.replace(
            nbest, hypotheses=tuple(dataclasses.replace(hyp, extra=own) for hyp, own in pairs)
        )


def choose(
    item: ScoredList, mixture: MixtureFacts, scales: Scales, *, confidence: bool = False
) -> RescoredList:
    """Rescored list: new scores, the choice by them, and confidences where they are wanted."""
    nbest, mixed = item.nbest, item.mixed(mixture)
    scores = item.lm_scores(mixture, mixed, of_each=scales.of_each_lm)
    features = item.features(scores)
    best_of_control, best_of_unbiased = (
        item.choice(features, other, scales.decision)
        if other is not None and dict(other.features or ()).keys() <= features.keys()
        else None
        for other in (scales.control, scales.unbiased)
    )
    rescored = RescoredList(
        nbest,
        tuple(scores[LM].tolist()),
        mixed,
        item.choice(features, scales, scales.decision),
        item.uncertainty,
        control=best_of_control,
        subtracted={r.name: scores[f"{SUBTRACTED}.{r.name}"] for r in mixture.subtracted},
        unbiased=best_of_unbiased,
        totals=item.totals(features, scales).values,
    )
    if not confidence:
        return rescored
    tuned = scales.posterior or ListPosterior()
    posterior = list_posterior(item.totals(features, scales, once=True).values, tuned.sharpness)
    hyps = [hyp.words for hyp in nbest.hypotheses]
    masses = word_confidences(posterior, words_in_place(rescored.words, hyps))
    return rescored._replace(
        expected_errors=float(distances_of(rescored.words, hyps) @ posterior),
        masses=masses,
        confidences=tuned.scaling.calibrated(masses),
    )


class ListTally:
    """Errors of a rescoring and the calibration of its confidences, counted list by list.

    Without references, by utterance id, nothing is counted.

    Attributes:
        errors: Errors of the first pass, the controls, the new best and the oracle; there is no
            control where some list has none.
        parts: System -> errors of unbiased and of biased words, where there are bias lists.
    """

    def __init__(
        self,
        refs: Optional[Mapping[str, Sequence[str]]],
        counting: Counting = ALL_WORDS,
        bias: Optional[BiasLists] = None,
    ):
        self.refs, self.counting, self.bias = refs, counting, bias
        whose = () if refs is None else (FIRST_PASS, NO_LM, NO_BIAS, RESCORED, ORACLE)
        self.errors = dict.fromkeys(whose, NO_WORDS)
        none = PartErrors(NO_WORDS, NO_WORDS)
        # of words, as they are counted
        has_parts = bias is not None and counting.unit == "word"
        self.parts = dict.fromkeys(whose[:-1] if has_parts else (), none)
        # the system before (A) -> its segments with the new best (B)
        self._segments: Dict[str, List[SegmentErrors]] = {name: [] for name in whose[:3]}
        # posterior masses, confidences, and 1 where the word is right
        self._sure: List[np.ndarray] = []

    def add(self, item: RescoredList) -> None:
        """Count a list."""
        if self.refs is None:
            return
        said = self.refs[item.nbest.utt]
        ref = self.counting.units(said)
        hyps = [self.counting.units(hyp.words) for hyp in item.nbest.hypotheses]
        counts = [word_errors(ref, hyp) for hyp in hyps]
        oracle = min(range(len(hyps)), key=lambda place: counts[place].errors)
        places = {FIRST_PASS: 0, RESCORED: item.best, ORACLE: oracle}
        for name, place in ((NO_LM, item.control), (NO_BIAS, item.unbiased)):
            if place is not None:
                places[name] = place
                continue
            for counted in (self.errors, self._segments, self.parts):
                counted.pop(name, None)  # type: ignore[attr-defined]
        for name in self.errors:
            self.errors[name] += counts[places[name]]
        biased = () if self.bias is None else self.bias.of(item.nbest.utt).words
        for name, before in self.parts.items():
            parts = part_errors(ref, hyps[places[name]], biased)
            pairs = zip(before, parts, strict=True)
            self.parts[name] = PartErrors(*(old + new for old, new in pairs))
        best = align(ref, hyps[item.best])
        for name, segments in self._segments.items():
            segments += utterance_segments(align(ref, hyps[places[name]]), best)
        if item.masses is not None and item.confidences is not None:
            correct = words_in_place(item.words, [closest_reading(said, item.words)])[0]
            self._sure.append(np.stack([item.masses, item.confidences, correct]))

    def tests(self) -> Dict[str, Mapsswe]:
        """The first pass or the control (A) -> its test against the new best (B).

        The better one comes last: its test is that of the LM.
        """
        names = sorted(self._segments, key=lambda name: -self.errors[name].errors)
        return {name: compare_segments(self._segments[name]) for name in names}

    def calibration(self) -> Dict[str, float]:
        """Calibration error (`ece`), NCE and AUROC of posterior masses and of confidences, by name.

        And the share of wrong words among those of the highest confidence, `risk_at_N` of N
        percent. Empty without confidences; without NCE and AUROC where all words are right, or
        none is.
        """
        measures: Dict[str, float] = {}
        if self._sure:
            *measured, right = np.concatenate(self._sure, axis=1)
            correct = right.astype(bool)
            measures["words"] = len(correct)
            for name, values in zip(("posterior", "confidence"), measured, strict=True):
                measures[f"ece_of_{name}"] = calibration_error(values, correct)
                if (nce := normalized_cross_entropy(values, correct)) is not None:
                    measures[f"nce_of_{name}"] = nce
                if (area := auroc(values.tolist(), correct.tolist())) is not None:
                    measures[f"auroc_of_{name}"] = area
            risks = risk_coverage(measured[1], correct)
            for percent in PERCENTS if len(risks) else ():
                measures[f"risk_at_{percent}"] = float(risks[-(-percent * len(risks) // 100) - 1])
        return measures


def calibration_text(measures: Mapping[str, float]) -> str:
    """Measures before and after the scaling of confidences, for people."""
    text = "calibration error {ece_of_posterior:.4f} -> {ece_of_confidence:.4f}"
    if "auroc_of_posterior" in measures:
        text += ", NCE {nce_of_posterior:.4f} -> {nce_of_confidence:.4f}"
        text += ", AUROC {auroc_of_posterior:.4f} -> {auroc_of_confidence:.4f}"
    return text.format(**measures)
