"""Sentences scored as running text: each after the sentences before it."""

from __future__ import annotations

from typing import Any, List, Sequence

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
    begins = range(0, len(sequences), context)
    texts = [sequences[max(0, begin - context) : begin + context] for begin in begins]
    joined = [[token for ids in text for token in (*ids, end)][:-1] for text in texts]
    scores: List[np.ndarray] = []
    for text, values in zip(texts, token_log_probs(lm, joined, **options), strict=True):
        edges = np.cumsum([len(ids) + 1 for ids in text])[:-1]
        # what was read before is all that there is before, or `context` sentences
        scores += np.split(values, edges)[min(context, len(scores)) :]
    return scores
