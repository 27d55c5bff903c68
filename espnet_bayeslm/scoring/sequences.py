"""Ln p of sequences of token ids under any LM of ESPnet's or this package."""

from __future__ import annotations

import operator
from typing import Any, List, Optional, Sequence

import numpy as np
import torch

from espnet_bayeslm.scoring import MAX_TOKENS
from espnet_bayeslm.scoring.tree_lm import ESPnetTreeLM, Passage
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.log import LOG


def score_hypotheses(
    lm: Any,
    hypotheses: Sequence[Sequence[Sequence[int]]],
    *,
    max_tokens: int = MAX_TOKENS,
    num_samples: int = 0,
) -> List[List[float]]:
    """Ln P(hypothesis, `</s>`), in nats, for each hypothesis of each utterance.

    Args:
        lm: An `AbsLM`; its last token is `<sos/eos>`.
        hypotheses: Token ids per utterance and hypothesis, without `<sos/eos>`: sequences of
            integers, or tensors or arrays of them.
        max_tokens: The most distinct prefixes of a batch; a longer hypothesis goes alone. An LM of
            another package gets a quarter of it, padding counted, since it holds all logits.
        num_samples: Number of weight samples over which each token's probability is averaged, the
            same samples for all hypotheses; 0: the posterior mean.

    Raises:
        InputError: A token is no integer or out of the vocabulary, or the LM has no weights to
            sample.
    """
    flat = [ids for utterance in hypotheses for ids in utterance]
    scores = iter(token_log_probs(lm, flat, max_tokens=max_tokens, num_samples=num_samples))
    return [[float(next(scores).sum()) for _ in utterance] for utterance in hypotheses]


def token_log_probs(
    lm: Any,
    sequences: Sequence[Sequence[int]],
    *,
    max_tokens: int = MAX_TOKENS,
    num_samples: int = 0,
    openings: Optional[torch.Tensor] = None,
) -> List[np.ndarray]:
    """(n + 1,) float64 ln p of the n tokens and `</s>` of each sequence, in nats.

    Equal sequences are scored once. With `openings`, (V,) bool, True for the tokens that end the
    word before them, results are (2, n + 1): the second row is ln P(one of these tokens) in the
    same contexts.
    """
    tree_lm = ESPnetTreeLM(lm, max_tokens=max_tokens)
    passages = passages_of(tree_lm, sequences)
    LOG.info("scoring %d distinct of %d token sequences", len(set(passages)), len(passages))
    return tree_lm.log_probs(passages, num_samples=num_samples, openings=openings)


def passages_of(tree_lm: ESPnetTreeLM, sequences: Sequence[Any]) -> List[Passage]:
    """Passages `<sos/eos> w1 .. wn <sos/eos>` of sequences of token ids.

    The ids may be tensors or arrays of integers.
    """
    end, found = tree_lm.vocab_size - 1, []
    for ids in sequences:
        values = ids.tolist() if hasattr(ids, "tolist") else ids
        try:
            tokens = tuple(map(operator.index, values))
        except TypeError:
            raise InputError(
                f"expected a sequence of token ids, got {str(ids)[:80]}",
                remedy="Give whole numbers: a list, or a tensor or array of integers.",
            ) from None
        found.append(Passage(0, (end, *tokens, end), len(tokens) + 1))
    return found
