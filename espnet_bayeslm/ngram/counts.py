"""Raw and adjusted counts of all n-grams of a text, order by order."""

from __future__ import annotations

from itertools import pairwise
from typing import List, NamedTuple

import numpy as np

from espnet_bayeslm.ngram.text import BOS, Corpus


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

    Each n-gram is found by its suffix's row and its first word, so that one sort of T numbers
    per order counts it, and all links between the orders come with it.

    Args:
        corpus: The text.
        order: Highest order, 1 or more.
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

    Below the highest order this is the number of distinct words to the left, except that an
    n-gram which starts with `<s>` has nothing to its left and keeps its raw count.
    """
    adjusted = []
    for table, higher in pairwise(tables):
        left_words = np.bincount(higher.suffix, minlength=len(table.raw))
        starts = table.words[:, 0] == BOS
        adjusted.append(table._replace(adjusted=np.where(starts, table.raw, left_words)))
    return [*adjusted, tables[-1]]
