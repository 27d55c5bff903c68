"""Interpolated modified Kneser-Ney estimation: counts, discounts, probabilities.

Chen, S. F. and Goodman, J. (1998); counts and conventions are lmplz's (Heafield et al. 2013).
"""

from __future__ import annotations

import logging
from itertools import pairwise
from typing import List, NamedTuple, Sequence

import numpy as np

from espnet_bayeslm.ngram.text import BOS, Corpus
from espnet_bayeslm.utils.errors import InputError

# lmplz's default for --discount_fallback: D1, D2, D3+ with a leading D0
FALLBACK = np.array([0.0, 0.5, 1.0, 1.5])

SMALL_TEXT = (
    "The text is small or artificial: take more text, a lower --order, or --discount_fallback true."
)
"""Remedy where the discounts cannot be estimated."""


class NgramTable(NamedTuple):
    """The G distinct n-grams of one order, sorted by last word, last but one, and so on.

    Attributes:
        words: (G, order) int64, word ids.
        context: (G,) int64, row of the n-gram without its last word, one order below.
        suffix: (G,) int64, row of the n-gram without its first word, one order below.
        raw: (G,) int64, occurrences in the text.
        adjusted: (G,) int64, the count that modified Kneser-Ney discounts.
    """

    words: np.ndarray
    context: np.ndarray
    suffix: np.ndarray
    raw: np.ndarray
    adjusted: np.ndarray


def count_ngrams(corpus: Corpus, *, order: int) -> List[NgramTable]:
    """Tables of orders 1 to `order`.

    An n-gram's key is the row of its suffix and its first word. One sort of T numbers per order
    therefore counts the n-grams, and gives all links between the orders.
    """
    num_words = len(corpus.words)
    table = _count_unigrams(corpus)
    tables = [table]
    ends = np.flatnonzero(corpus.positions >= 1)  # where an n-gram of this order ends
    rows = corpus.ids  # (T,) the row of the n-gram that ends here
    for k in range(2, order + 1):
        # no n-gram reaches over the start of its sentence
        ends = ends[corpus.positions[ends] >= k - 1]
        keys = rows[ends] * num_words + corpus.ids[ends - k + 1]
        keys, first, inverse, raw = np.unique(
            keys, return_index=True, return_inverse=True, return_counts=True
        )
        suffix, first_word = np.divmod(keys, num_words)
        words = np.column_stack([first_word, table.words[suffix]])
        table = NgramTable(words, rows[ends[first] - 1], suffix, raw, raw)
        tables.append(table)
        rows = np.full(len(corpus.ids), -1)
        rows[ends] = inverse
    return _adjust_counts(tables)


def _count_unigrams(corpus: Corpus) -> NgramTable:
    """Table of all words; `<unk>` and `<s>` are there with count 0."""
    raw = np.bincount(corpus.ids, minlength=len(corpus.words))
    raw[BOS] = 0
    root = np.zeros(len(raw), dtype=np.int64)
    return NgramTable(np.arange(len(raw))[:, None], root, root, raw, raw)


def _adjust_counts(tables: List[NgramTable]) -> List[NgramTable]:
    """Tables with adjusted counts: Sec. 3.2, Heafield et al. 2013.

    Below the highest order the adjusted count is the number of distinct words to the left. An
    n-gram that starts with `<s>` has nothing to its left and keeps its raw count.
    """
    adjusted = []
    for table, higher in pairwise(tables):
        left_words = np.bincount(higher.suffix, minlength=len(table.raw))
        starts = table.words[:, 0] == BOS
        adjusted.append(table._replace(adjusted=np.where(starts, table.raw, left_words)))
    return [*adjusted, tables[-1]]


def estimate_discounts(
    tables: Sequence[NgramTable], *, discount_fallback: bool = False
) -> List[np.ndarray]:
    """Discounts (4,) of adjusted counts 0 (always 0), 1, 2 and 3+, per order."""
    discounts = []
    for order, counts in enumerate(_statistics_counts(tables), 1):
        try:
            discounts.append(closed_form_discounts(np.bincount(counts, minlength=5)[:5]))
        except ValueError as error:
            if not discount_fallback:
                raise InputError(
                    f"cannot estimate the discounts of {order}-grams: {error}",
                    remedy=SMALL_TEXT,
                ) from error
            logging.warning(
                "%d-grams: %s; fallback discounts %s", order, error, FALLBACK[1:].tolist()
            )
            discounts.append(FALLBACK)
    return discounts


def closed_form_discounts(count_of_counts: np.ndarray) -> np.ndarray:
    """(0, D1, D2, D3+): Eq. (26), Chen and Goodman 1998.

    Args:
        count_of_counts: (5,) how many n-grams have adjusted count 0 (not used), 1, 2, 3, 4.

    Raises:
        ValueError: A count of counts is 0, or a discount exceeds its count or is negative.
    """
    n = np.asarray(count_of_counts, dtype=np.float64)
    if not n[1:4].all():
        missing = 1 + int(np.argmin(n[1:4]))
        raise ValueError(f"none has adjusted count {missing}")
    y = n[1] / (n[1] + 2 * n[2])
    j = np.arange(1, 4)
    discounts = j - (j + 1) * y * n[2:5] / n[1:4]
    bad = (discounts < 0) | (discounts > j)
    if bad.any():
        worst = int(np.argmax(bad))
        raise ValueError(
            f"the discount of adjusted count {worst + 1} is {discounts[worst]:.4g}, "
            f"outside 0 to {worst + 1}"
        )
    return np.concatenate([[0.0], discounts])


def _statistics_counts(tables: Sequence[NgramTable]) -> List[np.ndarray]:
    """Counts (G,) from which lmplz takes its counts of counts, per order.

    They are the adjusted counts, but lmplz files the very last n-gram of each lower order under
    its raw count. On a small text this one count moves the discounts by more than 1e-4.
    """
    result = []
    for table, higher in pairwise(tables):
        counts = table.adjusted.copy()
        counts[-1] = table.raw[-1]
        result.append(counts)
        # a last n-gram that starts with <s> has no longer one, and ends the chain
        if higher.suffix[-1] != len(table.raw) - 1:
            break
    return [*result, *(table.adjusted for table in tables[len(result) :])]


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
