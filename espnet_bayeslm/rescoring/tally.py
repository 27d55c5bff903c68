"""Errors of a rescoring, counted list by list."""

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


class ListTally:
    """Errors of a rescoring and the calibration of its confidences, counted list by list.

    Args:
        refs: Utterance id -> words of the reference; None: nothing is counted.
        counting: Unit of errors.

    Attributes:
        errors: Errors of the first pass, the control, the new best and the oracle; there is no
            control where some list has none.
    """

    def __init__(
        self,
        refs: Optional[Mapping[str, Sequence[str]]],
        counting: Counting = ALL_WORDS,
    ):
        self.refs, self.counting = refs, counting
        whose = () if refs is None else (FIRST_PASS, CONTROL, RESCORED, ORACLE)
        self.errors = dict.fromkeys(whose, NO_WORDS)
        # the system before (A) -> its segments with the new best (B)
        self._segments: Dict[str, List[Segment]] = {name: [] for name in whose[:2]}
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
        if item.masses is not None and item.confidences is not None:
            correct = words_in_place(item.words, [closest_reading(said, item.words)])[0]
            self._sure.append(np.stack([item.masses, item.confidences, correct]))

    def tests(self) -> Dict[str, Mapsswe]:
        """The first pass or the control (A) -> its test against the new best (B)."""
        return {name: compare_segments(segments) for name, segments in self._segments.items()}

    def calibration(self) -> Optional[Calibration]:
        """Fit of the confidences; None where there are none."""
        if not self._sure:
            return None
        masses, confidences, right = np.concatenate(self._sure, axis=1)
        correct = right.astype(bool)
        return Calibration(
            len(correct),
            calibration_error(masses, correct),
            auroc(masses.tolist(), correct.tolist()),
            calibration_error(confidences, correct),
            auroc(confidences.tolist(), correct.tolist()),
        )
