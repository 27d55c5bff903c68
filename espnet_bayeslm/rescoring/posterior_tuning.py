"""How sharp the posterior over a list is, and how sure its words are: tuned by calibration.

The sharpness is the one whose confidences, once scaled, have the highest likelihood of the words
that are right; the words are those of the best hypotheses. Word errors would be a staircase, lower
or higher by chance at neighbouring values; this is smooth.
"""

from __future__ import annotations

from typing import List, Sequence, Tuple

import numpy as np

from espnet_bayeslm.evaluation.calibration import fit_platt
from espnet_bayeslm.rescoring.bayes_risk import (
    Posterior,
    Words,
    edit_distances,
    least_risk,
    list_posterior,
    word_confidences,
    words_in_place,
)

# Sharpness per inverse spread of the totals within a list
GRID = 2.0 ** np.arange(-4.0, 5.25, 0.25)
# Doublings after which a posterior has nothing but its best hypothesis
MOST_DOUBLINGS = 20


def tune_posterior(
    totals: Sequence[np.ndarray],
    hypotheses: Sequence[Sequence[Words]],
    refs: Sequence[Words],
    best: Sequence[int],
) -> Posterior:
    """Posterior with the best confidences of the words of the best hypotheses.

    Args:
        totals: Of each list the weighted sums of its scores, (N,).
        hypotheses: Of each list their words.
        refs: Of each list the words that were said.
        best: Of each list the place of its best hypothesis.
    """
    rows = list(zip(hypotheses, refs, best, strict=True))
    in_place = [words_in_place(hyps[k], hyps) for hyps, _, k in rows]
    correct = np.concatenate([words_in_place(hyps[k], [ref])[0] for hyps, ref, k in rows])
    if not len(correct):
        return Posterior()
    units = 1.0 / spread(totals)
    found = [_fitted(units * float(sharpness), totals, in_place, correct) for sharpness in GRID]
    return min(found, key=lambda item: item[0])[1]


def spread(totals: Sequence[np.ndarray]) -> float:
    """Root of the mean variance of the possible totals within a list; 1 where they are equal."""
    possible = [values[np.isfinite(values)] for values in totals]
    variances = [values.var() for values in possible if len(values)]
    found = float(np.sqrt(np.mean(variances))) if variances else 0.0
    return found if found > 0 else 1.0


def _fitted(
    sharpness: float,
    totals: Sequence[np.ndarray],
    in_place: Sequence[np.ndarray],
    correct: np.ndarray,
) -> Tuple[float, Posterior]:
    """Negative log-likelihood per word of a sharpness with its best scaling, and both."""
    confidences = [
        word_confidences(list_posterior(values, sharpness), places)
        for values, places in zip(totals, in_place, strict=True)
    ]
    platt, loss = fit_platt(np.concatenate(confidences), correct)
    return loss, Posterior(sharpness, *platt)


def not_above(
    limit: int,
    posterior: Posterior,
    totals: Sequence[np.ndarray],
    hypotheses: Sequence[Sequence[Words]],
    errors: Sequence[np.ndarray],
) -> Tuple[Posterior, int]:
    """Posterior, sharper where needed, whose least risk makes no more errors than a limit.

    Args:
        limit: Errors that the best hypotheses, or the first ones, make.
        posterior: As `tune_posterior` found it.
        totals: Of each list, (N,).
        hypotheses: Of each list their words.
        errors: Of each list the word errors of its hypotheses, (N,).

    Returns:
        The posterior, and the errors.
    """
    distances = [edit_distances(hyps) for hyps in hypotheses]
    tried: List[int] = []
    for _ in range(MOST_DOUBLINGS):
        rows = zip(totals, distances, errors, strict=True)
        chosen = [e[least_risk(list_posterior(t, posterior.sharpness), d)] for t, d, e in rows]
        tried.append(int(sum(chosen)))
        if tried[-1] <= limit:
            break
        posterior = Posterior(2.0 * posterior.sharpness, posterior.slope, posterior.offset)
    return posterior, tried[-1]
