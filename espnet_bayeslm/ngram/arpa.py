"""ARPA files: the border where probabilities become log10."""

from __future__ import annotations

import re
from itertools import repeat
from typing import IO, Iterable, Iterator, List, Sequence

import numpy as np

from espnet_bayeslm.ngram.counts import NgramTable
from espnet_bayeslm.ngram.estimate import BackoffTable

# ARPA's word for "never", should a discount of exactly 0 leave nothing to back off with
_LOG10_ZERO = -99.0


def _log10(values: np.ndarray) -> List[float]:
    """Log10, at most 0 and never -0 or -inf."""
    floor = np.maximum(values, 10.0**_LOG10_ZERO)
    return (np.minimum(np.log10(floor), 0.0) + 0.0).tolist()


def arpa_lines(
    tables: Sequence[NgramTable], probs: Sequence[BackoffTable], *, words: Sequence[str]
) -> Iterator[str]:
    r"""Yield the lines of an ARPA file, each with its end.

    Args:
        tables: The n-grams of orders 1 to n.
        probs: Their probabilities and back-off weights.
        words: The word of each id.
    """
    yield "\\data\\\n"
    yield from (f"ngram {k}={len(table.raw)}\n" for k, table in enumerate(tables, 1))
    text = np.array(words, dtype=object)
    for k, (table, prob) in enumerate(zip(tables, probs, strict=True), 1):
        yield f"\n\\{k}-grams:\n"
        ngrams = map(" ".join, text[table.words])
        # the highest order has no back-off weights
        backoffs = (f"\t{b:.7g}" for b in _log10(prob.backoff)) if k < len(tables) else repeat("")
        lines = zip(_log10(prob.prob), ngrams, backoffs)  # noqa: B905 (repeat has no end)
        yield from (f"{p:.7g}\t{ngram}{backoff}\n" for p, ngram, backoff in lines)
    yield "\n\\end\\\n"


def copy_header(lines: Iterable[bytes], output: IO[bytes]) -> List[int]:
    r"""Numbers of n-grams per order that the header states, after copying it.

    Args:
        lines: An ARPA file's; those up to `\1-grams:` are taken.
        output: Where they go.
    """
    counts = []
    for line in lines:
        output.write(line)
        if line.startswith(b"\\1-grams:"):
            break
        count = re.fullmatch(rb"ngram \d+=(\d+)\s*", line)
        if count:
            counts.append(int(count[1]))
    return counts
