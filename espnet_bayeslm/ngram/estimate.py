"""Interpolated modified Kneser-Ney probabilities and back-off weights."""

from __future__ import annotations

from typing import List, NamedTuple, Sequence

import numpy as np

from espnet_bayeslm.ngram.counts import NgramTable
from espnet_bayeslm.ngram.text import BOS


class BackoffTable(NamedTuple):
    """Probabilities of the G n-grams of one order, in their table's rows.

    Attributes:
        prob: (G,) float64, interpolated p(last word | words before it).
        backoff: (G,) float64, weight of the lower order after this n-gram; 1 if none follows.
    """

    prob: np.ndarray
    backoff: np.ndarray


def estimate_ngram(
    tables: Sequence[NgramTable], *, discounts: Sequence[np.ndarray]
) -> List[BackoffTable]:
    """Interpolated model: Sec. 3.3 and 3.4, Heafield et al. 2013.

        p(w | c) = (a(c w) - D(a(c w))) / sum_x a(c x) + gamma(c) p(w | c without first word)

    and the unigram is interpolated with the uniform distribution over the words, `</s>` and
    `<unk>`, which is all that `<unk>` gets.

    Args:
        tables: Orders 1 to n.
        discounts: Per order (4,), the discounts D of adjusted counts 0, 1, 2, 3+.
    """
    # as if of order 0: one empty context; <s> is never predicted and does not count
    lower = np.array([1 / (len(tables[0].raw) - 1)])
    probs, gammas = [], []
    for table, discount in zip(tables, discounts, strict=True):
        taken = discount[np.minimum(table.adjusted, 3)]
        total = np.bincount(table.context, weights=table.adjusted, minlength=len(lower))
        total_taken = np.bincount(table.context, weights=taken, minlength=len(lower))
        gamma = np.divide(total_taken, total, out=np.ones(len(total)), where=total > 0)
        discounted = (table.adjusted - taken) / total[table.context]
        lower = discounted + gamma[table.context] * lower[table.suffix]
        probs.append(lower)
        gammas.append(gamma)
    probs[0][BOS] = 1.0  # lmplz's convention: <s> costs nothing
    # the gammas of one order are the back-off weights of the order below
    backoffs = [*gammas[1:], np.ones_like(probs[-1])]
    return [BackoffTable(*pair) for pair in zip(probs, backoffs, strict=True)]
