"""Errors and unknown words of a rescoring, counted list by list."""

from __future__ import annotations

from typing import Dict, List, Mapping, Optional, Sequence

import numpy as np

from espnet_bayeslm.evaluation.alignment import align
from espnet_bayeslm.evaluation.calibration import auroc, calibration_error
from espnet_bayeslm.evaluation.mapsswe import Mapsswe, Segment, compare_segments, utterance_segments
from espnet_bayeslm.evaluation.wer import NO_WORDS, ErrorCounts, word_errors
from espnet_bayeslm.nbest.types import NBest
from espnet_bayeslm.rescoring.bayes_risk import words_in_place

KINDS = ("first pass", "rescored", "oracle")


class ErrorTally:
    """Word errors of the first pass, the new best and the oracle, list by list.

    Args:
        refs: Utterance id -> words.
    """

    def __init__(self, refs: Mapping[str, Sequence[str]]):
        self.refs = refs
        self._parts: Dict[str, Dict[str, ErrorCounts]] = {}
        self._segments: Dict[str, List[Segment]] = {}

    def add(self, nbest: NBest, best: Sequence[str], *, part: str = "") -> None:
        """Count the errors of a list, which is in some part of a set."""
        ref = self.refs[nbest.utt]
        counts = [word_errors(ref, hyp.words) for hyp in nbest.hypotheses]
        errors = self._parts.setdefault(part, dict.fromkeys(KINDS, NO_WORDS))
        errors["first pass"] += counts[0]
        errors["rescored"] += word_errors(ref, best)
        errors["oracle"] += min(counts, key=lambda count: count.errors)
        aligned = (align(ref, words) for words in (nbest.hypotheses[0].words, best))
        self._segments.setdefault(part, []).extend(utterance_segments(*aligned))

    def tests(self) -> Dict[str, Mapsswe]:
        """Part -> test of the first pass (A) against the new best (B)."""
        return {part: compare_segments(found) for part, found in self._segments.items()}

    def parts(self) -> Dict[str, Dict[str, ErrorCounts]]:
        """Part -> whose errors -> their counts; what was tuned on comes before what was not."""
        found = self._parts or {"": dict.fromkeys(KINDS, NO_WORDS)}
        return {part: found[part] for part in sorted(found, reverse=True)}


class ConfidenceTally:
    """How well the confidences of words fit the references, list by list.

    Args:
        refs: Utterance id -> words.
    """

    def __init__(self, refs: Mapping[str, Sequence[str]]):
        self.refs = refs
        self._parts: Dict[str, List[np.ndarray]] = {}

    def add(
        self,
        utt: str,
        best: Sequence[str],
        masses: Optional[np.ndarray],
        confidences: Optional[np.ndarray],
        *,
        part: str = "",
    ) -> None:
        """Count the words of a list's best hypothesis, where they have confidences.

        Args:
            utt: Utterance id.
            best: The n words.
            masses: Posterior masses, (n,).
            confidences: The same calibrated, (n,).
            part: Of the set.
        """
        if masses is None or confidences is None:
            return
        correct = words_in_place(tuple(best), [tuple(self.refs[utt])])[0]
        self._parts.setdefault(part, []).append(np.stack([masses, confidences, correct]))

    def parts(self) -> Dict[str, Dict[str, float]]:
        """Part -> calibration error and AUROC, of the posterior masses and of the confidences."""
        found: Dict[str, Dict[str, float]] = {}
        for part in sorted(self._parts, reverse=True):
            masses, confidences, right = np.concatenate(self._parts[part], axis=1)
            correct = right.astype(bool)
            found[part] = {"words": len(correct)}
            for name, values in (("posterior", masses), ("confidence", confidences)):
                found[part][f"ece_of_{name}"] = calibration_error(values, correct)
                area = auroc(values.tolist(), correct.tolist())
                if area is not None:
                    found[part][f"auroc_of_{name}"] = area
        return found


class UnknownTally:
    """Words of the first pass and of the new best that a component does not know.

    Args:
        names: The components' names.
    """

    def __init__(self, names: Sequence[str]):
        self.names = list(names)
        self.first = np.zeros(len(self.names), dtype=int)
        self.best = np.zeros(len(self.names), dtype=int)

    def add(self, unknown: Sequence[np.ndarray], best: int) -> None:
        """Count those of a list.

        Args:
            unknown: Of each hypothesis how many words each component does not know, (K,); none
                where that is not known.
            best: Place of the new best hypothesis.
        """
        if unknown:
            self.first += unknown[0]
            self.best += unknown[best]

    def lines(self) -> List[str]:
        """One line for each component that does not know all words."""
        rows = zip(self.names, self.first, self.best, strict=True)
        return [
            f"unknown to {name}: {first} words of the first pass, {best} of the new best"
            for name, first, best in rows
            if first or best
        ]
