"""Ln p of token sequences under any LM, in batches and over weight samples."""

from __future__ import annotations

import contextlib
import logging
import operator
from typing import (
    Any,
    Callable,
    Dict,
    Hashable,
    Iterable,
    Iterator,
    List,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
    TypeVar,
)

import numpy as np
import torch

from espnet_bayeslm.lm.protocols import RandomLM, TreeLM, has_trees
from espnet_bayeslm.scoring.limits import MAX_TOKENS
from espnet_bayeslm.scoring.log_probs import (
    Ids,
    batch_tree,
    log_probs_of_logits,
    tree_batches,
    tree_log_probs,
)
from espnet_bayeslm.utils.cli import progress
from espnet_bayeslm.utils.errors import InputError

Key = TypeVar("Key", bound=Hashable)
Result = TypeVar("Result")


class Normalizer(NamedTuple):
    """Distribution of ln Z, the log of the softmax's sum, over contexts, in nats."""

    mean: float
    std: float


def score_hypotheses(
    lm: Any,
    hypotheses: Sequence[Sequence[Sequence[int]]],
    *,
    max_tokens: int = MAX_TOKENS,
    num_samples: int = 0,
    normalizer: Optional[Normalizer] = None,
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
        normalizer: Normalizer (`measure_normalizer`) whose mean is taken for the ln Z of every
            context, which then is not computed (self-normalised scoring).

    Raises:
        InputError: A token is no integer or out of the vocabulary, or the LM has no weights to
            sample.
    """
    flat = [ids for utterance in hypotheses for ids in utterance]
    found = token_log_probs(
        lm, flat, max_tokens=max_tokens, num_samples=num_samples, normalizer=normalizer
    )
    scores = iter(found)
    return [[float(next(scores).sum()) for _ in utterance] for utterance in hypotheses]


def token_log_probs(
    lm: Any,
    sequences: Sequence[Sequence[int]],
    *,
    max_tokens: int = MAX_TOKENS,
    num_samples: int = 0,
    normalizer: Optional[Normalizer] = None,
    openings: Optional[torch.Tensor] = None,
) -> List[np.ndarray]:
    """(n + 1,) float64 ln p of the n tokens and `</s>` of each sequence, in nats.

    Equal sequences are scored once.

    Args:
        lm: The LM.
        sequences: Token ids without `<sos/eos>`.
        max_tokens: The most distinct prefixes of a batch.
        num_samples: Number of weight samples whose probabilities are averaged; 0: the posterior
            mean.
        normalizer: Its mean is taken for the ln Z of every context; None: ln Z is computed.
        openings: (V,) bool, True for the tokens that end the word before them: the result then is
            (2, n + 1), the second row being ln P(one of these tokens) in the same contexts.
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
            for item in _log_probs(lm, unique, max_tokens, normalizer, openings):
                yield item
                bar.update(1)

        scores = mean_log_probs(lm, num_samples, score)
    return [scores[ids] for ids in known]


def running_log_probs(
    lm: Any, sequences: Sequence[Sequence[int]], *, context: int, **options: Any
) -> List[np.ndarray]:
    """(n + 1,) float64 ln p of the n tokens and `</s>` of each sentence, in nats.

    Runs of `context` sentences are scored at once, after the `context` sentences before the run. A
    sentence thus sees at least `context` sentences before it, fewer than twice as many, and at the
    text's start all earlier ones. Sentences are joined by `<sos/eos>`, which is `</s>` of one
    sentence and `<s>` of the next. The LM should have been trained on lines that are joined in this
    way.
    """
    end = vocab_size(lm) - 1
    begins = range(0, len(sequences), context)
    texts = [sequences[max(0, begin - context) : begin + context] for begin in begins]
    joined = [[token for ids in text for token in (*ids, end)][:-1] for text in texts]
    scores: List[np.ndarray] = []
    for text, values in zip(texts, token_log_probs(lm, joined, **options), strict=True):
        edges = np.cumsum([len(ids) + 1 for ids in text])[:-1]
        # the sentences before the run are all earlier ones, or `context` of them
        scores += np.split(values, edges, axis=-1)[min(context, len(scores)) :]
    return scores


def _log_probs(
    lm: Any,
    sequences: List[Ids],
    max_tokens: int,
    normalizer: Optional[Normalizer],
    openings: Optional[torch.Tensor],
) -> Iterator[Tuple[Ids, np.ndarray]]:
    """Yield each sequence and its ln p, in another order than the given one."""
    if openings is not None:
        openings = openings.to(next(lm.parameters()).device)
    if has_trees(lm):
        log_z = None if normalizer is None else normalizer.mean
        sequences.sort()
        for group in tree_batches(sequences, max_tokens=max_tokens):
            found = tree_log_probs(lm, *batch_tree(lm, group), log_z=log_z, openings=openings)
            yield from zip(group, found, strict=True)
        return
    sequences.sort(key=lambda ids: (len(ids), ids))
    for batch in _batches(sequences, tokens_with_logits(max_tokens)):
        yield from zip(batch, _batch_log_probs(lm, batch, openings), strict=True)


def _batches(sequences: Sequence[Ids], max_tokens: int) -> Iterator[Sequence[Ids]]:
    """Yield runs of sequences, sorted by length, whose padded size is at most `max_tokens`."""
    start = 0
    for end, ids in enumerate(sequences):
        if end > start and (end + 1 - start) * (len(ids) + 1) > max_tokens:
            yield sequences[start:end]
            start = end
    if start < len(sequences):
        yield sequences[start:]


def _batch_log_probs(
    lm: torch.nn.Module, batch: Sequence[Ids], openings: Optional[torch.Tensor]
) -> Iterator[np.ndarray]:
    """Yield ln p of each sequence of a batch."""
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
    values, log_z = log_probs_of_logits(logits, targets.to(device))
    if openings is not None:
        masses = logits[..., openings].to(log_z.dtype).logsumexp(-1)
        values = torch.stack([values, masses - log_z], dim=1)
    log_probs = values.double().cpu().numpy()
    for row, length in enumerate(lengths):
        yield log_probs[row, ..., :length]


def tokens_with_logits(max_tokens: int) -> int:
    """Number of tokens of a batch where the logits of all are held at once."""
    return max(1, max_tokens // 4)


def vocab_size(lm: torch.nn.Module) -> int:
    """Number of tokens of an LM; the last of them is `<sos/eos>`."""
    size = getattr(lm, "vocab_size", None)
    if size is None:
        embeddings = (m for m in lm.modules() if isinstance(m, torch.nn.Embedding))
        size = next(embeddings).num_embeddings
    return int(size)


def token_ids(sequences: Sequence[Any]) -> List[Ids]:
    """Sequences of token ids as tuples of int; they may be tensors or arrays of integers."""
    found = []
    for ids in sequences:
        values = ids.tolist() if hasattr(ids, "tolist") else ids
        try:
            found.append(tuple(map(operator.index, values)))
        except TypeError:
            raise InputError(
                f"expected a sequence of token ids, got {str(ids)[:80]}",
                remedy="Give whole numbers: a list, or a tensor or array of integers.",
            ) from None
    return found


def check_tokens(sequences: Sequence[Sequence[int]], size: int) -> None:
    """Check that all tokens are in a vocabulary of this size."""
    for ids in sequences:
        if ids and not 0 <= min(ids) <= max(ids) < size:
            raise InputError(
                f"token ids from {min(ids)} to {max(ids)} in {ids[:10]}, but the LM has 0 to"
                f" {size - 1}",
                remedy="Use the token list that the LM was trained with.",
            )


def check_finite(log_probs: np.ndarray) -> None:
    """Check that scores are numbers."""
    if not np.isfinite(log_probs).all():
        raise InputError(
            "a log-probability of the LM is not a finite number",
            remedy="Its training has diverged: use an earlier checkpoint.",
        )


def num_draws(lm: Any, num_samples: int) -> int:
    """Number of samples that are needed: none for LMs of this package where nothing is random."""
    if num_samples < 0:
        raise InputError(f"num_samples is {num_samples} where 0 or more was expected")
    if num_samples and not isinstance(lm, RandomLM):
        raise InputError(
            f"num_samples is {num_samples}, but {type(lm).__name__} has no random weights",
            remedy="Use num_samples 0 for a point-estimate LM.",
        )
    return num_samples if num_samples and lm.locations() else 0


@contextlib.contextmanager
def evaluating(lm: torch.nn.Module) -> Iterator[None]:
    """Hold the LM in evaluation mode, without gradients."""
    training = lm.training
    lm.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        lm.train(training)


def over_draws(lm: Any, num_samples: int, compute: Callable[[int], Result]) -> List[Result]:
    """Results of a computation with each weight sample held, or once with the posterior mean.

    Args:
        lm: The LM; it is held in evaluation mode, without gradients.
        num_samples: Number of samples; 0: the posterior mean.
        compute: Gets the sample's number; must not return an iterator, which would run too late.
    """
    draws = num_draws(lm, num_samples)
    found = []
    with evaluating(lm):
        for index in range(max(draws, 1)):
            with lm.sampled(index) if draws else contextlib.nullcontext():
                found.append(compute(index))
    return found


def mean_log_probs(
    lm: Any, num_samples: int, score: Callable[[int], Iterable[Tuple[Key, np.ndarray]]]
) -> Dict[Key, np.ndarray]:
    """Ln of the mean probability over the weight samples, of each scored item.

    Args:
        lm: The LM.
        num_samples: Number of weight samples; 0: the posterior mean.
        score: Gets the sample's number and yields each item once, with ln p of its tokens.
    """
    found: Dict[Key, np.ndarray] = {}

    def add(index: int) -> None:
        for key, log_probs in score(index):
            check_finite(log_probs)
            before = found.get(key)
            found[key] = log_probs if before is None else np.logaddexp(before, log_probs)

    log_count = np.log(len(over_draws(lm, num_samples, add)))
    return {key: log_probs - log_count for key, log_probs in found.items()}


def require_tree(lm: Any, what: str) -> TreeLM:
    """The LM, which computes prefix trees."""
    if not has_trees(lm):
        raise InputError(
            f"{what} needs an LM of espnet_bayeslm, got {type(lm).__name__}",
            remedy="Train bayes_lstm, bayes_transformer, or bayes_espnet around an LSTM or"
            " Transformer of ESPnet's; without uncertainty they are point-estimate LMs.",
        )
    return lm
