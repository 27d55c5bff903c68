"""Sentences scored as running text: each after the sentences before it."""

from __future__ import annotations

from typing import Any, Iterator, List, Sequence, Tuple

import numpy as np

from espnet_bayeslm.scoring.sequences import token_log_probs, vocab_size


def running_log_probs(
    lm: Any, sequences: Sequence[Sequence[int]], *, context: int, **options: Any
) -> List[np.ndarray]:
    """(n + 1,) float64 ln p of the n tokens and `</s>` of each sentence, in nats.

    Runs of `context` sentences are scored at once, after the `context` sentences before the run:
    a sentence sees at least so many before it, fewer than twice as many, and at the text's start
    what there is. Sentences are joined by `<sos/eos>`, which is `</s>` of the one and `<s>` of the
    next; the LM should have been trained on lines that are joined in this way.

    Args:
        lm: The LM.
        sequences: Token ids of the text's sentences, in order.
        context: How many sentences, from 1.
        **options: Those of `token_log_probs`.
    """
    end = vocab_size(lm) - 1
    windows = list(_windows(len(sequences), context))
    joined = [_joined(sequences[first:last], end) for first, _, last in windows]
    scores: List[np.ndarray] = []
    for (first, begin, last), values in zip(
        windows, token_log_probs(lm, joined, **options), strict=True
    ):
        edges = np.cumsum([len(ids) + 1 for ids in sequences[first:last]])[:-1]
        scores += np.split(values, edges)[begin - first :]
    return scores


def _windows(count: int, context: int) -> Iterator[Tuple[int, int, int]]:
    """Yield (first sentence that is read, first that counts, the one after the last)."""
    for begin in range(0, count, context):
        yield max(0, begin - context), begin, min(begin + context, count)


def _joined(sentences: Sequence[Sequence[int]], end: int) -> List[int]:
    """Tokens of sentences with the end token between them."""
    ids: List[int] = []
    for sentence in sentences:
        ids += [*sentence, end]
    return ids[:-1]
