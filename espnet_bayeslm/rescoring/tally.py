"""Errors and unknown words of a rescoring, counted list by list."""

from __future__ import annotations

import dataclasses
from typing import Dict, List, Mapping, Optional, Sequence

import numpy as np

from espnet_bayeslm.evaluation.alignment import align
from espnet_bayeslm.evaluation.calibration import auroc, calibration_error
from espnet_bayeslm.evaluation.counting import ALL_WORDS, Counting
from espnet_bayeslm.evaluation.mapsswe import Mapsswe, Segment, compare_segments, utterance_segments
from espnet_bayeslm.evaluation.markup import closest_reading
from espnet_bayeslm.evaluation.wer import NO_WORDS, word_errors
from espnet_bayeslm.rescoring.bayes_risk import words_in_place
from espnet_bayeslm.rescoring.pipeline import RescoredList
from espnet_bayeslm.rescoring.tuning import CONTROL

FIRST_PASS, RESCORED, ORACLE = "first pass", "rescored", "oracle"


class ErrorTally:
    """Errors of the first pass, the new best and the oracle, list by list."""

    def __init__(self, refs: Mapping[str, Sequence[str]], counting: Counting = ALL_WORDS):
        self.refs, self.counting = refs, counting
        self.errors = dict.fromkeys((FIRST_PASS, CONTROL, RESCORED, ORACLE), NO_WORDS)
        """Whose errors -> their counts; there is no control where some list has none."""
        # the system before (A) -> its segments with the new best (B)
        self._segments: Dict[str, List[Segment]] = {FIRST_PASS: [], CONTROL: []}

    def add(self, item: RescoredList) -> None:
        """Count the errors of a list."""
        ref = self.counting.units(self.refs[item.nbest.utt])
        hyps = [self.counting.units(hyp.words) for hyp in item.nbest.hypotheses]
        counts = [word_errors(ref, hyp) for hyp in hyps]
        oracle = min(range(len(hyps)), key=lambda place: counts[place].errors)
        places = {FIRST_PASS: 0, RESCORED: item.best, ORACLE: oracle}
        if item.control is None:
            self.errors.pop(CONTROL, None)
            self._segments.pop(CONTROL, None)
        else:
            places[CONTROL] = item.control
        for name in self.errors:
            self.errors[name] += counts[places[name]]
        best = align(ref, hyps[item.best])
        for name, segments in self._segments.items():
            segments += utterance_segments(align(ref, hyps[places[name]]), best)

    def tests(self) -> Dict[str, Mapsswe]:
        """The first pass or the control (A) -> its test against the new best (B)."""
        return {name: compare_segments(segments) for name, segments in self._segments.items()}


@dataclasses.dataclass(frozen=True)
class Calibration:
    """Fit of posterior masses, and of confidences scaled from them, to the words that are right."""

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
        self._rows: List[np.ndarray] = []

    def add(self, item: RescoredList) -> None:
        """Count the words of a list's best hypothesis, where they have confidences."""
        if item.masses is None or item.confidences is None:
            return
        ref = closest_reading(self.refs[item.nbest.utt], item.words)
        correct = words_in_place(item.words, [ref])[0]
        self._rows.append(np.stack([item.masses, item.confidences, correct]))

    def calibration(self) -> Optional[Calibration]:
        """Fit of the confidences; None where there are none."""
        if not self._rows:
            return None
        masses, confidences, right = np.concatenate(self._rows, axis=1)
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
