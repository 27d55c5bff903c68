"""Log-probabilities of token sequences under a neural LM, in batches."""

from __future__ import annotations

import logging
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

import numpy as np
import torch

from espnet_bayeslm.scoring.lms import (
    MAX_TOKENS,
    Ids,
    check_tokens,
    mean_log_probs,
    num_draws,
    require_tree,
    token_ids,
    tokens_with_logits,
    vocab_size,
)
from espnet_bayeslm.scoring.normalizer import Normalizer
from espnet_bayeslm.scoring.output_layer import log_probs_of_logits
from espnet_bayeslm.scoring.prefix_trees import batch_tree, tree_batches, tree_log_probs
from espnet_bayeslm.utils.cli import progress

__all__ = ["MAX_TOKENS", "score_hypotheses", "token_log_probs", "vocab_size"]


def score_hypotheses(
    lm: Any,
    hypotheses: Sequence[Sequence[Sequence[int]]],
    *,
    max_tokens: int = MAX_TOKENS,
    num_samples: int = 0,
    normalizer: Optional[Normalizer] = None,
) -> List[List[float]]:
    """Return ln P(hypothesis, `</s>`), in nats, for each hypothesis of each utterance.

    Args:
        lm: An `AbsLM`; its last token is `<sos/eos>`.
        hypotheses: Token ids per utterance and hypothesis, without `<sos/eos>`: sequences of
            integers, or tensors or arrays of them.
        max_tokens: The most distinct prefixes of a batch; a longer hypothesis goes alone. An LM
            that is not ours gets a quarter of it, padding counted, since it holds all logits.
        num_samples: 0 for the LM's mean weights; else the number of weight draws over which
            each token's probability is averaged, the same draws for all hypotheses.
        normalizer: Take its mean for the ln Z of every context, which then is not computed
            (self-normalised scoring); see `measure_normalizer`.

    Raises:
        InputError: A token is no integer or out of the vocabulary, or the LM has no weights to
            draw.
    """
    flat = [ids for utterance in hypotheses for ids in utterance]
    options: Dict[str, Any] = dict(num_samples=num_samples, normalizer=normalizer)
    scores = iter(token_log_probs(lm, flat, max_tokens=max_tokens, **options))
    return [[float(next(scores).sum()) for _ in utterance] for utterance in hypotheses]


def token_log_probs(
    lm: Any,
    sequences: Sequence[Sequence[int]],
    *,
    max_tokens: int = MAX_TOKENS,
    num_samples: int = 0,
    normalizer: Optional[Normalizer] = None,
) -> List[np.ndarray]:
    """Return (n + 1,) float64 ln p of the n tokens and `</s>` of each sequence, in nats.

    Equal sequences are scored once. Arguments as in `score_hypotheses`.
    """
    known = token_ids(sequences)
    unique = list(dict.fromkeys(known))
    check_tokens(unique, vocab_size(lm))
    if normalizer is not None:
        require_tree(lm, "self-normalised scoring")
    draws = max(num_draws(lm, num_samples), 1)
    logging.info("scoring %d distinct of %d token sequences", len(unique), len(sequences))
    with progress(desc="scoring", unit="seq", total=len(unique) * draws) as bar:

        def score(_: int) -> Iterator[Tuple[Ids, np.ndarray]]:
            for item in _log_probs(lm, unique, max_tokens, normalizer):
                yield item
                bar.update(1)

        scores = mean_log_probs(lm, num_samples, score)
    return [scores[ids] for ids in known]


def _log_probs(
    lm: Any, sequences: List[Ids], max_tokens: int, normalizer: Optional[Normalizer]
) -> Iterator[Tuple[Ids, np.ndarray]]:
    """Yield each sequence, in an order of their own, and its (n + 1,) ln p."""
    if hasattr(lm, "tree_outputs"):
        log_z = None if normalizer is None else normalizer.mean
        sequences.sort()
        for group in tree_batches(sequences, max_tokens=max_tokens):
            found = tree_log_probs(lm, *batch_tree(lm, group), log_z=log_z)
            yield from zip(group, found, strict=True)
        return
    sequences.sort(key=lambda ids: (len(ids), ids))
    for batch in _batches(sequences, tokens_with_logits(max_tokens)):
        yield from zip(batch, _batch_log_probs(lm, batch), strict=True)


def _batches(sequences: Sequence[Ids], max_tokens: int) -> Iterator[Sequence[Ids]]:
    """Yield runs of sequences, sorted by length, whose padded size is at most `max_tokens`."""
    start = 0
    for end, ids in enumerate(sequences):
        if end > start and (end + 1 - start) * (len(ids) + 1) > max_tokens:
            yield sequences[start:end]
            start = end
    if start < len(sequences):
        yield sequences[start:]


def _batch_log_probs(lm: torch.nn.Module, batch: Sequence[Ids]) -> Iterator[np.ndarray]:
    """Yield (n + 1,) ln p of each sequence of a batch."""
    device = next(lm.parameters()).device
    eos = vocab_size(lm) - 1
    lengths = [len(ids) + 1 for ids in batch]
    # inputs: (B, L), <sos> w1 w2; targets: (B, L), w1 w2 <eos>; padded with 0, as in ESPnet
    inputs = torch.zeros(len(batch), max(lengths), dtype=torch.long)
    targets = torch.zeros_like(inputs)
    for row, ids in enumerate(batch):
        inputs[row, : len(ids) + 1] = torch.tensor((eos, *ids))
        targets[row, : len(ids) + 1] = torch.tensor((*ids, eos))
    # logits: (B, L, V)
    logits, _ = lm(inputs.to(device), None)
    log_probs = log_probs_of_logits(logits, targets.to(device))[0].double().cpu().numpy()
    for row, length in enumerate(lengths):
        yield log_probs[row, :length]
