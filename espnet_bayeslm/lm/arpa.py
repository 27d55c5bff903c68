"""ARPA files in arrays.

The arrays hold KenLM's numbers, in float32, and sums are taken in KenLM's order: the results equal
KenLM's bit for bit.
"""

from __future__ import annotations

from array import array
from typing import Any, Dict, List, Sequence, Set, Tuple

import numpy as np

from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.files import PathLike
from espnet_bayeslm.utils.ngram_files import arpa_ngrams, arpa_order, log10_of

UNK = 0
# KenLM takes both for the unknown word.
_UNKNOWN = (b"<unk>", b"<UNK>")
# What KenLM gives the unknown word where the file has none.
_MISSING_UNK = -100.0


# Word ids (G, k) int64 of the n-grams of order k; log10 p of the last word, and of the back-off
# weight, (G,) float32.
Ngrams = Tuple[np.ndarray, np.ndarray, np.ndarray]


def read_arpa(path: PathLike, wanted: Set[bytes]) -> Tuple[Dict[bytes, int], List[Ngrams]]:
    """N-grams of an ARPA file, perhaps compressed, of the words `wanted` and the unknown word.

    Returns:
        Ids of the words that the file has, `UNK` for the unknown word; the n-grams by order.
    """
    ids = dict.fromkeys(_UNKNOWN, UNK)
    parts = [(array("q"), array("f"), array("f")) for _ in range(arpa_order(path))]
    for line in arpa_ngrams(path):
        order, fields = line.order, line.fields
        if order == 1 and fields[1] in wanted:
            ids.setdefault(fields[1], len(ids) + 1 - len(_UNKNOWN))
        found = [ids.get(word, -1) for word in fields[1 : order + 1]]
        if -1 not in found:
            words, probs, backoffs = parts[order - 1]
            words.extend(found)
            probs.append(log10_of(fields[0], path, line.number))
            backoff = fields[order + 1 :]
            backoffs.append(log10_of(backoff[0], path, line.number) if backoff else 0.0)
    return ids, [
        (np.array(words).reshape(-1, k), np.array(probs), np.array(backoffs))
        for k, (words, probs, backoffs) in enumerate(parts, 1)
    ]


class ArpaTable:
    """The n-gram of an ARPA file over a vocabulary of V words.

    A tree with the first words of the n-grams at its top: the n-grams of order k are sorted by
    (row of the first k - 1 words in order k - 1, last word), two numbers in one key.

    Args:
        path: The file.
        words: (V,), the words that are predicted.
        history: (V,), the words as they stand in a context.

    Attributes:
        order: The highest order.
        known: (V,) bool, True if the n-gram knows the word; any other word counts as `<unk>`.
    """

    def __init__(self, path: PathLike, *, words: Sequence[str], history: Sequence[str]):
        ids, orders = read_arpa(path, {word.encode() for word in (*words, *history)})
        self.order = len(orders)
        self._predicted = np.array([ids.get(word.encode(), UNK) for word in words])
        self._history = [ids.get(word.encode(), UNK) for word in history]
        self.known = self._predicted != UNK
        self._num_words = max(ids.values()) + 1
        self._unigrams = np.full(self._num_words, _MISSING_UNK, np.float32)
        backoffs = np.zeros(self._num_words, np.float32)
        (words_of, probs, own), *longer = orders
        self._unigrams[words_of[:, 0]], backoffs[words_of[:, 0]] = probs, own
        # of orders 1 to n; of order 1 the row is the word, and there is nothing to look up
        self._keys = [np.arange(self._num_words)]
        self._probs = [self._unigrams]
        self._backoffs = [backoffs]
        for ngrams in longer:
            self._add_order(*ngrams, path)

    def _add_order(
        self, words: np.ndarray, probs: np.ndarray, backoffs: np.ndarray, path: PathLike
    ) -> None:
        rows = words[:, 0]
        for level, column in enumerate(words.T[1:-1], 1):
            wanted = rows * self._num_words + column
            keys = self._keys[level]
            rows = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
            if len(wanted) and (len(keys) == 0 or not np.array_equal(keys[rows], wanted)):
                raise InputError(
                    "the context of an n-gram is not among the n-grams of the file",
                    path=path,
                    remedy="Estimate it again, as `bayeslm ngram` does.",
                )
        # KenLM takes the first of n-grams that are there twice, and so does unique
        keys, chosen = np.unique(rows * self._num_words + words[:, -1], return_index=True)
        self._keys.append(keys)
        self._probs.append(probs[chosen])
        self._backoffs.append(backoffs[chosen])

    def _row(self, words: Sequence[int]) -> int:
        """Row of an n-gram in its order, -1 where it is not in the file."""
        row = words[0]
        for keys, word in zip(self._keys[1:], words[1:], strict=False):
            key = row * self._num_words + word
            row = int(keys.searchsorted(key))
            if row == len(keys) or keys[row] != key:
                return -1
        return row

    def _children(self, order: int, row: int) -> slice:
        """Rows in order + 1 of the n-grams that go on from a row of an order."""
        ends = (row * self._num_words, (row + 1) * self._num_words)
        return slice(*self._keys[order].searchsorted(ends))

    def state(self, context: Sequence[int]) -> Tuple[int, ...]:
        """Rows of the context's last word, last two words, and so on; words are indices.

        Long ones that change nothing are left out: different contexts may have one state.
        """
        words = [self._history[i] for i in context[max(len(context) + 1 - self.order, 0) :]]
        rows = [self._row(words[start:]) for start in range(len(words) - 1, -1, -1)]
        while rows:
            order, row = len(rows), rows[-1]
            children = self._children(order, row)
            if row >= 0 and (children.start < children.stop or self._backoffs[order - 1][row]):
                break
            rows.pop()
        return tuple(rows)

    def log10_probs(self, state: Tuple[int, ...]) -> np.ndarray:
        """log10 p of each word of the vocabulary after a context, (V,) float32."""
        values = self._unigrams.copy()
        for order, row in enumerate(state, 1):
            if row >= 0:
                # all back off; probabilities of the file replace the result
                values += self._backoffs[order - 1][row]
                found = self._children(order, row)
                values[self._keys[order][found] - row * self._num_words] = self._probs[order][found]
        return values[self._predicted]

    def __deepcopy__(self, memo: Any) -> ArpaTable:
        """Table itself: nothing changes it."""
        return self
