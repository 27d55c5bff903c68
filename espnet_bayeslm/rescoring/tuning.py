"""Scales and mixture weights with the fewest word errors, and the errors of a rescoring."""

from __future__ import annotations

from typing import Collection, List, Mapping, NamedTuple, Sequence, Tuple

import numpy as np

from espnet_bayeslm.evaluation.wer import (
    NO_WORDS,
    Words,
    check_same_utterances,
    word_errors,
)
from espnet_bayeslm.nbest.types import NBest
from espnet_bayeslm.rescoring.combination import candidates
from espnet_bayeslm.rescoring.decision import Scales
from espnet_bayeslm.rescoring.list_scores import ListScores
from espnet_bayeslm.rescoring.sweep import Sweep, hypothesis_errors, sweep
from espnet_bayeslm.utils.files import PathLike


class Tuned(NamedTuple):
    """What was chosen on a development set.

    Attributes:
        scales: The scales.
        weights: The components' weights, (K,).
        sweep: The errors over the grid of scales, at these weights.
        tried: (weights, fewest errors over the grid) of each mixture that was tried.
    """

    scales: Scales
    weights: np.ndarray
    sweep: Sweep
    tried: List[Tuple[np.ndarray, int]]


def tune_mixture(
    lists: Sequence[ListScores],
    refs: Mapping[str, Sequence[str]],
    weights: np.ndarray,
    *,
    combine: str,
    tune_weights: bool,
) -> Tuned:
    """Return the scales, and weights if asked for, with the fewest word errors.

    Of equals the weights nearest to those given, then the scales nearest to the defaults.

    Args:
        lists: The N-best lists of the development set, with their scores.
        refs: Utterance id -> words, the same utterances.
        weights: The components' weights, (K,).
        combine: How they combine the scores.
        tune_weights: Whether shares of the first component are tried.
    """
    pairs = [(item.nbest.utt, [hyp.words for hyp in item.nbest.hypotheses]) for item in lists]
    errors = hypothesis_errors(pairs, refs)
    sweeps = []
    for tried in candidates(weights) if tune_weights else [weights]:
        found = sweep([item.scored(tried, combine) for item in lists], errors)
        sweeps.append((int(found.errors.min()), float(abs(tried - weights).sum()), tried, found))
    _, _, chosen, best = min(sweeps, key=lambda item: item[:2])
    return Tuned(best.best(), chosen, best, [(tried, fewest) for fewest, _, tried, _ in sweeps])


class ErrorTally:
    """Word errors of the first pass, the new best and the oracle, list by list.

    Args:
        refs: Utterance id -> words.
        path: Their file, for messages.
    """

    def __init__(self, refs: Mapping[str, Words], path: PathLike):
        self.refs, self.path = refs, path
        self.errors = dict.fromkeys(("first pass", "rescored", "oracle"), NO_WORDS)

    def add(self, nbest: NBest, best: Sequence[str]) -> None:
        """Count the errors of a list."""
        ref = self.refs[nbest.utt]
        counts = [word_errors(ref, hyp.words) for hyp in nbest.hypotheses]
        self.errors["first pass"] += counts[0]
        self.errors["rescored"] += word_errors(ref, best)
        self.errors["oracle"] += min(counts, key=lambda count: count.errors)

    def check(self, utts: Collection[str], nbest_path: PathLike) -> None:
        """Raise an InputError where other utterances have references than have lists."""
        check_same_utterances(self.refs, utts, ref_path=self.path, hyp_path=nbest_path)
