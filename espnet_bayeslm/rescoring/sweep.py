"""The scales with the fewest word errors on a development set."""

from __future__ import annotations

from typing import Iterable, List, Mapping, NamedTuple, Sequence, Tuple

import numpy as np

from espnet_bayeslm.evaluation.wer import check_same_utterances, word_errors
from espnet_bayeslm.rescoring.decision import Scales, ScoredList

LMWTS = np.arange(1.0, 30.5, 0.5)
WORD_PENALTIES = np.arange(-2.0, 2.5, 0.5)
DEFAULTS = Scales()


class Sweep(NamedTuple):
    """Word errors of a development set over a grid of scales.

    Attributes:
        lmwts: The acoustic divisors, (A,).
        word_penalties: The word insertion penalties in nats, (B,).
        errors: (A, B).
    """

    lmwts: np.ndarray
    word_penalties: np.ndarray
    errors: np.ndarray

    def best(self) -> Scales:
        """Return the scales with the fewest errors; of equals those nearest to the defaults."""

        def rank(index: Tuple[int, ...]) -> Tuple:
            lmwt, penalty = self.lmwts[index[0]], self.word_penalties[index[1]]
            change = abs(penalty - DEFAULTS.word_penalty), abs(lmwt - DEFAULTS.lmwt)
            return self.errors[index], *change, lmwt, penalty

        row, column = min(np.ndindex(*self.errors.shape), key=rank)
        return Scales(float(self.lmwts[row]), float(self.word_penalties[column]))


def hypothesis_errors(
    lists: Iterable[Tuple[str, Sequence[Sequence[str]]]], refs: Mapping[str, Sequence[str]]
) -> List[np.ndarray]:
    """Return the word errors of each hypothesis of each list, (N,); each is aligned once.

    Args:
        lists: Utterance and hypotheses.
        refs: Utterance id -> words, the same utterances.
    """
    items = list(lists)
    check_same_utterances(refs, [utt for utt, _ in items])
    return [np.array([word_errors(refs[utt], hyp).errors for hyp in hyps]) for utt, hyps in items]


def sweep(
    lists: Sequence[ScoredList],
    errors: Sequence[np.ndarray],
    *,
    lmwts: np.ndarray = LMWTS,
    word_penalties: np.ndarray = WORD_PENALTIES,
) -> Sweep:
    """Return the errors over a grid of scales.

    Args:
        lists: The N-best lists of the development set.
        errors: Those of each hypothesis, by `hypothesis_errors`.
        lmwts: The acoustic divisors to try.
        word_penalties: The word insertion penalties to try, in nats.
    """
    grid = np.array([(lmwt, penalty) for lmwt in lmwts for penalty in word_penalties])
    total = np.zeros(len(grid), dtype=int)
    for item, counts in zip(lists, errors, strict=True):
        total += counts[item.best(grid[:, 0], grid[:, 1])]
    return Sweep(lmwts, word_penalties, total.reshape(len(lmwts), len(word_penalties)))


def tune(
    lists: Sequence[ScoredList], refs: Mapping[str, Sequence[str]], **grid: np.ndarray
) -> Scales:
    """Return the scales with the fewest word errors; of equals those nearest to the defaults.

    Args:
        lists: The N-best lists of the development set.
        refs: Utterance id -> words, the same utterances.
        **grid: `lmwts` and `word_penalties` of `sweep`.
    """
    errors = hypothesis_errors(((item.utt, item.hypotheses) for item in lists), refs)
    return sweep(lists, errors, **grid).best()
