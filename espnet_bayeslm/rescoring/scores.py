"""Log-probabilities of token sequences under a neural LM, in batches."""

from __future__ import annotations

import contextlib
import logging
from typing import Any, Iterator, List, Sequence, Tuple

import numpy as np
import torch

from espnet_bayeslm.utils.cli import progress
from espnet_bayeslm.utils.errors import InputError

MAX_TOKENS = 2048
Sequences = Sequence[Tuple[int, ...]]


def score_hypotheses(
    lm: Any,
    hypotheses: Sequence[Sequence[Sequence[int]]],
    *,
    max_tokens: int = MAX_TOKENS,
    num_samples: int = 0,
) -> List[List[float]]:
    """Return ln P(hypothesis, `</s>`), in nats, for each hypothesis of each utterance.

    Args:
        lm: An `AbsLM`; its last token is `<sos/eos>`.
        hypotheses: Token ids per utterance and hypothesis, without `<sos/eos>`.
        max_tokens: The most tokens (with padding) of a batch; a longer hypothesis goes alone.
        num_samples: 0 for the LM's mean weights; else the number of weight draws over which
            each token's probability is averaged, the same draws for all hypotheses.

    Raises:
        InputError: A token is out of the vocabulary, or the LM has no weights to draw.
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
) -> List[np.ndarray]:
    """Return (n + 1,) float64 ln p of the n tokens and `</s>` of each sequence, in nats.

    Equal sequences are scored once. Arguments as in `score_hypotheses`.
    """
    unique = list(dict.fromkeys(tuple(ids) for ids in sequences))
    _check_tokens(unique, vocab_size(lm))
    unique.sort(key=lambda ids: (len(ids), ids))  # the result must not depend on the input's order
    draws = _num_draws(lm, num_samples)
    logging.info("scoring %d distinct of %d token sequences", len(unique), len(sequences))
    bar = progress(desc="scoring", unit="seq", total=len(unique) * max(draws, 1))
    mean = [np.full(len(ids) + 1, -np.inf) for ids in unique]
    with contextlib.closing(bar), _evaluating(lm):
        for index in range(max(draws, 1)):
            with lm.sampled(index) if draws else contextlib.nullcontext():
                first = 0
                for batch in _batches(unique, max_tokens):
                    for log_probs in _batch_log_probs(lm, batch):
                        mean[first] = np.logaddexp(mean[first], log_probs - np.log(max(draws, 1)))
                        first += 1
                    bar.update(len(batch))
    scores = dict(zip(unique, mean, strict=True))
    return [scores[tuple(ids)] for ids in sequences]


def vocab_size(lm: torch.nn.Module) -> int:
    """Return the number of tokens of an LM; the last of them is `<sos/eos>`."""
    size = getattr(lm, "vocab_size", None)
    if size is None:
        embeddings = (m for m in lm.modules() if isinstance(m, torch.nn.Embedding))
        size = next(embeddings).num_embeddings
    return int(size)


def _num_draws(lm: Any, num_samples: int) -> int:
    """Return how many draws are needed: none for our LMs where nothing is random."""
    if num_samples < 0:
        raise InputError(f"num_samples is {num_samples} where 0 or more was expected")
    if num_samples and not hasattr(lm, "sampled"):
        raise InputError(
            f"num_samples is {num_samples}, but {type(lm).__name__} has no random weights",
            remedy="Use num_samples 0 for a point-estimate LM.",
        )
    return num_samples if not hasattr(lm, "locations") or lm.locations() else 0


def _check_tokens(sequences: Sequences, size: int) -> None:
    for ids in sequences:
        if ids and not 0 <= min(ids) <= max(ids) < size:
            raise InputError(
                f"token ids from {min(ids)} to {max(ids)} in {ids[:10]}, but the LM has 0 to"
                f" {size - 1}",
                remedy="Use the token list that the LM was trained with.",
            )


@contextlib.contextmanager
def _evaluating(lm: torch.nn.Module) -> Iterator[None]:
    """Hold the LM in evaluation mode, without gradients."""
    training = lm.training
    lm.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        lm.train(training)


def _batches(sequences: Sequences, max_tokens: int) -> Iterator[Sequences]:
    """Yield runs of sequences, sorted by length, whose padded size is at most `max_tokens`."""
    start = 0
    for end, ids in enumerate(sequences):
        if end > start and (end + 1 - start) * (len(ids) + 1) > max_tokens:
            yield sequences[start:end]
            start = end
    if start < len(sequences):
        yield sequences[start:]


def _batch_log_probs(lm: torch.nn.Module, batch: Sequences) -> Iterator[np.ndarray]:
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
    # logits: (B, L, V), in float32 or better, since half precision loses the sum
    logits, _ = lm(inputs.to(device), None)
    logits = logits if logits.dtype == torch.float64 else logits.float()
    target_logits = logits.gather(2, targets.to(device).unsqueeze(2)).squeeze(2)
    log_probs = (target_logits - logits.logsumexp(2)).double().cpu().numpy()
    for row, length in enumerate(lengths):
        if not np.isfinite(log_probs[row, :length]).all():
            raise InputError(
                "the LM gives a log-probability that is not a finite number",
                remedy="Its training has diverged: use an earlier checkpoint.",
            )
        yield log_probs[row, :length]
