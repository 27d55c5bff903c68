"""Errors and unknown words of a rescoring, counted list by list."""

from __future__ import annotations

import dataclasses
from typing import Dict, Iterable, List, Mapping, Optional, Sequence, Set

import numpy as np

from espnet_bayeslm.evaluation.alignment import align
from espnet_bayeslm.evaluation.calibration import auroc, calibration_error
from espnet_bayeslm.evaluation.counting import ALL_WORDS, Counting
from espnet_bayeslm.evaluation.mapsswe import Mapsswe, Segment, compare_segments, utterance_segments
from espnet_bayeslm.evaluation.markup import closest_reading
from espnet_bayeslm.evaluation.wer import NO_WORDS, ErrorCounts, word_errors
from espnet_bayeslm.rescoring.bayes_risk import words_in_place
from espnet_bayeslm.rescoring.pipeline import RescoredList
from espnet_bayeslm.rescoring.tuning import CONTROL

FIRST_PASS, RESCORED, ORACLE = "first pass", "rescored", "oracle"


class ErrorTally:
    """Errors of the first pass, the new best and the oracle, list by list."""

    def __init__(self, refs: Mapping[str, Sequence[str]], counting: Counting = ALL_WORDS):
        self.refs, self.counting = refs, counting
        self._parts: Dict[str, Dict[str, ErrorCounts]] = {}
        # part -> the system before (A) -> its segments with the new best (B)
        self._segments: Dict[str, Dict[str, List[Segment]]] = {}
        self._without_control: Set[str] = set()

    def add(self, item: RescoredList) -> None:
        """Count the errors of a list."""
        ref = self.counting.units(self.refs[item.nbest.utt])
        hyps = [self.counting.units(hyp.words) for hyp in item.nbest.hypotheses]
        counts = [word_errors(ref, hyp) for hyp in hyps]
        oracle = min(range(len(hyps)), key=lambda place: counts[place].errors)
        places = {FIRST_PASS: 0, CONTROL: item.control, RESCORED: item.best, ORACLE: oracle}
        if item.control is None:
            self._without_control.add(item.part)
        errors = self._parts.setdefault(item.part, dict.fromkeys(places, NO_WORDS))
        segments = self._segments.setdefault(item.part, {FIRST_PASS: [], CONTROL: []})
        best = align(ref, hyps[item.best])
        for name, place in places.items():
            if place is not None:
                errors[name] += counts[place]
                if name in segments:
                    segments[name] += utterance_segments(align(ref, hyps[place]), best)

    def tests(self) -> Dict[str, Dict[str, Mapsswe]]:
        """Part -> the first pass or the control (A) -> its test against the new best (B)."""
        return {
            part: {name: compare_segments(segments[name]) for name in self._known(part, segments)}
            for part, segments in self._segments.items()
        }

    def parts(self) -> Dict[str, Dict[str, ErrorCounts]]:
        """Part -> whose errors -> their counts; what was tuned on comes before what was not."""
        if not self._parts:
            return {"": dict.fromkeys((FIRST_PASS, RESCORED, ORACLE), NO_WORDS)}
        return {
            part: {name: self._parts[part][name] for name in self._known(part, self._parts[part])}
            for part in sorted(self._parts, reverse=True)
        }

    def _known(self, part: str, names: Iterable[str]) -> List[str]:
        """Names of what every list of a part has."""
        return [name for name in names if name != CONTROL or part not in self._without_control]


@dataclasses.dataclass(frozen=True)
class Calibration:
    """Fit of posterior masses, and of confidences scaled from them, to the words that are right.

    Attributes:
        words: Number of words.
        ece_of_posterior: Calibration error of the masses.
        auroc_of_posterior: Area under the ROC curve of the masses; None if all words are right,
            or all are wrong.
        ece_of_confidence: Calibration error of the confidences.
        auroc_of_confidence: Area under the ROC curve of the confidences.
    """

    words: int
    ece_of_posterior: float
    auroc_of_posterior: Optional[float]
    ece_of_confidence: float
    auroc_of_confidence: Optional[float]

    def __str__(self) -> str:
        """Measures before and after the scaling, for people."""
        text = f"calibration error {self.ece_of_posterior:.4f} -> {self.ece_of_confidence:.4f}"
        if self.auroc_of_posterior is None:
            return text
        return f"{text}, AUROC {self.auroc_of_posterior:.4f} -> {self.auroc_of_confidence:.4f}"


class ConfidenceTally:
    """Calibration of word confidences against references, counted list by list."""

    def __init__(self, refs: Mapping[str, Sequence[str]]):
        self.refs = refs
        self._parts: Dict[str, List[np.ndarray]] = {}

    def add(self, item: RescoredList) -> None:
        """Count the words of a list's best hypothesis, where they have confidences."""
        if item.masses is None or item.confidences is None:
            return
        ref = closest_reading(self.refs[item.nbest.utt], item.words)
        correct = words_in_place(item.words, [ref])[0]
        rows = np.stack([item.masses, item.confidences, correct])
        self._parts.setdefault(item.part, []).append(rows)

    def parts(self) -> Dict[str, Calibration]:
        """Part -> how well its confidences fit."""
        return {part: self._calibration(part) for part in sorted(self._parts, reverse=True)}

    def _calibration(self, part: str) -> Calibration:
        masses, confidences, right = np.concatenate(self._parts[part], axis=1)
        correct = right.astype(bool)
        return Calibration(
            len(correct),
            calibration_error(masses, correct),
            auroc(masses.tolist(), correct.tolist()),
            calibration_error(confidences, correct),
            auroc(confidences.tolist(), correct.tolist()),
        )


class UnknownTally:
    """Words of the first pass and of the new best that a component does not know."""

    def __init__(self, names: Sequence[str], counting: Counting = ALL_WORDS):
        self.names, self.unit = list(names), counting.noun
        self.first = np.zeros(len(self.names), dtype=int)
        self.best = np.zeros(len(self.names), dtype=int)

    def add(self, item: RescoredList) -> None:
        """Count those of a list, where they are known."""
        if item.unknown:
            self.first += item.unknown[0]
            self.best += item.unknown[item.best]

    def lines(self) -> List[str]:
        """One line for each component that does not know all words."""
        rows = zip(self.names, self.first, self.best, strict=True)
        return [
            f"unknown to {name}: {first} {self.unit} of the first pass, {best} of the new best"
            for name, first, best in rows
            if first or best
        ]
