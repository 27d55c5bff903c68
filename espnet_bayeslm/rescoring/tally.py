"""Errors and unknown words of a rescoring, counted list by list."""

from __future__ import annotations

from typing import Dict, List, Mapping, Sequence

import numpy as np

from espnet_bayeslm.evaluation.wer import NO_WORDS, ErrorCounts, word_errors
from espnet_bayeslm.nbest.types import NBest

KINDS = ("first pass", "rescored", "oracle")


class ErrorTally:
    """Word errors of the first pass, the new best and the oracle, list by list.

    Args:
        refs: Utterance id -> words.
    """

    def __init__(self, refs: Mapping[str, Sequence[str]]):
        self.refs = refs
        self._parts: Dict[str, Dict[str, ErrorCounts]] = {}

    def add(self, nbest: NBest, best: Sequence[str], *, part: str = "") -> None:
        """Count the errors of a list, which is in some part of a set."""
        ref = self.refs[nbest.utt]
        counts = [word_errors(ref, hyp.words) for hyp in nbest.hypotheses]
        errors = self._parts.setdefault(part, dict.fromkeys(KINDS, NO_WORDS))
        errors["first pass"] += counts[0]
        errors["rescored"] += word_errors(ref, best)
        errors["oracle"] += min(counts, key=lambda count: count.errors)

    def parts(self) -> Dict[str, Dict[str, ErrorCounts]]:
        """Part -> whose errors -> their counts; what was tuned on comes before what was not."""
        found = self._parts or {"": dict.fromkeys(KINDS, NO_WORDS)}
        return (
            {part: found[part] for part in sorted(found, reverse=True)} if len(found) > 1 else found
        )


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
