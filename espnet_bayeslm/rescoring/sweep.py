"""The scales with the fewest word errors on a development set."""

from __future__ import annotations

from typing import Mapping, Sequence, Tuple

import numpy as np

from espnet_bayeslm.evaluation.wer import check_same_utterances, word_errors
from espnet_bayeslm.rescoring.rescore import Scales, ScoredList

LMWTS = np.arange(1.0, 30.5, 0.5)
WORD_PENALTIES = np.arange(-2.0, 2.5, 0.5)
DEFAULTS = Scales()


def tune(
    lists: Sequence[ScoredList],
    refs: Mapping[str, Sequence[str]],
    *,
    lmwts: np.ndarray = LMWTS,
    word_penalties: np.ndarray = WORD_PENALTIES,
) -> Scales:
    """Return the scales with the fewest word errors; of equals those nearest to the defaults.

    Args:
        lists: The N-best lists of the development set.
        refs: Utterance id -> words, the same utterances.
        lmwts: The acoustic divisors to try.
        word_penalties: The word insertion penalties to try, in nats.
    """
    check_same_utterances(refs, [item.utt for item in lists])
    grid = np.array([(lmwt, penalty) for lmwt in lmwts for penalty in word_penalties])
    errors = np.zeros(len(grid), dtype=int)
    for item in lists:
        # each hypothesis is aligned once, whatever the size of the grid
        counts = np.array([word_errors(refs[item.utt], hyp).errors for hyp in item.hypotheses])
        errors += counts[item.best(grid[:, 0], grid[:, 1])]

    def rank(index: int) -> Tuple:
        lmwt, penalty = grid[index]
        change = abs(penalty - DEFAULTS.word_penalty), abs(lmwt - DEFAULTS.lmwt)
        return errors[index], *change, lmwt, penalty

    lmwt, penalty = grid[min(range(len(grid)), key=rank)]
    return Scales(float(lmwt), float(penalty))
